"""Each piece of work of a thread is an owner: a request, a job of an executor, what is marked."""

import asyncio
import gc
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.signals import request_finished, request_started
from django.test import Client

from distlock import Lock, LockDeadlock, LockError, LockNotHeld, locks
from distlock.activity import activity
from distlock.concurrency.clock import clock
from distlock.core.manager import manager
from distlock.recipes import MultiLock, RWLock, Semaphore
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, in_line
from tests.core.interrupting import interrupted, moments_of

LEFT = "ended without releasing lock 'stock'"


@pytest.fixture(autouse=True)
def backend(settings, nobody_left_in_line):
    settings.DISTLOCK = {
        "default": {
            "BACKEND": "distlock.backends.local.LocalBackend",
            "LEASE": 30,
            "RENEW": 0.05,
        }
    }
    yield locks["default"]
    for hold in manager.all():
        manager.free(hold)
    locks.close_all()


@pytest.fixture
def errors(caplog):
    """The errors that were logged so far."""
    caplog.set_level(logging.ERROR, "distlock")

    def get():
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    return get


def take(**options):
    assert Lock("stock", **options).acquire(blocking=False)


def take_for_short():
    take(lease=0.3)


def tries(**options):
    lock = Lock("stock", **options)
    if got := lock.acquire(blocking=False):
        lock.release()
    return got


@contextmanager
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(PATIENCE)


@contextmanager
def thread_pool():
    with ThreadPool(1) as pool:
        yield lambda call: pool.apply_async(call).get(PATIENCE)


@contextmanager
def marked():
    def run(call):
        with activity("a turn of a loop"):
            return call()

    yield run


@contextmanager
def requests():
    def run(call):
        request_started.send(None, environ={"PATH_INFO": "/", "REQUEST_METHOD": "GET"})
        try:
            return call()
        finally:
            request_finished.send(None)

    yield run


@contextmanager
def to_thread():
    with ThreadPoolExecutor(1) as pool:

        async def run(call):
            return await asyncio.get_running_loop().run_in_executor(pool, call)

        yield lambda call: asyncio.run(run(call))


@contextmanager
def to_async():
    async def run(call):
        return await sync_to_async(call)()

    yield async_to_sync(run)


@pytest.fixture(params=[executor, thread_pool, marked, requests, to_async])
def in_work(request):
    """``in_work(call)``: make a call as a piece of work, all of them on one thread."""
    with request.param() as run:
        yield run


def test_the_next_piece_of_work_does_not_enter_what_one_has_left_behind(in_work):
    in_work(take)
    assert in_work(tries) is False


def test_what_was_left_behind_is_free_when_its_lease_ends(in_work):
    in_work(take_for_short)
    eventually(lambda: in_work(tries))


def test_it_is_logged_once_with_the_line_where_it_was_acquired(in_work, errors):
    in_work(take_for_short)
    eventually(lambda: in_work(tries))
    (line,) = [line for line in errors() if LEFT in line]
    assert re.search(rf"acquired at core/{re.escape(__file__.rpartition('/')[2])}:\d+", line)


def test_a_waiter_gets_what_was_left_behind_as_anyone_would(in_work):
    in_work(take_for_short)
    assert in_work(lambda: Lock("stock").acquire(timeout=PATIENCE))


def test_who_releases_in_another_piece_of_work_is_told(in_work):
    in_work(take)
    with pytest.raises(LockNotHeld, match="each request, job of an executor"):
        in_work(Lock("stock").release)


def test_what_was_taken_and_left_is_no_error(in_work, errors):
    for _ in range(3):
        assert in_work(tries)
    gc.collect()
    assert errors() == []


def test_a_hold_is_renewed_while_its_piece_of_work_goes_on(in_work):
    def work():
        with Lock("stock", lease=0.3) as lock:
            ends = clock() + 0.7
            eventually(lambda: clock() > ends)
            return lock.held

    assert in_work(work)


def test_a_piece_of_work_enters_again_by_any_lock_object(in_work):
    def work():
        with Lock("stock"), Lock("stock") as lock:
            return lock.held

    assert in_work(work)


def test_a_named_owner_outlives_its_piece_of_work(in_work, errors):
    in_work(lambda: Lock("stock", owner="order-1").acquire())
    in_work(Lock("stock", owner="order-1").release)
    assert errors() == []


def test_a_hold_without_renewal_outlives_its_piece_of_work(in_work, errors):
    in_work(lambda: Lock("stock", renew=False).acquire())
    assert not tries()
    assert errors() == []


@pytest.mark.parametrize("make", ["semaphore", "reader", "writer"])
def test_seats_belong_to_a_piece_of_work_too(in_work, make):
    def lock():
        if make == "semaphore":
            return Semaphore("seats", 1)
        return getattr(RWLock("seats"), make)()

    in_work(lambda: lock().acquire())
    with pytest.raises(LockNotHeld):
        in_work(lambda: lock().release())


# Nested pieces


def test_a_nested_piece_of_work_enters_what_the_one_around_it_holds():
    with Lock("stock") as outer, activity("inner"):
        with Lock("stock") as inner:
            assert inner.token == outer.token
        assert inner.held
    assert not outer.held


def test_what_a_nested_piece_did_not_release_does_not_keep_the_outer_hold(errors):
    with activity("outer"):
        with Lock("stock") as lock:
            with activity("inner"):
                take()
            assert lock.held
            assert LEFT in errors()[0]
            assert "still held" in errors()[0]
        assert not lock.held
        assert tries()


def test_a_nested_piece_may_release_what_the_one_around_it_has_acquired():
    with activity("outer"):
        take()
        with activity("inner"):
            Lock("stock").release()
        assert tries()


def test_two_pieces_inside_one_exclude_each_other():
    async def inside(number):
        return await sync_to_async(enter if number else take)()

    def enter():
        return Lock("stock").acquire(blocking=False)

    async def both():
        return [await inside(0), await inside(1)]

    assert async_to_sync(both)() == [None, False]


def test_a_request_of_the_test_client_ends_only_what_was_begun_inside(settings, errors):
    settings.ROOT_URLCONF = "tests.core.urls"
    with Lock("stock") as lock:
        Client().get("/orders/7/")
        lock.check()
        assert LEFT not in "".join(errors())


def test_activities_of_one_thread_may_end_in_any_order():
    first, second = activity("first"), activity("second")
    first.__enter__()
    second.__enter__()
    take()
    first.__exit__(None, None, None)
    assert Lock("stock").held
    second.__exit__(None, None, None)
    assert not Lock("stock").held
    assert not tries()


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


# Circles


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


def test_an_interrupt_at_any_moment_of_an_activity_leaves_none_behind():
    before, last = current_owner(), moments_of(mark)
    for moment in range(1, last + 1):
        interrupted(mark, moment)
        assert current_owner() == before
    assert last > 10


def mark():
    with activity("a turn of a loop"):
        pass
