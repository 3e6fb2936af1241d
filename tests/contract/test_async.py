"""In an event loop: nothing blocks it, and what would block is refused with the way out."""

import asyncio
import contextlib
import threading
from concurrent.futures import Future

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from distlock import Lock
from tests.contract.actors import PATIENCE


@pytest.fixture
def task(actor):
    return actor("task")


CALLS = {
    "acquire": lambda lock: lock.acquire(),
    "release": lambda lock: lock.release(),
    "verify": lambda lock: lock.verify(),
    "locked": lambda lock: lock.locked(),
    "info": lambda lock: lock.info(),
    "force_release": lambda lock: lock.force_release(1),
    "with": lambda lock: lock.__enter__(),
    "atomic": lambda lock: lock.atomic().__enter__(),
}


@pytest.mark.every_day_on("local", "sqlite")
@pytest.mark.parametrize("call", CALLS)
def test_what_would_block_the_loop_is_refused_as_by_the_orm(task, using, name, call):
    lock = Lock(name, using=using)

    async def attempt():
        return CALLS[call](lock)

    with pytest.raises(SynchronousOnlyOperation):
        task.call(attempt).result(PATIENCE)
    assert lock.locked() is False


@pytest.mark.parametrize("call", ["acquire", "release", "verify", "locked", "info"])
def test_the_refusal_names_the_async_twin(task, using, name, call):
    async def attempt():
        CALLS[call](Lock(name, using=using))

    with pytest.raises(SynchronousOnlyOperation, match=f"a{call}"):
        task.call(attempt).result(PATIENCE)


def test_a_decorated_plain_function_is_refused_in_a_loop(task, using, name):
    ran = []

    @Lock(name, using=using)
    def work():
        ran.append(1)

    async def attempt():
        work()

    with pytest.raises(SynchronousOnlyOperation):
        task.call(attempt).result(PATIENCE)
    assert not ran


def test_what_asks_nobody_may_be_used_anywhere(task, using, name):
    async def work():
        async with Lock(name, using=using) as lock:
            lock.check()
            return lock.held, lock.token > 0, lock.remaining > 0, "held" in repr(lock)

    assert task.call(work).result(PATIENCE) == (True, True, True, True)


def test_the_loop_runs_on_while_a_task_waits(task, third, using, name):
    """The holder leaves only after the loop has ticked a hundred times meanwhile."""
    held = third.take(name)
    ticked = Future()

    async def work():
        waiting = asyncio.create_task(Lock(name, using=using).aacquire())
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        ticked.set_result(True)
        return await waiting

    got = task.call(work)
    assert ticked.result(PATIENCE)
    held.release()
    assert got.result(PATIENCE) is True


@pytest.mark.every_day_on("local", "mariadb", "etcd")
def test_many_waiting_tasks_do_not_keep_a_free_lock_from_others(task, third, using, name):
    """More of them than there are threads for asyncio."""
    held = [third.take(f"{name}:{number}") for number in range(40)]

    async def work():
        waiting = [
            asyncio.create_task(Lock(f"{name}:{number}", using=using).aacquire())
            for number in range(40)
        ]
        await asyncio.sleep(0.05)
        for number in range(10):
            async with Lock(f"{name}:free:{number}", using=using, timeout=PATIENCE):
                pass
        assert not any(each.done() for each in waiting)
        return waiting

    waiting = task.call(work).result(PATIENCE)
    for lock in held:
        lock.release()

    async def all_of():
        return await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)

    assert task.call(all_of).result(PATIENCE) == [True] * 40


def test_tasks_that_wait_do_not_occupy_the_thread_of_sync_to_async(task, third, using, name):
    """The holder leaves when synchronous code of the same request says so."""
    held = third.take(name)
    asked = threading.Event()

    async def work():
        waiting = asyncio.create_task(Lock(name, using=using).aacquire())
        await asyncio.sleep(0.05)
        await sync_to_async(asked.set)()
        return await waiting

    got = task.call(work)
    assert asked.wait(PATIENCE)
    held.release()
    assert got.result(PATIENCE) is True


def test_tasks_exclude_each_other(task, using, name):
    inside, seen = [], []

    async def work():
        async with Lock(name, using=using):
            inside.append(1)
            seen.append(len(inside))
            await asyncio.sleep(0)
            inside.pop()

    async def all_of():
        await asyncio.gather(*[work() for _ in range(20)])

    task.call(all_of).result(PATIENCE)
    assert seen == [1] * 20


def test_synchronous_code_called_from_a_loop_can_use_locks(task, using, name):
    def work():
        with Lock(name, using=using) as lock:
            return lock.held

    async def call():
        return await sync_to_async(work)()

    assert task.call(call).result(PATIENCE) is True


def test_asynchronous_code_called_from_a_thread_can_use_locks(third, using, name):
    async def work():
        async with Lock(name, using=using) as lock:
            return lock.held

    assert third.call(async_to_sync(work)).result(PATIENCE) is True
    assert third.tries(name)


def test_each_loop_has_its_own_tasks_and_all_share_the_lock(using, name):
    inside, seen = [], []

    async def work():
        for _ in range(5):
            async with Lock(name, using=using):
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert seen == [1] * 20


def test_a_loop_that_died_while_waiting_does_not_stop_the_others(using, third, fourth, name):
    """Its task is in line, but there is no loop any more that could be woken."""
    loop = asyncio.new_event_loop()

    async def start():
        waiting = loop.create_task(Lock(name, using=using).aacquire())
        await asyncio.sleep(0.02)
        return waiting

    held = third.take(name)
    waiting = loop.run_until_complete(start())
    behind = fourth.lock(name).start("acquire")
    loop.close()
    held.release()
    assert behind.result(PATIENCE) is True
    with contextlib.suppress(RuntimeError):
        waiting.get_coro().close()
    waiting._log_destroy_pending = False
