"""Who may use a session: so many at a time, in the order in which they came, and none is lost."""

import itertools
import threading

from distlock.backends.database.permits import Permit, Permits
from tests.core.interrupting import interrupted


def all_there(permits, number=2):
    """Whether so many permits can be had at once, and no more, by whoever asks."""
    had = [Permit() for _ in range(number + 1)]
    got = [permits.take(permit, 0.0) for permit in had]
    for permit in had:
        permits.give_back(permit)
    return got == [True] * number + [False]


def in_thread(call, *args):
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def test_so_many_are_granted_at_a_time():
    assert all_there(Permits(2))


def test_giving_back_twice_does_no_harm():
    permits, permit = Permits(2), Permit()
    assert permits.take(permit, 1)
    permits.give_back(permit)
    permits.give_back(permit)
    assert all_there(permits)


def test_they_are_granted_in_the_order_of_coming():
    permits, first = Permits(1), Permit()
    permits.take(first, 1)
    order, threads = [], []

    def come(number):
        permit = Permit()
        if permits.take(permit, 10):
            order.append(number)
        permits.give_back(permit)

    for number in range(5):
        threads.append(in_thread(come, number))
        while len(permits._waiting) <= number:
            pass
    permits.give_back(first)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]


def test_who_waits_in_vain_leaves_the_line():
    permits, first, late = Permits(1), Permit(), Permit()
    permits.take(first, 1)
    assert not permits.take(late, 0.05)
    permits.give_back(late)
    permits.give_back(first)
    assert all_there(permits, 1)


def test_what_nobody_knows_any_more_is_free():
    permits = Permits(1)
    assert permits.take(Permit(), 1)
    waiting, got = Permit(), []
    thread = in_thread(lambda: got.append(permits.take(waiting, 10)))
    thread.join(10)
    assert got == [True]


def test_no_interrupt_loses_one_or_locks_out_the_others():
    """Neither in taking nor in giving back, whoever waits meanwhile."""

    def use(permits):
        permit = Permit()
        try:
            permits.take(permit, 0.2)
        finally:
            permits.give_back(permit)

    def wait(permits):
        permit = Permit()
        if permits.take(permit, 10):
            served.append(permits)
        permits.give_back(permit)

    served = []
    for moment in itertools.count(1):
        permits = Permits(2)
        held = [Permit(), Permit()]
        for permit in held[: moment % 3]:
            permits.take(permit, 1)
        waiting = in_thread(wait, permits) if moment % 3 == 2 else None
        ended = not interrupted(lambda: use(permits), moment // 3)  # noqa: B023 - called at once
        for permit in held:
            permits.give_back(permit)
        if waiting:
            waiting.join(10)
            assert served.pop() is permits
        assert all_there(permits)
        if ended and moment // 3 > 0:
            assert moment > 30, "the interrupts did not reach the code"
            return
