"""Jobs of executors: to acquire as a whole job, jobs that a task awaits, and circles of those."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from distlock import Lock, LockDeadlock, LockError
from distlock.activity import activity
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, in_line
from tests.core.pieces_of_work import executor, thread_pool, to_async, to_thread, tries

pytestmark = pytest.mark.usefixtures("often_renewed")


# An acquire that is a whole job


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lock("stock").acquire,
        lambda: Lock("stock").__enter__,
        lambda: Semaphore("stock", 1).acquire,
        lambda: RWLock("stock").writer().acquire,
        lambda: MultiLock("stock", "other").acquire,
    ],
    ids=["lock", "with", "semaphore", "writer", "multilock"],
)
@pytest.mark.parametrize("way", [executor, thread_pool, to_thread, to_async])
def test_to_acquire_as_a_whole_job_is_refused(way, make):
    with way() as run, pytest.raises(LockError, match="aacquire"):
        run(make())
    assert tries()


@pytest.mark.parametrize("way", [executor, thread_pool, to_thread, to_async])
def test_a_decorated_function_may_be_a_whole_job(way):
    @Lock("stock")
    def work():
        return Lock("stock").held

    with way() as run:
        assert run(work)


def test_tasks_that_use_the_synchronous_api_through_an_executor_exclude_each_other():
    inside = worst = 0

    async def consumer():
        nonlocal inside, worst
        lock = Lock("stock", timeout=5)
        await sync_to_async(lambda: lock.acquire(blocking=False))()
        inside += 1
        worst = max(worst, inside)
        await asyncio.sleep(0)
        held = await sync_to_async(lambda: lock.held)()
        inside -= 1
        return held

    async def three():
        return await asyncio.gather(*[consumer() for _ in range(3)])

    assert async_to_sync(three)() == [False] * 3  # each job has ended with what it took


# Jobs that a task awaits


async def wait_for(name="stock"):
    async with Lock(name):
        return True


def enter(name="stock"):
    with Lock(name) as lock:
        return lock.token


@pytest.mark.parametrize("call", [lambda f: sync_to_async(f)(), asyncio.to_thread])
async def test_a_job_enters_what_the_task_holds_that_awaits_it(call):
    async with Lock("stock") as lock:
        token = lock.token
        assert await call(enter) == token
        assert lock.held
    assert not lock.held
    assert await Lock("stock").aacquire(blocking=False)


async def test_a_job_that_enters_without_a_limit_and_one_that_tries_both_get_in():
    async with Lock("stock"):
        assert await asyncio.to_thread(tries) is True
        assert await asyncio.to_thread(lambda: tries(timeout=PATIENCE)) is True


@pytest.mark.parametrize("kind", ["reader", "writer"])
async def test_it_enters_a_side_of_a_read_write_lock(kind):
    def save():
        with getattr(RWLock("stock"), kind)():
            return True

    async with RWLock("stock").writer():
        assert await asyncio.to_thread(save)


async def test_a_job_that_nobody_awaits_waits_for_the_task():
    async with Lock("stock") as lock:
        job = asyncio.create_task(asyncio.to_thread(enter))
        await asyncio.sleep(0.2)
        assert not job.done()
        token = lock.token
    assert await asyncio.wait_for(job, PATIENCE) > token


async def test_a_job_of_a_child_task_does_not_enter_what_its_parent_holds():
    async with Lock("stock"):
        child = asyncio.create_task(asyncio.to_thread(tries))
        await asyncio.sleep(0.2)
        assert await child is False


async def test_what_a_job_holds_by_entering_keeps_the_lock_when_the_task_was_cancelled():
    entered, leave = threading.Event(), threading.Event()

    def work():
        with Lock("stock"):
            entered.set()
            leave.wait(PATIENCE)

    async def hold():
        async with Lock("stock"):
            await asyncio.to_thread(work)

    task = asyncio.create_task(hold())
    assert await asyncio.to_thread(entered.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await Lock("stock").aacquire(blocking=False)
    leave.set()
    assert await Lock("stock").aacquire(timeout=PATIENCE)


# Circles


def test_a_task_that_waits_for_the_thread_that_runs_its_loop_is_told():
    with Lock("stock"), pytest.raises(LockDeadlock):
        asyncio.run(wait_for())


def test_another_task_of_its_loop_is_not():
    """The thread goes on when the loop ends."""
    with Lock("stock"):
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(wait_for())
        loop.run_until_complete(asyncio.sleep(0.3))
        assert not waiting.done()
    assert loop.run_until_complete(waiting)
    loop.close()


def test_a_task_that_waits_for_the_thread_that_waits_for_it_is_told():
    with Lock("stock"), pytest.raises(LockDeadlock):
        async_to_sync(wait_for)()


async def test_so_it_is_in_the_loop_of_a_server():
    def view():
        with Lock("stock"):
            async_to_sync(wait_for)()

    with pytest.raises(LockDeadlock):
        await sync_to_async(view)()


def test_a_circle_over_a_nested_piece_of_work_is_found():
    reached = threading.Event()

    def other():
        with Lock("b"):
            reached.set()
            with Lock("a"):
                return True

    with ThreadPoolExecutor(1) as pool, Lock("a"):
        job = pool.submit(other)
        assert reached.wait(PATIENCE)
        eventually(lambda: in_line("default", "a") == 2)
        with activity("inner"), pytest.raises(LockDeadlock):
            Lock("b").acquire()
        Lock("a").release()
        assert job.result(PATIENCE)
        Lock("a").acquire()
