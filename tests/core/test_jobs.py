"""Jobs of executors: to acquire as a whole job, jobs that a task awaits, and circles of those."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from distlock import Lock, LockDeadlock, LockError, LockNotHeld
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


async def enters():
    async with Lock("stock"):
        pass


async def grouped():
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(enters())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


@pytest.mark.parametrize(
    "child",
    [
        grouped,
        lambda: asyncio.gather(asyncio.to_thread(enter), asyncio.sleep(0)),
        lambda: asyncio.gather(enters(), asyncio.sleep(0)),
        lambda: asyncio.create_task(enters()),
        lambda: asyncio.create_task(asyncio.to_thread(enter)),
        lambda: asyncio.wait({asyncio.create_task(enters())}),
    ],
    ids=["a group", "gathered jobs", "gathered tasks", "a task", "a job of a task", "wait"],
)
async def test_a_task_that_awaits_another_one_which_waits_for_its_lock_is_told(child):
    async with asyncio.timeout(PATIENCE), Lock("stock"):
        with pytest.raises(LockDeadlock):
            done, *_ = await child() or [None]
            await done.pop()
    assert not await Lock("stock").alocked()


async def test_of_the_jobs_that_a_task_awaits_together_one_at_a_time_is_inside():
    inside, most = [], []

    def save():
        with Lock("stock") as lock:
            inside.append(lock.token)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()
            return lock.token

    with ThreadPoolExecutor(3) as pool:
        for wait in (asyncio.gather, lambda *jobs: asyncio.wait(jobs)):
            async with Lock("stock") as lock:
                jobs = [asyncio.get_running_loop().run_in_executor(pool, save) for _ in range(3)]
                await wait(*jobs)
                assert {job.result() for job in jobs} == {lock.token}
    assert most == [1] * 6


async def test_a_job_that_must_not_wait_for_another_one_is_refused():
    entered, leave = threading.Event(), threading.Event()

    def first():
        with Lock("stock"):
            entered.set()
            leave.wait(PATIENCE)

    def second():
        entered.wait(PATIENCE)
        try:
            return tries(), Lock("stock").acquire(timeout=0.1)
        finally:
            leave.set()

    async with Lock("stock"):
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(None, job) for job in (first, second)]
        assert await asyncio.gather(*jobs) == [None, (False, False)]


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0.3},
        {"return_when": asyncio.FIRST_COMPLETED},
        {"return_when": asyncio.FIRST_EXCEPTION},
    ],
)
async def test_a_job_waits_for_a_task_that_may_go_on_before_it(options):
    async with Lock("stock") as lock:
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(None, enter)
        await asyncio.wait([job, asyncio.ensure_future(fails_soon())], **options)
        assert not job.done()
        token = lock.token
    assert await asyncio.wait_for(job, PATIENCE) > token


async def fails_soon():
    await asyncio.sleep(0.2)
    raise ValueError


async def test_a_task_that_was_interrupted_does_not_enter_again_while_its_job_is_inside():
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def work():
        with Lock("stock"):
            entered.set()
            leave.wait(PATIENCE)
            left.set()

    async with Lock("stock"):
        job = asyncio.get_running_loop().run_in_executor(None, work)
        waiting = asyncio.shield(job)
        asyncio.create_task(asyncio.to_thread(entered.wait)).add_done_callback(
            lambda _: waiting.cancel()
        )
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not await Lock("stock").aacquire(blocking=False)
    leave.set()
    async with Lock("stock", timeout=PATIENCE):
        assert left.is_set()


async def test_readers_among_the_jobs_of_a_reader_are_inside_together():
    both = threading.Barrier(2)

    def read():
        with RWLock("stock").reader():
            both.wait(PATIENCE)

    async with RWLock("stock").reader():
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[loop.run_in_executor(None, read) for _ in range(2)])


async def test_a_job_of_a_reader_cannot_become_the_writer():
    def write():
        RWLock("stock").writer().acquire(blocking=False)

    async with RWLock("stock").reader() as reader:
        with pytest.raises(LockDeadlock):
            await asyncio.to_thread(write)
        assert reader.held


async def test_a_job_takes_seats_of_its_own():
    def work():
        with Semaphore("stock", 3):
            return Semaphore("stock", 3).info().taken, Semaphore("stock", 3, n=2).locked()

    async with Semaphore("stock", 3):
        assert await asyncio.to_thread(work) == (2, True)


async def test_a_piece_of_work_inside_a_job_holds_what_the_job_has_entered():
    def work():
        with Lock("stock"), activity("inner"):
            return Lock("stock").held

    async with Lock("stock"):
        assert await asyncio.to_thread(work)


async def test_a_job_does_not_enter_the_hold_of_an_owner_whose_name_it_does_not_say():
    async with Lock("stock", owner="order-1") as lock:
        assert await asyncio.to_thread(tries) is False
        assert await asyncio.to_thread(lambda: tries(owner="order-1")) is True
        assert lock.held
    assert await Lock("stock").aacquire(blocking=False)


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


async def left_to_its_job(lock):
    """Let a job enter what this task holds, and leave it; return the job and what ends it."""
    entered, leave = threading.Event(), threading.Event()

    def work():
        with Lock(lock.name) as inner:
            entered.set()
            leave.wait(PATIENCE)
            return inner.held

    async with lock:
        job = asyncio.get_running_loop().run_in_executor(None, work)
        waiting = asyncio.shield(job)
        asyncio.create_task(asyncio.to_thread(entered.wait, PATIENCE)).add_done_callback(
            lambda _: waiting.cancel()
        )
        with pytest.raises(asyncio.CancelledError):
            await waiting
    return job, leave.set


async def test_a_task_that_has_left_its_lock_to_a_job_does_not_hold_it():
    lock = Lock("stock")
    job, end = await left_to_its_job(lock)
    assert not lock.held
    with pytest.raises(LockNotHeld):
        lock.check()
    with pytest.raises(LockNotHeld):
        await lock.arelease()
    assert not await asyncio.create_task(Lock("stock").aacquire(blocking=False))
    end()
    assert await job
    assert await lock.aacquire(timeout=PATIENCE)


@pytest.mark.parametrize("who", [wait_for, lambda: asyncio.create_task(wait_for())])
async def test_it_and_its_child_task_wait_for_the_job(who):
    job, end = await left_to_its_job(Lock("stock"))
    asyncio.get_running_loop().call_later(0.3, end)
    async with asyncio.timeout(PATIENCE):
        assert await who()
        assert await job


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


def by_async_to_sync(call):
    return sync_to_async(async_to_sync(call))()


def by_run(call):
    return asyncio.to_thread(lambda: asyncio.run(call()))


@pytest.mark.parametrize("outer", [by_async_to_sync, by_run])
@pytest.mark.parametrize("inner", [by_async_to_sync, by_run, lambda call: call()])
async def test_so_is_one_that_its_own_task_waits_for_through_jobs(outer, inner):
    async def middle():
        return await inner(wait_for)

    async with asyncio.timeout(PATIENCE), Lock("stock"):
        with pytest.raises(LockDeadlock):
            await outer(middle)


def test_a_task_waits_for_a_job_of_the_thread_that_waits_for_both():
    entered = asyncio.Event()

    def work(loop):
        with Lock("stock"):
            loop.call_soon_threadsafe(entered.set)
            eventually(lambda: in_line("default", "stock") == 2)
            time.sleep(0.3)

    async def other():
        await entered.wait()
        return await wait_for()

    async def both():
        job = sync_to_async(work)(asyncio.get_running_loop())
        return await asyncio.gather(job, other())

    assert async_to_sync(both)() == [None, True]


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
