"""Waiting: once, for a time, or for ever; the time limit covers everything."""

import itertools
import time

import pytest

from distlock import LockTimeout
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually, in_line, steadily, waits


def test_trying_once_gives_false_at_once(first, second, name):
    first.take(name)
    assert second.lock(name).acquire(blocking=False) is False


def test_trying_once_can_be_said_in_the_constructor(first, second, name):
    first.take(name)
    assert second.lock(name, on_busy="raise").acquire() is False


def test_no_time_to_wait_is_a_single_try(first, second, at_once, name):
    held = first.take(name)
    lock = second.lock(name)
    assert lock.acquire(timeout=0) is False
    held.release()
    assert at_once(lambda: lock.acquire(timeout=0)) is True


def test_a_time_limit_is_waited_out(first, second, name):
    first.take(name)
    lock = second.lock(name)
    start = clock()
    assert answered(lambda: lock.acquire(timeout=0.1)) is False
    assert clock() - start >= 0.1


def test_a_time_limit_can_be_set_in_the_constructor(first, second, name):
    first.take(name)
    assert answered(second.lock(name, timeout=0.05).acquire) is False


def test_minus_one_waits_for_ever_whatever_the_constructor_said(first, second, name):
    held = first.take(name)
    waiting = second.lock(name, timeout=0.01).start("acquire", timeout=-1)
    assert waits(waiting)
    held.release()
    assert waiting.result(PATIENCE)


def test_a_lock_that_comes_free_within_the_limit_is_had(first, second, name):
    held = first.take(name)
    waiting = second.lock(name).start("acquire", timeout=PATIENCE)
    assert waits(waiting)
    held.release()
    assert waiting.result(PATIENCE) is True


def test_a_free_lock_is_had_within_the_shortest_limit(first, name):
    numbers = itertools.count()  # what came of an earlier attempt may not be taken back yet

    def acquire():
        return first.lock(f"{name}:{next(numbers)}").acquire(timeout=0.000001)

    assert answered(acquire) is True


@pytest.mark.shared
def test_a_limit_covers_the_whole_wait_and_not_each_look(actor, fourth, short, name):
    """The waiter looks again whenever a lease it saw would have ended, several times here."""
    holder = actor("process")

    def attempt(lease):
        held = holder.take(f"{name}:{lease}", lease=lease)
        lock = fourth.lock(f"{name}:{lease}")
        start = clock()
        got = lock.acquire(timeout=2.7 * lease)
        held.check()
        assert got is False
        assert 2.7 * lease <= clock() - start < PATIENCE

    steadily(attempt, *short.each(0.3, 3))


@pytest.mark.shared
def test_a_limit_covers_the_wait_in_the_process_and_the_wait_outside(actor, using, name):
    """The second waiter stands in line behind the first, which waits for another process."""
    actor("process").take(name)
    first, second = actor("thread"), actor("task")
    ahead = first.lock(name).start("acquire")
    eventually(lambda: in_line(using, name) == 1)
    assert answered(lambda: second.lock(name).acquire(timeout=0.2)) is False
    assert waits(ahead, 0.01)


def test_who_gave_up_does_not_get_the_lock_later(first, second, name):
    held = first.take(name)
    lock = second.lock(name)
    assert answered(lambda: lock.acquire(timeout=0.1)) is False
    held.release()
    assert lock.held is False
    # The last request may have been granted after the wait was over: then it is taken back.
    assert eventually(lambda: not lock.locked())


def test_who_gave_up_does_not_hold_up_those_behind(first, fourth, third, using, name):
    held = first.take(name)
    giving_up = fourth.lock(name).start("acquire", timeout=0.2)
    behind = third.lock(name).start("acquire")
    assert giving_up.result(PATIENCE) is False
    held.release()
    assert behind.result(PATIENCE) is True


def test_who_gave_up_can_wait_again(first, second, name):
    held = first.take(name)
    lock = second.lock(name)
    assert answered(lambda: lock.acquire(timeout=0.05)) is False
    waiting = lock.start("acquire")
    assert waits(waiting)
    held.release()
    assert waiting.result(PATIENCE) is True


def test_a_waiter_gets_a_lock_whose_lease_runs_out(first, third, short, name):
    third.take(name, lease=short(0.3), renew=False)
    assert first.lock(name).acquire(timeout=PATIENCE) is True


def test_many_waiters_all_get_their_turn(actor, name):
    people = [actor("thread" if number % 2 else "task") for number in range(8)]
    waiting = []
    held = people[0].take(name)
    for person in people[1:]:
        lock = person.lock(name)
        waiting.append((lock, lock.start("acquire")))
    held.release()
    left = dict(enumerate(waiting))
    while left:
        number = eventually(lambda: next((n for n, (_, f) in left.items() if f.done()), -1) + 1) - 1
        lock, future = left.pop(number)
        assert future.result() is True
        assert not any(other.done() for _, other in left.values())
        lock.release()


def test_a_time_limit_in_the_constructor_holds_for_with(first, second, name):
    first.take(name)
    lock = second.lock(name, timeout=0.05)
    enter = "__enter__" if not hasattr(second, "task") else "__aenter__"
    with pytest.raises(LockTimeout) as caught:
        answered(lambda: lock.start(enter).result(PATIENCE))
    assert repr(name) in str(caught.value)


def test_waiting_needs_no_luck_with_the_clock_of_the_day(first, second, name, monkeypatch):
    """An hour's jump of the time of day in the waiter's process changes nothing."""
    held = first.take(name)
    waiting = second.lock(name).start("acquire", timeout=PATIENCE)
    assert waits(waiting, 0.02)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    assert waits(waiting, 0.02)
    held.release()
    assert waiting.result(PATIENCE) is True
