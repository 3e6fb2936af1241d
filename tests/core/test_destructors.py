"""Destructors, and callbacks of weak references, may leave locks at any moment of an operation.

Nobody would get an error of them, so another thread leaves.
"""

import gc
import signal
import uuid
import weakref
from contextlib import ExitStack

import pytest

from distlock import Lock, ReentrantCall
from distlock.recipes import MultiLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import cycle, every_moment, is_free


class Holder:
    """Leaves what it has when it is deleted, as files are closed."""

    def __init__(self, leave):
        self.leave = leave

    def __del__(self):
        self.leave()


def held_lock():
    lock = Lock(uuid.uuid4().hex)
    lock.acquire()
    return lock.release, lock.locked


def held_seat():
    seat = Semaphore(uuid.uuid4().hex, 1)
    seat.acquire()
    return seat.release, seat.locked


def held_locks():
    several = MultiLock(uuid.uuid4().hex, uuid.uuid4().hex)
    several.acquire()
    return several.release, several.locked


def held_by_stack():
    stack, lock = ExitStack(), Lock(uuid.uuid4().hex)
    stack.enter_context(lock)
    return stack.close, lock.locked


HELD = {"lock": held_lock, "seat": held_seat, "several": held_locks, "stack": held_by_stack}


@pytest.mark.parametrize("what", HELD)
def test_a_destructor_may_leave_a_lock_at_any_moment(what, monkeypatch):
    """Nobody would get an error of it."""
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda error: unraisable.append(error.exc_value))
    lock = Lock("same", timeout=PATIENCE)
    leave, locked = HELD[what]()
    holders, places = [Holder(leave)], [locked]
    step = 1 if what == "lock" else 5
    for token in every_moment(lambda: cycle(lock), lambda frame: holders.clear(), step):
        assert isinstance(token, int)
        eventually(lambda: not places[-1]())
        leave, locked = HELD[what]()
        holders.append(Holder(leave))
        places.append(locked)
    holders.clear()
    assert not unraisable
    assert is_free(lock)


def test_callbacks_of_weak_references_leave_locks_while_garbage_is_collected():
    """The collector runs at every allocation, so inside of all that an operation does."""

    class Garbage:
        pass

    def litter():
        garbage, (leave, locked) = Garbage(), held_lock()
        garbage.itself = garbage
        places.append(locked)
        references.append(weakref.ref(garbage, lambda reference: leave()))

    def litter_and_work():
        litter()
        gc.set_threshold(1 + len(places) % 23)
        try:
            cycle(lock)
        finally:
            gc.set_threshold(*before)

    places, references, before = [], [], gc.get_threshold()
    lock = Lock("same", timeout=PATIENCE)
    for _ in range(300):
        litter_and_work()
    gc.collect()
    for locked in places:
        eventually(lambda: not locked())  # noqa: B023 - called at once
    assert is_free(lock)


@pytest.mark.parametrize("forget", ["close", "finalize"])
def test_a_handler_may_forget_what_has_a_lock(inside, forget):
    """A generator that is closed for that, or a callback, gets no error across."""

    def rows():
        with Lock("stock"):
            yield

    def handle(number, frame):
        left.clear()

    left = [rows()]
    if forget == "close":
        next(left[0])
    else:
        left = [Forgotten()]
        weakref.finalize(left[0], held_stock())
    before = signal.signal(signal.SIGALRM, handle)
    try:
        inside(lambda: signal.raise_signal(signal.SIGALRM))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not left
    eventually(lambda: not Lock("stock").locked())


class Forgotten:
    pass


def held_stock():
    lock = Lock("stock")
    lock.acquire()
    return lock.release


def test_in_a_destructor_all_else_is_refused(inside, monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda error: unraisable.append(error.exc_type))
    holders = [Holder(Lock("stock").acquire)]
    inside(holders.clear)
    assert unraisable == [ReentrantCall]
    assert not Lock("stock").locked()
