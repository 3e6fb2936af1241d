"""An interrupt at any moment leaves neither a seat nor a place in the queue behind."""

import itertools
import threading
import uuid

import pytest

from distlock.recipes import RWLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.core.interrupting import interrupted
from tests.recipes.wrapping import in_thread, is_unused


def interrupted_everywhere(make, call, prepare=lambda lock: None, *, step=1):
    """Interrupt ``call(lock)`` at one moment after the other; yield the locks."""
    for moment in itertools.count(1, step):
        lock = make(uuid.uuid4().hex)
        prepare(lock)
        interrupt = interrupted(lambda: call(lock), moment)  # noqa: B023 - called at once
        yield lock
        if interrupt is None:
            assert moment > 50, "the interrupts did not reach the code"
            return


def nothing_is_left(locks):
    """Let go of what is still held; then nobody may be in, or in the queue."""
    left = []
    for lock in locks:
        while lock.held:
            lock.release()
        left.append(lock)
    for lock in left:
        eventually(lambda: is_unused(lock))  # noqa: B023 - called at once


MAKERS = [
    pytest.param(lambda name: Semaphore(name, 2), id="semaphore"),
    pytest.param(lambda name: Semaphore(name, 2, lease=600), id="own-lease"),
    pytest.param(lambda name: RWLock(name).writer(), id="writer"),
]


@pytest.mark.parametrize("make", MAKERS)
class TestInterrupts:
    def test_while_taking(self, local, make):
        nothing_is_left(interrupted_everywhere(make, lambda lock: lock.acquire()))

    def test_while_leaving(self, local, make):
        def take(lock):
            lock.acquire()

        nothing_is_left(interrupted_everywhere(make, lambda lock: lock.release(), take))

    def test_while_waiting_in_vain(self, local, make):
        """Joining the queue, waiting, and leaving it."""
        holders = []

        def held_by_another(lock):
            holder = make(lock.name)
            in_thread(lambda: holder.acquire(**all_of(holder)))()
            holders.append((holder, holder.info()))

        def locks():
            for lock in interrupted_everywhere(
                make, lambda lock: lock.acquire(timeout=0.001), held_by_another, step=3
            ):
                assert not lock.held
                (holder, info) = holders[-1]
                # Before the lease of the holder ends: then nobody would have to wait for a place.
                eventually(lambda: not holder.info().waiters, 20.0)  # noqa: B023 - called at once
                assert holder.force_release(info.token)
                yield lock

        nothing_is_left(locks())

    @pytest.mark.slow
    def test_while_waiting_and_being_served(self, local, make):
        def held_by_another(lock):
            taken = threading.Event()
            in_thread(_hold_until_someone_waits, make(lock.name), taken)
            assert taken.wait(PATIENCE)

        def wait(lock):
            lock.acquire(timeout=PATIENCE, **all_of(lock))

        nothing_is_left(interrupted_everywhere(make, wait, held_by_another))


def all_of(lock):
    """Return the arguments that ask for all seats."""
    return {"n": 2} if isinstance(lock, Semaphore) else {}


def _hold_until_someone_waits(lock, taken):
    with lock:
        taken.set()
        until = threading.Event()
        for _ in range(20):
            if lock.info().waiters:
                break
            until.wait(0.001)
