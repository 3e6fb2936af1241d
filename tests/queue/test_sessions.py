"""How many sessions and threads waiting costs."""

import asyncio
import os
import threading

import pytest

from distlock import Lock, locks
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.forks import WAYS
from tests.contract.watch import eventually
from tests.queue.engine import set_pace

NAMES = [f"one of many:{number}" for number in range(100)]


def hold_many():
    """Hold a hundred locks until told otherwise."""
    held = [Lock(name) for name in NAMES]
    for lock in held:
        lock.acquire()
    write_line("held")
    read_line()
    for lock in held:
        lock.release()
    write_line("released")
    read_line()


async def take_all(engine, holder):
    tasks = [asyncio.create_task(Lock(name).aacquire()) for name in NAMES]
    await asyncio.sleep(1)
    seen, threads = [], []
    while len(threads) < 10:
        seen.append(await asyncio.to_thread(engine.line))
        if any(seen):
            threads.append(threads_that_wait())
        await asyncio.sleep(0.2)
    holder.tell()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    return max(seen), min(threads)  # one that has nothing more to do stays for a second


def threads_that_wait():
    return sum(thread.name == "distlock-waiter" for thread in threading.enumerate())


@pytest.mark.slow
def test_a_hundred_tasks_wait_for_a_hundred_names(child, engine, using):
    holder = child(hold_many)
    assert holder.line() == "held"
    sessions, threads = asyncio.run(take_all(engine, holder))
    assert 0 < sessions <= 8
    assert 0 < threads <= 8
    locks.close_all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"waiters": 2}], ids=["two"])
def test_a_holder_gives_up_its_native_lock_for_one_who_waits(actor, engine, using, name, options):
    """Two sessions, both kept by holders, and a third name to wait for."""
    first = [actor().take(f"{name}:{number}") for number in range(3)]
    holders = [actor("thread").lock(f"{name}:{number}") for number in range(3)]
    waiting = []
    for number in range(2):
        waiting.append(holders[number].start("acquire"))
        engine.reaches_line(number + 1)
    for number in range(2):
        first[number].release()
        assert waiting[number].result(PATIENCE)
    assert engine.holding() == 2
    third = holders[2].start("acquire")
    eventually(lambda: len(locks[using].waits.sessions.kept) == 1)
    engine.reaches_line(2)
    assert not third.done()
    first[2].release()
    assert third.result(PATIENCE)
    for lock in holders:
        lock.verify()
        lock.release()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"waiters": 0}, {"wait": "poll"}], ids=["none", "poll"])
def test_without_sessions_to_wait_in(actor, engine, name, options):
    held = actor("thread").take(name)
    lock = actor().lock(name)
    waiting = lock.start("acquire")
    assert actor("task").lock(name).acquire(timeout=0.3) is False
    assert engine.line() == 0
    held.release()
    assert waiting.result(PATIENCE)


@pytest.mark.slow
def test_a_process_needs_three_sessions_at_the_most(actor, engine, name):
    before = engine.sessions()
    actor("thread").take(name)
    others = [actor().lock(name) for _ in range(3)]
    mine = engine.sessions() - before
    for number, lock in enumerate(others, 1):
        lock.start("acquire")
        engine.reaches_line(number)
    assert engine.sessions() - before - mine <= 3 * 3


def wait_in_gevent(name):
    lock = Lock(name)
    write_line("asks")
    lock.acquire()
    write_line("got", lock.token)
    lock.release()


@pytest.mark.every_day_on("postgresql")
def test_gevent_looks_now_and_then(child, actor, engine, name):
    """A greenlet that waits in a driver would keep all others from running."""
    held = actor("thread").take(name)
    patched = child(wait_in_gevent, name, gevent=True)
    assert patched.line() == "asks"
    assert actor("task").lock(name).acquire(timeout=0.3) is False
    engine.reaches_line(0)
    held.release()
    assert patched.line().startswith("got")


def fork_while_waiting(name, way):
    """Fork while another thread waits for a lock."""
    set_pace()
    lock = Lock(name)
    got = threading.Event()

    def wait():
        with lock:
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    write_line("waits")
    read_line()
    pid = WAYS[way]()
    if pid == 0:
        try:
            assert way != "os.fork" or threading.active_count() == 1
            with Lock(f"{name}:child", timeout=PATIENCE) as own:
                own.verify()
            assert Lock(name).acquire(timeout=0.2) is False
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    write_line("child", os.waitstatus_to_exitcode(status))
    read_line()
    assert got.wait(PATIENCE)
    thread.join()
    write_line("parent got it")


@pytest.mark.every_day_on("mariadb")
def test_fork_while_a_thread_waits(child, actor, engine, name, way):
    held = actor("thread").take(name)
    parent = child(fork_while_waiting, name, way)
    assert parent.line() == "waits"
    engine.reaches_line(1)
    parent.tell()
    assert parent.line() == "child 0", parent.errors
    engine.reaches_line(1)
    held.release()
    parent.tell()
    assert parent.line() == "parent got it"
