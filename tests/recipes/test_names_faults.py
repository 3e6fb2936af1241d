"""Processes with names that are stopped past their lease, and answers that are lost."""

import random
import signal
import threading

import pytest

from distlock import LockBusy, LockLost, LockNotHeld, LockTimeout, LockUnavailable, ValueNotAgreed
from distlock.backends.store import Delete
from distlock.recipes import Names
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_names import lose
from tests.recipes.test_seats_faults import stop
from tests.recipes.wrapping import in_thread

pytestmark = pytest.mark.once


def have(namespace, name, address):
    """As a child: have a name; once told to go on, say what has become of it."""
    told = []
    names = Names(namespace)
    registration = names.register(name, address, timeout=PATIENCE, on_lost=told.append)
    write_line(registration.token)
    read_line()
    write_line("held" if registration.held else "not held")
    try:
        registration.check()
        write_line("unharmed")
    except LockLost:
        write_line("lost")
    eventually(lambda: told)
    write_line("told")
    write_line(registration.unregister())


def hand_over(namespace, name, successor):
    """As a child: hand a name over."""
    registration = Names(namespace).register(name, "old", timeout=PATIENCE)
    write_line(registration.token)
    write_line(registration.hand_over(successor))


def fight(namespace, seed, turns):
    """As a child: have the one name as often as told to, and say when."""
    names, chance = Names(namespace), random.Random(seed)
    for _ in range(turns):
        with names.register("front", f"{seed}", timeout=PATIENCE) as registration:
            found = names.resolve_all("front")
            assert [one.token for one in found] == [registration.token], found
            if chance.random() < 0.3:
                names.unique_number()
            write_line(registration.token)


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
def test_who_was_stopped_has_lost_the_name_and_takes_nothing_away(
    child, kind, using, long_leases, name
):
    stopped = child(have, name, "front", "1")
    token = int(stopped.line())
    stop(stopped, kind)
    long_leases()
    names = Names(name)
    with names.register("front", "2", timeout=PATIENCE) as successor:
        assert successor.token > token
        stopped.tell("go on")
        stopped.signal(signal.SIGCONT)
        assert stopped.finish() == ["not held", "lost", "told", "False"]
        assert names.resolve("front").token == successor.token
        successor.check()


@pytest.mark.shared
@pytest.mark.slow
def test_a_name_goes_from_process_to_process_and_is_never_free(child, using, name):
    names = Names(name)
    owner = child(hand_over, name, "front", "new")
    token = int(owner.line())
    thief = in_thread(names.register, "front", "thief", timeout=1)
    with names.register("front", "new", timeout=PATIENCE) as successor:
        assert successor.token > token
        assert owner.line() == "True"
        assert isinstance(thief(), LockTimeout)


@pytest.mark.shared
@pytest.mark.slow
def test_of_many_who_want_one_name_one_has_it(child, using, name):
    fighters = [child(fight, name, seed, 10) for seed in range(5)]
    tokens = [int(line) for fighter in fighters for line in fighter.finish()]
    assert len(set(tokens)) == 50
    assert Names(name).resolve_all() == ()


def test_an_answer_that_was_lost_leaves_no_name_behind(eager, name, wrapped):
    """It may have been registered all the same, and is taken back."""
    names, apply = Names(name), wrapped("apply")

    def lose(store, *request):
        apply.before = lambda *_: None
        apply.original(store, *request)
        raise LockUnavailable("no answer")

    apply.before = lose
    with pytest.raises(LockUnavailable):
        names.register("front", "1")
    with names.register("front", "2", timeout=PATIENCE) as registration:
        assert [one.token for one in names.resolve_all()] == [registration.token]


def test_a_name_is_no_service_and_unique_though_services_came_and_went_at_that_moment(
    eager, name, wrapped
):
    names, apply, there = Names(name), wrapped("apply"), []

    def come_and_go(*_):
        apply.before = lambda *_: None
        there.append(names.register("desk", "one", unique=False))
        names.register("desk", "two", unique=False).unregister()

    apply.before = come_and_go
    with pytest.raises(ValueNotAgreed):
        names.register("desk", "mine")
    assert [one.address for one in names.resolve_all("desk")] == ["one"]
    there.pop().unregister()
    with names.register("desk", "mine"):
        assert names.resolve("desk").unique


def test_a_name_that_could_not_be_left_is_left_later(eager, name, wrapped):
    names, apply = Names(name), wrapped("apply")
    registration = names.register("front", "1")

    def refuse(*_):
        apply.before = lambda *_: None
        raise LockUnavailable("away")

    apply.before = refuse
    with pytest.raises(LockUnavailable):
        registration.unregister()
    with names.register("front", "2", timeout=PATIENCE):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, LockUnavailable])
def test_who_is_interrupted_while_handing_over_gives_the_name_up(eager, name, wrapped, error):
    """Somebody may have it by then, so this process must not think that it has."""
    names = Names(name)
    first = names.register("front", "1")
    apply = wrapped("apply")

    def interrupt(*request):
        apply.before = lambda *_: None
        apply.original(*request)
        raise error

    apply.before = interrupt
    with pytest.raises(error):
        first.hand_over("2", PATIENCE)
    with pytest.raises(LockNotHeld):
        first.check()
    with names.register("front", "3", timeout=PATIENCE):
        assert [one.address for one in names.resolve_all()] == ["3"]


def test_who_comes_as_a_promise_is_taken_back_gets_no_name(eager, name, wrapped):
    names = Names(name)
    first = names.register("front", "1")
    apply, somebody_comes = wrapped("apply"), threading.Event()

    def take_it_back(store, directory, changes, *_):
        if any(isinstance(change, Delete) for change in changes):  # that of who comes
            somebody_comes.set()
            assert handing() is False
        elif not any("promised" in change.value["data"] for change in changes):
            assert somebody_comes.wait(PATIENCE)

    apply.before = take_it_back
    handing = in_thread(first.hand_over, "2", 0)
    eventually(lambda: names.resolve("front").promised)
    with pytest.raises(LockBusy):
        names.register("front", "2")
    assert somebody_comes.is_set()
    assert first.held
    assert [one.address for one in names.resolve_all()] == ["1"]


def test_a_name_that_is_lost_while_it_is_handed_over_is_told(eager, name):
    names = Names(name)
    first = names.register("front", "1")
    token = first.token
    handing = in_thread(first.hand_over, "2", PATIENCE)
    eventually(lambda: names.resolve("front").promised)
    lose(names, token)
    assert isinstance(handing(), LockLost)


@pytest.mark.parametrize("unique", [True, False])
def test_a_name_is_not_made_unique_and_a_service_at_the_same_moment(eager, name, wrapped, unique):
    applied, others, names = wrapped("apply"), [], Names(name)

    def register_the_other(*_):
        applied.before = lambda *_: None
        others.append(names.register("x", "other", unique=not unique))

    applied.before = register_the_other
    with pytest.raises(ValueNotAgreed):
        names.register("x", "this", unique=unique)
    assert [one.address for one in names.resolve_all("x")] == ["other"]
    others.pop().unregister()
