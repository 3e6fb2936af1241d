"""Whoever stops waiting leaves at once, and nothing behind."""

import asyncio
import itertools
import os
import signal
import threading
from functools import partial

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.backends.database import wait_manager
from distlock.backends.database.wait_session import WaitSessionPool
from distlock.backends.database.waiter import Waiter
from distlock.types.lease import State
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually, waits
from tests.core.interrupting import interrupted
from tests.databases import ALIASES
from tests.queue.engine import unhurried


@pytest.fixture
def held(actor, name):
    """The lock, held by another process."""
    return actor().take(name)


def nobody_waits(engine):
    """Return whether no native lock is held or waited for, and no thread waits here."""
    engine.reaches_line(0)
    return no_thread_waits()


def no_thread_waits():
    """Return whether there is no thread here that would wait in a server."""
    eventually(
        lambda: (
            not any(
                thread.name in ("distlock-waiter", "distlock-stall-monitor")
                for thread in threading.enumerate()
            )
        )
    )
    return True


@pytest.mark.slow
@pytest.mark.parametrize("what", ["thread", "task", "process"])
def test_when_the_time_is_up(held, actor, engine, name, what):
    assert actor(what).lock(name).acquire(timeout=0.3) is False
    assert nobody_waits(engine)


@pytest.mark.slow
def test_an_interrupt_at_any_moment_of_the_way_in(held, engine, name):
    for moment in itertools.count(1):
        wait = partial(Lock(name).acquire, timeout=3)
        if not interrupted(wait, moment, code=wait_manager.__file__):
            break
    assert moment > 5, "the interrupts did not reach the code"
    assert nobody_waits(engine)


def test_whoever_stands_behind_others(held, actor, engine, name):
    first = actor().lock(name).start("acquire")
    engine.reaches_line(1)
    assert actor("thread").lock(name).acquire(timeout=0.3) is False
    engine.reaches_line(1)
    held.release()
    assert first.result(PATIENCE)


@pytest.mark.every_day_on("mariadb")
def test_a_holder_whose_request_the_server_carried_out_once_more(held, actor, engine, name):
    """The hold is the same, whatever has become of its token."""
    lock = actor("thread").lock(name)
    waiting = lock.start("acquire")
    engine.reaches_line(1)
    held.release()
    assert waiting.result(PATIENCE)
    engine.server.execute("UPDATE database_lock SET token = token + 1")
    lock.verify()
    lock.release()
    assert nobody_waits(engine)


def test_an_interrupted_process(held, actor, engine, name):
    process = actor()
    waiting = process.lock(name).start("acquire")
    engine.reaches_line(1)
    process.child.signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        waiting.result(PATIENCE)
    assert nobody_waits(engine)


@pytest.mark.every_day_on("mariadb")
def test_a_cancelled_task(held, actor, engine, name):
    task = actor("task")
    waiting = task.lock(name).start("acquire")
    engine.reaches_line(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        waiting.result(PATIENCE)
    assert nobody_waits(engine)


def test_a_process_that_is_killed(held, actor, engine, name):
    """The server notices by itself, and never grants the lock to the dead."""
    first, second = actor(), actor()
    first.lock(name).start("acquire")
    engine.reaches_line(1)
    in_line = second.lock(name).start("acquire")
    engine.reaches_line(2)
    first.end()
    engine.reaches_line(1)
    held.release()
    assert in_line.result(PATIENCE)


@unhurried
def test_one_killed_in_the_middle_of_the_line(held, actor, engine, name):
    processes = [actor() for _ in range(3)]
    waiting = []
    for number, process in enumerate(processes, 1):
        waiting.append(process.lock(name).start("acquire"))
        engine.reaches_line(number)
    processes[1].end()
    engine.reaches_line(2)
    held.release()
    assert waiting[0].result(PATIENCE)
    processes[0].leave().result(PATIENCE)
    assert waiting[2].result(PATIENCE)


def task_in_line(engine, waiting):
    """Return an event loop of its own, at rest, and a task of it that stands in the queue."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(waiting)
    while engine.line() < 1:
        loop.run_until_complete(asyncio.sleep(0.01))
    return loop, task


@pytest.mark.every_day_on("mariadb")
def test_an_event_loop_that_is_closed_while_a_task_waits(held, engine, using, name):
    loop, task = task_in_line(engine, Lock(name).aacquire())
    loop.close()
    held.release()
    assert nobody_waits(engine)
    eventually(lambda: locks[using].inspect(name).state is State.FREE)
    task._log_destroy_pending = False
    task.get_coro().close()


@pytest.mark.every_day_on("postgresql")
def test_a_task_that_is_dropped_unfinished(held, engine, using, name):
    waiting = Lock(name).aacquire()
    loop, task = task_in_line(engine, waiting)
    task._log_destroy_pending = False
    waiting.close()
    assert nobody_waits(engine)
    loop.close()


@pytest.mark.every_day_on("postgresql")
def test_an_event_loop_that_is_stopped_for_good(held, engine, using, name):
    """Nobody fetches the lock that was granted: when its lease ends, nothing is left of it."""
    loop, task = task_in_line(engine, Lock(name, lease=1).aacquire())
    held.release()
    eventually(lambda: locks[using].inspect(name).state is not State.HELD)
    assert nobody_waits(engine)
    eventually(lambda: locks[using].inspect(name).state is State.FREE)
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


@pytest.mark.every_day_on("mariadb")
def test_one_who_was_told_of_a_failure_while_its_session_was_opened(
    held, actor, engine, using, name, monkeypatch
):
    """Nobody could hang up on it: it must not begin to wait behind others."""
    first = actor().lock(name).start("acquire")
    engine.reaches_line(1)
    take = WaitSessionPool.take

    def open_and_fail(sessions):
        session = take(sessions)
        for waiter in locks[using].waits.waiters:
            waiter.fail(LockUnavailable("the database does not answer"))
        return session

    monkeypatch.setattr(WaitSessionPool, "take", open_and_fail)
    with pytest.raises(LockUnavailable):
        Lock(name).acquire(timeout=PATIENCE)
    assert no_thread_waits()
    held.release()
    assert first.result(PATIENCE)


@unhurried
def test_a_grant_that_comes_too_late_is_given_back(held, actor, engine, using, name, monkeypatch):
    """Nobody waits any more, but the server has not been told when the lock becomes free."""
    asked = []
    wake = Waiter.wake
    monkeypatch.setattr(Waiter, "wake", lambda *args: asked.append(args))
    first, late = actor().lock(name), actor("task")
    got = first.start("acquire")
    engine.reaches_line(1)
    waiting = late.lock(name, lease=3600).start("acquire")
    engine.reaches_waiting(1)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        waiting.result(PATIENCE)
    eventually(cleaned_up)
    waiter, reason = eventually(
        lambda: next((call for call in asked if call[0].claim.name == name), None)
    )
    engine.reaches_waiting(1)
    held.release()
    assert got.result(PATIENCE)
    first.release()
    engine.reaches_line(0)
    eventually(lambda: locks[using].inspect(name).state is State.FREE)
    assert Lock(name).acquire(blocking=False)
    Lock(name).release()
    monkeypatch.setattr(Waiter, "wake", wake)
    waiter.wake(reason)  # the cancel comes late, too
    assert nobody_waits(engine)


def test_late_cancels_do_not_disturb_the_next_one_who_waits(held, actor, engine, name):
    """One process after the other gives up and comes again, always in the same session."""
    lock = actor("thread").lock(name)
    for _ in range(20):
        assert lock.acquire(timeout=0.02) is False
    waiting = lock.start("acquire")
    assert waits(waiting)
    held.release()
    assert waiting.result(PATIENCE) is True
    lock.verify()


def refused(name):
    """Take the lock where no more threads can be had when its renewals need their first one."""
    start = threading.Thread.start

    def refusing(thread):
        if thread.name == "distlock-timers":
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refusing
    try:
        Lock(name, lease=60).acquire()
    except RuntimeError:
        write_line("refused")
    signal.pause()


def test_whoever_cannot_renew_for_want_of_threads(using, child, name):
    assert child(refused, name).line() == "refused"
    assert Lock(name).acquire(timeout=PATIENCE)


def interrupted_while_waiting(name, rounds):
    """Begin to wait again and again, each time interrupted at another moment."""
    lock = Lock(name)
    for number in range(rounds):
        timer = threading.Timer(0.001 * number, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            # Python drops what is raised where a weak reference's callback runs.
            while not lock.acquire(timeout=1) and timer.is_alive():
                pass
        except KeyboardInterrupt:
            timer.join()
    write_line("interrupted")
    if lock.acquire(timeout=PATIENCE):
        lock.verify()
        lock.release()
        write_line("got it")


@pytest.mark.slow
def test_interrupts_at_any_moment(held, child, engine, name):
    process = child(interrupted_while_waiting, name, 60)
    assert process.line() == "interrupted"
    engine.reaches_line(1)
    held.release()
    assert process.line() == "got it"
    process.finish()
    engine.reaches_line(0)


@unhurried
def test_a_session_that_was_given_up_takes_no_lock_for_nobody(actor, engine, kind, using, name):
    """It stands in the server's queue until that notices, and may come to its end before."""
    waiter = actor("task")
    with Lock(name, using=using):
        pass
    with engine.taken_by_hand(ALIASES[kind], name):
        waiting = waiter.lock(name, lease=3600).start("acquire")
        engine.reaches_waiting(1)
        (wait,) = locks[using].waits.waiters
        wait.session.hang_up()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            waiting.result(PATIENCE)
        eventually(cleaned_up)
    assert actor("thread").lock(name).acquire(timeout=PATIENCE / 2)
