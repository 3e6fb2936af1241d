"""First come, first served, among processes, and one of them at a time."""

import pytest

from distlock import Lock, locks
from distlock.backends.database import wait_session, waiter
from tests.contract.actors import PATIENCE
from tests.contract.watch import waits
from tests.queue.engine import unhurried


@pytest.mark.slow
@unhurried
def test_eight_processes_are_served_in_the_order_they_came(actor, engine, name):
    held = actor("thread").take(name)
    line = []
    for number in range(8):
        lock = actor().lock(name)
        line.append((lock, lock.start("acquire")))
        engine.reaches_line(number + 1)
    before = held.token
    held.release()
    tokens = []
    for lock, got in line:
        assert got.result(PATIENCE) is True
        tokens.append(lock.token)
        assert sum(future.done() for _, future in line) == len(tokens)
        lock.release()
    assert [before, *tokens] == sorted({before, *tokens})
    engine.reaches_line(0)


@unhurried
def test_a_newcomer_does_not_take_a_lock_that_others_stand_in_line_for(
    engine, using, name, monkeypatch
):
    """A moment in which the lock is free and the first in line has not taken it yet."""
    monkeypatch.setattr(waiter, "_HANDOVER", PATIENCE)
    with Lock(name):
        pass
    with engine.taken_by_hand(engine_alias(using), name):
        assert Lock(name).acquire(timeout=0.3) is False
        assert Lock(name).acquire(blocking=False) is True
        Lock(name).release()


@unhurried
@pytest.mark.every_day_on("mariadb")
def test_a_named_owner_waits_for_its_turn_like_everybody(actor, engine, using, name):
    """It is let in past those who wait only where the lock is held in its name already."""
    with Lock(name):
        pass
    with engine.taken_by_hand(engine_alias(using), name):
        waiting = actor("thread").lock(name, owner="order-42").start("acquire")
        engine.reaches_waiting(1)
        assert waits(waiting)
    assert waiting.result(PATIENCE)
    actor().lock(name).start("acquire")
    engine.reaches_line(1)
    assert actor().lock(name, owner="order-42").acquire(timeout=PATIENCE)


def test_whoever_tries_once_does_not_stand_in_line(actor, engine, name):
    actor("thread").take(name)
    waiting = actor().lock(name).start("acquire")
    engine.reaches_line(1)
    assert actor().tries(name) is False
    assert engine.line() == 1
    assert not waiting.done()


@pytest.mark.parametrize("timeout", [1e-9, 0.0002, 0.001])
@pytest.mark.parametrize("owner", [None, "order-42"])
def test_a_free_lock_is_had_in_no_time_also_where_it_was_waited_for(
    actor, engine, using, name, timeout, owner, monkeypatch
):
    """However little time the caller has left, there is one look at the lock."""
    monkeypatch.setattr(wait_session, "_IDLE", PATIENCE)
    before, waited = actor().take(name), actor("thread").lock(name)
    got = waited.start("acquire")
    engine.reaches_line(1)
    before.release()
    assert got.result(PATIENCE)
    waited.release()
    assert name in [session.name for session in locks[using].waits.sessions.idle]
    for _ in range(5):
        assert Lock(name, owner=owner).acquire(timeout=timeout)
        Lock(name, owner=owner).release()


@unhurried
def test_the_next_is_woken_by_the_release_itself(actor, engine, name):
    """Holders that had to wait hand the lock over in the server, without anyone looking."""
    first, second, third = (actor().lock(name) for _ in range(3))
    assert first.acquire()
    for number, lock in enumerate((second, third), 1):
        lock.waiting = lock.start("acquire")
        engine.reaches_line(number)
    first.release()
    assert second.waiting.result(PATIENCE)
    assert (engine.holding(), engine.waiting()) == (1, 1)
    second.release()
    assert third.waiting.result(PATIENCE)
    third.release()
    engine.reaches_line(0)


def engine_alias(using):
    from distlock import locks

    return locks[using].database
