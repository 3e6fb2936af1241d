"""Blocks of all kinds that are interrupted at any moment are left; and by real signals."""

import dis
import itertools
import random
import signal
import timeit
import uuid
from contextlib import suppress

import pytest
from django.db import connections

from distlock import Lock, LockLost, ReentrantCall
from distlock.locking.base_lock import BaseLock
from distlock.locking.blocks import Attempt, BlockLock
from distlock.locking.lock import transaction_under
from distlock.recipes import MultiLock, Semaphore
from distlock.runtime import manager
from tests.core.interrupting import CODE, at_moment, cycle, in_destructor, interrupted


class OwnAcquire(Lock):
    def acquire(self, blocking=None, timeout=None):
        return super().acquire(blocking, timeout)


class OwnExit(Lock):
    def __exit__(self, exc_type, exc, traceback):
        super().__exit__(exc_type, exc, traceback)


class TwoSeats(Semaphore):
    def __init__(self, name):
        super().__init__(name, 2)

    def acquire(self, blocking=None, timeout=None, n=None):
        return super().acquire(blocking, timeout, n)


class TwoLocks(MultiLock):
    def __init__(self, name):
        super().__init__(f"{name}:1", f"{name}:2")


def block(lock):
    with lock:
        pass


def attempted_block(lock):
    with lock.attempt():
        pass


def interrupt(frame):
    raise KeyboardInterrupt


def entries(lock):
    """Return how often each lock that it consists of is entered in this process."""
    keys = [part._key for part in getattr(lock, "_parts", [lock])]
    holds = manager.manager().all()
    return [sum(hold.count for hold in holds if hold.key == key) for key in keys]


def unprotected(call, make, act=interrupt, prepare=lambda lock: None, code=CODE):
    """Act at each moment of ``call(lock)``; return in which functions it then was left entered."""
    warm, found, unstruck = make("warm"), [], 0
    block(warm)  # threads of the package run from now on
    while warm.held:
        warm.release()
    for moment in itertools.count(1):
        struck = []

        def note(frame):
            struck.append(frame.f_code.co_name)  # noqa: B023 - called at once
            act(frame)

        lock = make(f"{uuid.uuid4().hex}:{moment}")
        before = entries(lock)
        prepared = prepare(lock)
        with suppress(KeyboardInterrupt, ReentrantCall):
            at_moment(lambda: call(prepared or lock), moment, note, code)  # noqa: B023
        if entries(lock) != before:
            found += struck or ["without an interrupt"]
        while lock.held:
            lock.release()
        unstruck = 0 if struck else unstruck + 1
        if unstruck == 3:  # one call alone may have fewer moments than the others
            assert moment > 50, "the interrupts did not reach the code"
            return found


@pytest.mark.parametrize("make", [Lock, OwnAcquire, OwnExit, TwoSeats, TwoLocks])
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_block_that_is_interrupted_is_left(make, again):
    """Python gives nobody a chance to do so if that is as ``__exit__()`` begins."""

    def entered(name):
        lock = make(name)
        if again:
            lock.acquire()
        return lock

    for call, known in (block, ["__exit__"]), (attempted_block, ["__exit__", "__exit__"]):
        # After a pause threads of the package begin again, so one call has more moments than the
        # others. Then a scan leaves some moments out, or finds one twice, and is made again.
        for _ in range(4):
            found = unprotected(call, entered)
            assert set(found) <= {"__exit__"}
            if found == known:
                break
        assert found == known


@pytest.mark.parametrize("make", [Lock, TwoLocks])
def test_a_block_whose_signal_handler_uses_another_lock_is_left(make):
    """The handler lets ReentrantCall through, which is then no error of leaving."""
    assert unprotected(block, make, act=lambda frame: cycle(Lock("other"))) == []


TAKING = [
    BlockLock.__enter__,
    BlockLock.acquire,
    BlockLock._begin,
    Attempt.__enter__,
    BaseLock._acquire,
    MultiLock._acquire,
    transaction_under.__wrapped__,
]


@pytest.mark.parametrize("function", TAKING, ids=lambda function: function.__qualname__)
def test_what_has_taken_a_lock_is_not_called_with_a_star(function):
    """CPython handles signals after such a call, before its result is stored."""
    assert "CALL_FUNCTION_EX" not in {one.opname for one in dis.get_instructions(function)}


@pytest.fixture
def on_alarm():
    """``on_alarm(handle)``: have this signal handler for a while, and the timer of its signal."""
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield lambda handle: signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def wait(struck):
    """Apart, because no ``with`` around a loop protects its jump back."""
    while not struck:
        pass


@pytest.mark.parametrize("make", [Lock, TwoLocks])
def test_a_block_that_a_signal_interrupts_is_left(make, on_alarm):
    """Signals come at moments, too, that the interpreter shows to nobody."""

    def strike(number, frame):
        code = frame.f_code
        begins = code is BlockLock.__exit__.__code__ and frame.f_lineno == code.co_firstlineno
        struck.append(begins)
        if not in_destructor(frame):
            raise KeyboardInterrupt

    on_alarm(strike)
    length = min(timeit.repeat(lambda: block(make("timed")), number=1, repeat=20))
    for number in range(3000):
        struck, lock = [], make(f"{uuid.uuid4().hex}:{number}")
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(length / 50, 1.2 * length))
            block(lock)
            wait(struck)
        assert struck == [True] or not any(entries(lock))
        while lock.held:
            lock.release()


def test_who_was_in_a_lost_hold_does_not_leave_the_next_one(backend, in_thread):
    """Another thread of the same owner's name has taken it meanwhile."""

    def leave(lock):
        with suppress(LockLost):
            lock.__exit__(None, None, None)

    for moment in itertools.count(1):
        name = f"{uuid.uuid4().hex}:{moment}"
        lost, taken_again = Lock(name, owner="me"), Lock(name, owner="me")
        lost.__enter__()
        backend.force_release(name, lost.token)
        with pytest.raises(LockLost):
            lost.verify()
        in_thread(taken_again.acquire)
        over = not interrupted(lambda: leave(lost), moment)  # noqa: B023 - called at once
        assert in_thread(lambda: taken_again.held)  # noqa: B023 - called at once
        in_thread(taken_again.release)
        if over:
            break
    assert moment > 20, "the interrupts did not reach the code"


@pytest.mark.parametrize("make", [Lock, TwoLocks])
def test_a_transaction_under_a_lock_that_is_interrupted_at_its_end_is_left(
    make, sqlite, backend_settings, settings
):
    def begin(lock):
        transaction = lock.atomic()
        transaction.__enter__()
        return transaction

    def end(transaction):
        transaction.__exit__(None, None, None)

    settings.DISTLOCK = backend_settings("sqlite")
    try:
        assert unprotected(end, make, prepare=begin, code=CODE[:1]) == ["__exit__"]
    finally:
        connections["default"].close()
