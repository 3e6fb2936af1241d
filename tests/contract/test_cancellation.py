"""A cancelled task waits no more, holds nothing, and can go on as if it had never asked."""

import asyncio
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from distlock import Lock, LockTimeout, LockUnavailable
from distlock.backends.background import MOST_THREADS
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually, in_line, waits


@pytest.fixture
def task(actor):
    return actor("task")


@pytest.fixture
def long(backend):
    """The longest lease there is, so that nothing is free again because its lease has ended."""
    return 3600 if backend.capabilities.lease_lengths else None


def cancelled(future):
    with pytest.raises(asyncio.CancelledError):
        future.result(PATIENCE)
    return True


def test_a_waiting_task_can_be_cancelled(task, third, name):
    third.take(name)
    lock = task.lock(name)
    waiting = lock.start("acquire")
    assert waits(waiting)
    task.cancel()
    assert cancelled(waiting)
    assert lock.held is False


def test_a_cancelled_task_does_not_get_the_lock_later(task, third, fourth, name):
    held = third.take(name)
    lock = task.lock(name)
    waiting = lock.start("acquire")
    assert waits(waiting)
    task.cancel()
    cancelled(waiting)
    held.release()
    assert fourth.lock(name).acquire(timeout=PATIENCE)
    assert lock.held is False


def test_a_cancelled_task_leaves_its_place_in_line(task, third, fourth, name):
    held = third.take(name)
    waiting = task.lock(name).start("acquire")
    assert waits(waiting)
    behind = fourth.lock(name).start("acquire")
    assert waits(behind, 0.02)
    task.cancel()
    cancelled(waiting)
    held.release()
    assert behind.result(PATIENCE) is True


def test_a_cancelled_task_can_ask_again(task, third, name):
    held = third.take(name)
    lock = task.lock(name)
    waiting = lock.start("acquire")
    assert waits(waiting)
    task.cancel()
    cancelled(waiting)
    again = lock.start("acquire")
    assert waits(again, 0.05)
    held.release()
    assert again.result(PATIENCE) is True
    lock.verify()


def test_a_task_that_was_cancelled_and_goes_on_waits_until_its_timeout(task, third, using, name):
    async def work():
        asyncio.current_task().cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await Lock(name, using=using).aacquire(timeout=0.1)

    third.take(name)
    assert task.call(work).result(PATIENCE) is False


def test_a_cancelled_task_can_leave_a_lock_it_held_before(task, third, name):
    mine = task.take(f"{name}:mine")
    third.take(name)
    waiting = task.lock(name).start("acquire")
    assert waits(waiting, 0.05)
    task.cancel()
    cancelled(waiting)
    mine.verify()
    mine.release()
    assert third.tries(f"{name}:mine")


def test_the_body_of_a_cancelled_task_ends_and_the_lock_is_free(task, third, using, name):
    async def work(inside):
        async with Lock(name, using=using):
            inside.set_result(True)
            await asyncio.Event().wait()

    from concurrent.futures import Future

    inside = Future()
    working = task.call(work, inside)
    inside.result(PATIENCE)
    task.cancel()
    cancelled(working)
    assert third.lock(name).acquire(timeout=PATIENCE)


def test_a_time_limit_of_asyncio_ends_the_wait(task, third, using, name):
    async def work():
        async with asyncio.timeout(0.1), Lock(name, using=using):
            raise AssertionError("the lock is someone else's")

    held = third.take(name)
    with pytest.raises(TimeoutError) as caught:
        task.call(work).result(PATIENCE)
    assert not isinstance(caught.value, LockTimeout)
    held.release()
    assert third.lock(name).acquire(timeout=PATIENCE)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_cancel_at_any_moment_leaves_nothing_behind(task, using, third, name, blocking, long):
    """Cancelled between asking and getting, again and again, a bit later each time."""
    lock = Lock(name, using=using, on_busy="wait" if blocking else "raise", lease=long)

    async def attempt(steps):
        taking = asyncio.create_task(take_and_leave())
        for _ in range(steps):
            await asyncio.sleep(0)
        taking.cancel()
        return await asyncio.gather(taking, return_exceptions=True)

    async def take_and_leave():
        async with lock:
            await asyncio.sleep(0)

    for steps in [*range(12), 20, 40, 80, 160, 320, 640]:
        task.call(attempt, steps).result(PATIENCE)
    after = third.lock(name)
    assert after.acquire(timeout=PATIENCE)
    after.verify()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_request_that_is_sent_after_the_cancel_takes_nothing(
    task, using, third, name, blocking, long, busy_threads
):
    """All threads that speak for asyncio are busy, until long after the task has given up."""
    lock = Lock(name, using=using, on_busy="wait" if blocking else "raise", lease=long)

    async def attempt():
        taking = asyncio.create_task(lock.aacquire())
        for _ in range(3):
            await asyncio.sleep(0)
        taking.cancel()
        return await asyncio.gather(taking, return_exceptions=True)

    task.call(attempt).result(PATIENCE)
    eventually(cleaned_up)
    busy_threads.free.set()
    # All threads are free at one time: what they were told before is over.
    occupied = task.call(busy_threads.occupy, threading.Barrier(MOST_THREADS))
    assert len(occupied.result(PATIENCE)) == MOST_THREADS
    eventually(lambda: third.tries(name))


@pytest.fixture
def busy_threads(backend, actor):
    """Let all threads that ask this backend for tasks wait until they are set ``free``."""

    async def occupy(until):
        calls = [backend.calls.run(lambda _: until.wait(PATIENCE)) for _ in range(MOST_THREADS)]
        return await asyncio.gather(*calls)

    free = threading.Event()
    occupied = actor("task").call(occupy, free)
    yield SimpleNamespace(free=free, occupy=occupy)
    free.set()
    with suppress(LockUnavailable):  # it took longer than this backend gives its server
        occupied.result(PATIENCE)


def test_a_cancel_while_leaving_still_frees_the_lock(task, using, third, name):
    lock = Lock(name, using=using)

    async def attempt(steps):
        taken = asyncio.Event()
        leaving = asyncio.create_task(take_and_leave(taken))
        await taken.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        return await asyncio.gather(leaving, return_exceptions=True)

    async def take_and_leave(taken):
        async with lock:
            taken.set()

    for steps in (0, 1, 2, 3, 5, 8, 13, 50, 200):
        task.call(attempt, steps).result(PATIENCE)
        after = third.lock(name)
        assert after.acquire(timeout=PATIENCE)
        after.release()


def test_a_loop_that_is_closed_leaves_no_one_waiting(using, third, fourth, name):
    async def give_up():
        waiting = asyncio.create_task(Lock(name, using=using).aacquire())
        while in_line(using, name) < 2:
            await asyncio.sleep(0.005)
        return waiting  # asyncio.run() cancels it

    held = third.take(name)
    asyncio.run(give_up())
    eventually(lambda: in_line(using, name) == 1)
    held.release()
    assert fourth.lock(name).acquire(timeout=PATIENCE)


@pytest.mark.shared
def test_a_task_is_cancelled_while_it_waits_for_another_process(actor, task, third, name):
    process = actor("process")
    held = process.take(name)
    lock = task.lock(name)
    waiting = lock.start("acquire")
    assert waits(waiting)
    task.cancel()
    cancelled(waiting)
    held.release()
    after = third.lock(name)
    assert after.acquire(timeout=PATIENCE)
    after.verify()
