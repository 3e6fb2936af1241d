"""Reading a Config often: free while a watch follows it, or bounded by the age that one allows."""

import asyncio
import math

import pytest

from distlock import LockUnavailable, locks
from distlock.recipes import Config
from tests.contract.watch import eventually
from tests.database.counting import statements

SERVERS = ["mariadb", "postgresql"]
pytestmark = [pytest.mark.once, pytest.mark.parametrize("kind", SERVERS)]


@pytest.fixture
def config(kind, backend_settings, settings, name):
    settings.DISTLOCK = backend_settings(kind)
    yield Config(name)
    locks.close_all()


def cost(call):
    """Return how many requests to the server a call takes, once its session is there."""
    call()
    with statements() as seen:
        call()
    return len(seen)


# What docs/recipes.md says; the rest of it is in test_costs.py.


def test_one_that_may_be_old_is_none(config):
    config.set("on")
    assert cost(lambda: config.get(max_age=60)) == 0


def test_nor_is_one_that_was_never_set(config):
    assert cost(lambda: config.get("off", max_age=60)) == 0
    assert config.get("off", max_age=60).value == "off"


def test_one_that_a_watch_follows_is_none(config):
    config.set("on")
    with config.watch(lambda found: None):
        eventually(lambda: cost(config.get) == 0)


# What is read.


def test_what_is_older_than_allowed_is_read_again(config, child, kind):
    config.set("on")
    assert config.get(max_age=60).value == "on"
    child(set_value, config.name, "off").finish()
    assert config.get(max_age=60).value == "on"
    assert config.get(max_age=1e-6).value == "off"


def set_value(name, value):
    Config(name).set(value)


def test_none_and_0_ask(config, child):
    config.set("on")
    child(set_value, config.name, "off").finish()
    assert config.get().value == "off"
    child(set_value, config.name, "away").finish()
    assert config.get(max_age=0).value == "away"


def test_what_this_process_sets_it_reads(config):
    with config.watch(lambda found: None):
        for number in range(20):
            config.set(number)
            assert config.get().value == number
            assert config.get(max_age=60).value == number


def test_a_change_is_seen_where_a_watch_follows(config, child):
    config.set("on")
    with config.watch(lambda found: None):
        eventually(lambda: cost(config.get) == 0)
        child(set_value, config.name, "off").finish()
        eventually(lambda: config.get().value == "off")
        eventually(lambda: cost(config.get) == 0)


def test_without_stale_it_asks_though_a_watch_follows(config):
    config.set("on")
    with config.watch(lambda found: None):
        eventually(lambda: cost(config.get) == 0)
        assert cost(lambda: config.get(stale=False)) == 1


def test_a_watch_that_is_closed_counts_no_more(config):
    config.set("on")
    with config.watch(lambda found: None):
        eventually(lambda: cost(config.get) == 0)
    assert cost(config.get) == 1


def test_one_that_is_garbage_neither(config):
    config.set("on")
    watch = config.watch(lambda found: None)
    eventually(lambda: cost(config.get) == 0)
    del watch
    eventually(lambda: cost(config.get) == 1)


def test_a_loop_over_changes_is_no_watch(config):
    """It looks only when the next change is asked for."""
    config.set("on")
    changes = config.changes()
    next(changes)
    assert cost(config.get) == 1


def test_what_cannot_be_asked_for_may_still_be_young_enough(config, proxied, kind):
    network = proxied(kind)
    locks.close_all()
    config.set("on")
    network.refuse()
    found = config.get(max_age=60, stale=False)
    assert (found.value, found.stale) == ("on", False)
    with pytest.raises(LockUnavailable):
        config.get(max_age=1e-6, stale=False)


def test_a_task_reads_in_the_same_way(config):
    config.set("on")
    with statements() as seen:
        assert asyncio.run(config.aget(max_age=60)).value == "on"
    assert not seen


def test_what_is_read_may_be_changed_without_harm(config):
    config.set({"rate": 1})
    config.get(max_age=60).value["rate"] = 2
    assert config.get(max_age=60).value == {"rate": 1}


@pytest.mark.parametrize("wrong", [-1, math.inf, math.nan, "1"])
def test_an_age_is_a_number_of_seconds(config, wrong):
    with pytest.raises((TypeError, ValueError), match="max_age"):
        config.get(max_age=wrong)
