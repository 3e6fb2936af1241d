"""Tasks, and a database that does not answer: they are told in time, and nobody else waits."""

import asyncio
import gc
import logging
from contextlib import closing, suppress

import pytest
from django.db import connections

from distlock import Lock, LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.runtime.manager import manager
from tests.children import write_line
from tests.contract.actors import BRIEF, PATIENCE, answered
from tests.contract.watch import eventually, in_line, passed
from tests.databases import SERVERS

pytestmark = [pytest.mark.once, pytest.mark.parametrize("kind", SERVERS)]

#: Seconds beyond a limit that a loaded machine may take.
SLACK = 5.0
#: More tasks than there are threads that ask for them.
MANY = 50


@pytest.fixture
def answer_limit():
    return 10


async def tries(name, using, **how):
    """Try to take a lock that cannot be asked for; what became of that."""
    lock = Lock(name, using=using)
    try:
        if got := await lock.aacquire(**how or {"blocking": False}):
            await lock.arelease()
        return got
    except LockUnavailable as error:
        return error


async def all_try(name, using):
    """Let many tasks try to take a lock each."""
    return await asyncio.gather(*[tries(f"{name}:{each}", using) for each in range(MANY)])


def unavailable(results):
    return all(isinstance(result, LockUnavailable) for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("answer_limit", [4])
def test_all_tasks_are_told_of_a_silent_database_in_time(actor, using, server, kind, name):
    with Lock(name):
        pass
    server(kind).pause()
    began = clock()
    assert unavailable(actor("task").call(all_try, name, using).result(PATIENCE))
    assert clock() - began < 4 + SLACK


@pytest.mark.slow
def test_a_task_keeps_to_its_own_limit_while_others_hang(actor, using, server, kind, name):
    with Lock(name):
        pass
    server(kind).pause()
    others = actor("task").call(all_try, name, using)
    began = clock()
    task = actor("task").call(tries, f"{name}:mine", using, timeout=1)
    assert unavailable([task.result(PATIENCE)])
    assert clock() - began < 1 + SLACK
    assert not others.done()
    server(kind).resume()
    others.result(PATIENCE)


def test_a_silent_database_does_not_hold_up_the_tasks_of_another(
    actor, using, kind, server, backend_settings, settings, name
):
    other = "postgresql" if kind == "mariadb" else "mariadb"
    second = backend_settings(other, alias="second", OPTIONS={"timeout": PATIENCE})
    settings.DISTLOCK = {**settings.DISTLOCK, **second}
    server(other).pause()
    waiting = actor("task").call(all_try, name, "second")

    async def work():
        async with Lock(name, using=using, timeout=PATIENCE):
            return True

    assert actor("task").call(work).result(PATIENCE)
    assert not waiting.done()
    server(other).resume()
    waiting.result(PATIENCE)


@pytest.mark.slow
def test_locks_are_left_while_requests_for_others_hang(actor, using, database, name):
    """Somebody keeps the rows of many locks locked, which are free."""
    for each in range(MANY):
        with Lock(f"{name}:{each}"):
            pass
    held = actor("task").take(name)
    with closing(connections[database].copy()) as operator:
        operator.set_autocommit(False)
        with operator.cursor() as cursor:
            cursor.execute("SELECT * FROM database_lock WHERE owner = '' FOR UPDATE")
        waiting = actor("task").call(all_try, name, using)
        passed(0.2)
        held.release()
        assert not waiting.done()
        operator.rollback()
    waiting.result(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("answer_limit", [20])
def test_a_grant_that_came_late_is_renewed_within_the_callers_limit(proxied, kind, using, name):
    network = proxied(kind)
    with Lock(name, using=using):
        pass
    late = network.delay(name.encode())
    renewed = network.forget(b"UPDATE database_lock SET expires_at")

    def deliver():
        assert late.kept_back.wait(PATIENCE)
        passed(2.2)  # more than a third of the lease
        late.end()
        assert renewed.wait(PATIENCE)
        network.silence()  # for what is sent on another connection, too

    began = clock()
    with closing(Delivery(deliver)), pytest.raises(LockUnavailable):
        Lock(name, using=using, lease=6).acquire(timeout=5)
    assert clock() - began < 5 + SLACK


@pytest.mark.parametrize("who", ["thread", pytest.param("task", marks=pytest.mark.slow)])
@pytest.mark.every_day_on("mariadb")
def test_a_grant_that_came_late_stays_for_at_least_its_time(actor, proxied, kind, using, who, name):
    network = proxied(kind)
    with Lock(name, using=using):
        pass
    late = network.delay(name.encode())

    def deliver():
        assert late.kept_back.wait(PATIENCE)
        passed(2.2)  # more than a third of the lease
        late.end()

    lock = actor(who).lock(name, lease=6, renew=False, at_least=600)
    with closing(Delivery(deliver)):
        assert lock.acquire(blocking=False)
    assert lock.info().remaining > 300


@pytest.mark.parametrize("who", ["thread", "task"])
@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.2}], ids=["once", "briefly"])
def test_two_of_one_name_who_ask_at_once_both_get_it(
    actor, proxied, kind, using, who, how, name, monkeypatch
):
    monkeypatch.setattr("distlock.backends.background.LAST_ANSWER", PATIENCE)
    network = proxied(kind)
    with Lock(name, using=using):
        pass
    late = network.delay(name.encode())
    first, second = (actor(each).lock(name, owner="order-42") for each in ("thread", who))
    got = first.start("acquire", timeout=PATIENCE)
    assert late.kept_back.wait(PATIENCE)
    joins = second.start("acquire", **how)
    passed(0.3)
    late.end()
    assert got.result(PATIENCE) is True
    assert joins.result(PATIENCE) is True
    assert first.token == second.token


@pytest.mark.parametrize("who", ["thread", "task"])
@pytest.mark.every_day_on("postgresql")
def test_two_of_one_name_who_ask_for_a_held_lock_are_told_so(actor, kind, using, who, name):
    actor("process").take(name)
    first, second = (actor(each).lock(name, owner="order-42") for each in ("thread", who))
    first.start("acquire")
    eventually(lambda: in_line(using, name, "@order-42") == 1)
    assert second.acquire(blocking=False) is False
    assert answered(lambda: second.acquire(timeout=BRIEF)) is False


class Delivery:
    """Something done on a thread of its own until it is closed."""

    def __init__(self, call):
        from threading import Thread

        self._thread = Thread(target=call)
        self._thread.start()

    def close(self):
        self._thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("answer_limit", [4])
@pytest.mark.parametrize("what", ["acquire", "release"])
def test_a_failure_that_a_cancelled_task_does_not_wait_for_is_not_logged(
    what, using, server, kind, caplog, name
):
    async def use(lock, ready, silent):
        if what == "release":
            await lock.aacquire()
        ready.set()
        await silent.wait()
        await (lock.aacquire() if what == "acquire" else lock.arelease())

    async def give_up():
        async with Lock(f"{name}:before", using=using):
            pass
        ready, silent = asyncio.Event(), asyncio.Event()
        asking = asyncio.create_task(use(Lock(name, using=using, lease=60), ready, silent))
        await ready.wait()
        server(kind).pause()
        silent.set()
        await asyncio.sleep(0.1)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        del asking
        # Whatever was asked before this has failed when this has.
        assert unavailable([await tries(f"{name}:later", using)])
        await asyncio.sleep(0.1)
        gc.collect()

    gc.collect()  # tasks of earlier tests
    caplog.clear()
    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(give_up())
    server(kind).resume()
    assert "never retrieved" not in caplog.text


async def stands_in_line(using, name):
    while in_line(using, name) < 2:  # behind the holder
        await asyncio.sleep(0.001)


def forsake(using, name):
    """Close an event loop between the moment in which a task's turn comes and its going on."""
    lock = Lock(name, using=using)
    lock.acquire()
    loop = asyncio.new_event_loop()
    manager().forsaken = loop.create_task(Lock(name, using=using).aacquire())
    loop.run_until_complete(stands_in_line(using, name))
    lock.release()
    loop.close()
    write_line(lock.acquire(timeout=PATIENCE / 2))
    lock.release()


def test_a_task_whose_loop_was_closed_keeps_nobody_out(child, using, kind, name):
    process = child(forsake, using, name)
    assert process.line() == "True"
    process.finish()  # although what is left of the task is only collected then


def give_up_and_end(using, name):
    """Ask for many locks, give up soon, and end."""

    async def ask():
        with suppress(TimeoutError):
            await asyncio.wait_for(all_try(name, using), 0.5)

    asyncio.run(ask())
    write_line("over")


def test_a_process_ends_although_its_database_is_silent(child, using, server, kind, name):
    assert locks[using].inspect(name)
    server(kind).pause()
    process = child(give_up_and_end, using, name)
    assert process.line() == "over"
    began = clock()
    process.finish()
    assert clock() - began < 2 + SLACK
