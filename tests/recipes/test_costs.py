"""How many requests to the database server a call takes, as docs/recipes.md says."""

import pytest

from distlock import locks
from distlock.recipes import Config, Election, Queue, Topic, queue_items, queue_records
from tests.database.counting import statements

pytestmark = pytest.mark.once


@pytest.fixture(params=["mariadb", "postgresql"])
def make(request, backend_settings, settings, name):
    """``make(Config)``: one of the test's own."""
    settings.DISTLOCK = backend_settings(request.param)
    yield lambda recipe: recipe(name)
    locks.close_all()


def cost(call):
    with statements() as seen:
        call()
    return len(seen)


def test_of_a_config(make):
    config = make(Config)
    config.set("on")
    assert cost(config.get) == 1
    assert cost(lambda: config.set("off")) == 2
    assert cost(lambda: config.rollback(1)) == 3
    assert cost(config.history) == 1


def test_of_a_queue(make, monkeypatch):
    monkeypatch.setattr(queue_items, "LOOKS_EVERY", 3600)
    monkeypatch.setattr(queue_records, "BOUND_LASTS", 3600)
    queue = make(Queue)
    queue.put(1)
    assert cost(lambda: queue.put(2)) == 1
    assert cost(lambda: queue.put_many([3, 4, 5])) == 1
    taken = [queue.get()]  # the first one also looks for what was abandoned
    assert cost(lambda: taken.append(queue.get())) == 1
    assert cost(lambda: taken.extend(queue.get_many(2))) == 2
    assert cost(taken[0].ack) == 1
    assert cost(lambda: queue.ack_many(taken[1:])) == 1
    assert cost(queue.info) == 2


def test_of_a_topic(make):
    topic = make(Topic)
    topic.publish("a")
    assert cost(lambda: topic.publish("b")) == 2
    assert cost(topic.history) == 1


def test_of_an_election(make):
    """Who waits for its lock is not asked: on MariaDB that takes longer than all the rest."""
    election = make(Election)
    election.campaign()
    assert cost(election.info) == 2
    election.resign()
