"""Sweeping clears leases that have ended, and trusts nothing but their end."""

import threading

import pytest

from distlock import LockLost
from distlock.types.lease import State, SweepResult
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed


@pytest.fixture
def ended(first, short, name):
    """``ended()``: a lock whose lease has ended. Tests call it, as some backends refuse that."""

    def end():
        lock = first.take(name, lease=short(0.2), renew=False)
        eventually(lambda: lock.info().state is not State.HELD)
        return lock

    return end


@pytest.fixture
def shown(backend):
    """``shown(5)``: how many of five leases that have ended there are to sweep."""
    return lambda number: number if backend.capabilities.shows_expired else 0


def test_an_ended_lease_is_swept_and_counted(ended, backend, shown, name):
    lock = ended()
    assert backend.sweep().expired == shown(1)
    assert lock.info().state is State.FREE
    assert list(backend.list(name)) == []


def test_several_ended_leases_are_swept_at_once(first, backend, short, shown, name):
    locks = [first.take(f"{name}:{number}", lease=short(0.3), renew=False) for number in range(5)]
    eventually(lambda: all(lock.info().state is not State.HELD for lock in locks))
    assert backend.sweep().expired == shown(5)


def test_a_held_lock_is_not_swept(first, second, backend, name):
    lock = first.take(name)
    assert backend.sweep() == SweepResult()
    lock.verify()
    assert not second.tries(name)


def test_there_is_nothing_to_sweep_the_second_time(ended, backend):
    ended()
    backend.sweep()
    assert backend.sweep() == SweepResult()


def test_a_lock_that_was_just_freed_is_not_swept(first, backend, name):
    """Its row or node may be kept for its token."""
    first.take(name).release()
    assert backend.sweep().expired == 0


def test_whoever_had_the_swept_lock_has_lost_it(ended, backend):
    lock = ended()
    backend.sweep()
    with pytest.raises(LockLost):
        lock.release()


def test_a_swept_lock_can_be_taken(ended, third, backend, name):
    ended()
    backend.sweep()
    eventually(lambda: third.tries(name))  # its place in line is given up a moment later


def test_sweeping_does_not_disturb_who_waits(first, second, backend, name):
    held = first.take(name)
    waiting = second.lock(name).start("acquire")
    for _ in range(3):
        backend.sweep()
    assert not waiting.done()
    held.release()
    assert waiting.result(PATIENCE)


def test_sweepers_may_meet(first, backend, short, shown, name):
    """Each ended lease is counted by one of them."""
    locks = [first.take(f"{name}:{number}", lease=short(0.3), renew=False) for number in range(10)]
    eventually(lambda: all(lock.info().state is not State.HELD for lock in locks))
    swept = []
    sweepers = [threading.Thread(target=lambda: swept.append(backend.sweep())) for _ in range(4)]
    for sweeper in sweepers:
        sweeper.start()
    for sweeper in sweepers:
        sweeper.join(PATIENCE)
    assert sum(each.expired for each in swept) == shown(10)


def test_what_was_free_for_long_is_removed(kind, backend_settings, settings, actor, name):
    from distlock import locks

    settings.DISTLOCK = backend_settings(kind)
    if "keep" not in type(locks["default"]).default_options:
        assert locks["default"].sweep().removed == 0
        return
    settings.DISTLOCK = backend_settings(kind, OPTIONS={"keep": 0.05})
    person = actor("thread")
    held = person.take(f"{name}:held")
    person.take(f"{name}:free").release()
    passed(0.1)
    assert locks["default"].sweep().removed >= 1  # others may have left one just before, too
    assert person.lock(f"{name}:free").info().token is None
    held.verify()
