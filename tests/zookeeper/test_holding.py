"""A lock is held for as long as its owner lives and is in touch, and no longer."""

import asyncio
import os
import signal
import threading
import time

import pytest

from distlock import Lock, LockLost, LockNotHeld, locks
from distlock.backends.zookeeper.tree import UNBREAKABLE
from distlock.concurrency.clock import clock
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually
from tests.zookeeper.conftest import LONG_SESSION, SESSION
from tests.zookeeper.tree import session_of, watches

LEASE = SESSION * 2 / 3


@pytest.mark.slow
def test_holds_outlast_the_time_out_of_their_session(using, actor, name):
    """Of a thread, of a task, and of a task whose event loop is blocked for longer than that."""
    held = [actor(what, using).take(f"{name}:{n}") for n, what in enumerate(("thread", "task"))]
    busy = actor("task", using)
    held.append(busy.take(f"{name}:2"))

    async def block_the_loop():
        time.sleep(1.2 * LONG_SESSION)

    blocked = busy.call(block_the_loop)
    tries = actor("thread", "other")
    end = clock() + 1.4 * LONG_SESSION
    while clock() < end:
        assert not any(tries.tries(f"{name}:{n}") for n in range(3))
    blocked.result(PATIENCE)
    for lock in held:
        lock.verify()
        assert 0 < lock.remaining <= LONG_SESSION * 2 / 3


@pytest.mark.slow
def test_a_thread_that_ends_does_not_keep_its_lock(brief, actor, name):
    on_lost = Once()
    gone = actor("thread", brief)
    gone.take(name, on_lost=on_lost)
    gone.end()
    assert actor("thread", "other").lock(name).acquire(timeout=PATIENCE)
    on_lost.wait()


@pytest.mark.slow
def test_a_task_that_ends_does_not_keep_its_lock(brief, actor, name):
    asyncio.run(Lock(name, using=brief).aacquire())
    assert actor("thread", "other").lock(name).acquire(timeout=PATIENCE)


@pytest.mark.slow
def test_a_lock_that_is_had_by_an_event_loop_that_was_stopped_goes_to_the_next(
    brief, tree, actor, name
):
    """A task waits; its loop is stopped, for good or for a while, which nobody can tell."""
    loop = asyncio.new_event_loop()
    lock = Lock(name, using=brief)
    held = Lock(name, using="other")
    held.acquire()
    waiting = loop.create_task(lock.aacquire())
    while len(tree.queue(name)) < 2:
        loop.run_until_complete(asyncio.sleep(0.05))
    held.release()
    with Lock(name, using="third", timeout=PATIENCE) as third:
        token = third.token
    assert loop.run_until_complete(waiting) is True  # it runs again, and the task waits again
    assert tree.token(name) > token
    loop.close()


@pytest.mark.slow
def test_without_renewal_a_lock_is_left_after_its_lease(brief, actor, tree, name):
    on_lost = Once()
    lock = Lock(name, using=brief, renew=False, on_lost=on_lost)
    lock.acquire()
    token = lock.token
    assert 0 < lock.remaining <= LEASE
    assert actor("thread", "other").lock(name).acquire(timeout=PATIENCE)
    assert not lock.held
    on_lost.wait()
    assert tree.token(name) > token
    with pytest.raises(LockLost):
        lock.release()
    assert tree.token(name) > token


def hold(using, name):
    lock = Lock(name, using=using)
    lock.acquire()
    write_line("held", lock.token)
    read_line()


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_had_by_the_next(brief, child, actor, tree, name):
    holder = child(hold, brief, name)
    token = int(holder.line().split()[1])
    waiting = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: len(tree.queue(name)) == 2)
    holder.kill()
    assert waiting.result(PATIENCE)
    assert tree.token(name) > token


def test_a_process_that_ends_takes_its_locks_along_at_once(configure, long_sessions, child, name):
    """In a session that would last for a minute without it, and so longer than the wait."""
    using = configure(dict.fromkeys(("default", "other"), long_sessions.hosts), session_timeout=60)
    holder = child(hold, using, name)
    holder.line()
    holder.tell("end")
    holder.finish()
    assert Lock(name, using="other", timeout=PATIENCE).acquire()


def leave_in_a_hurry(using, name):
    with Lock(name, using=using) as lock:
        write_line("held", lock.token)
    os._exit(0)  # as the processes of multiprocessing do


@pytest.mark.slow
def test_a_lock_is_left_even_if_the_process_ends_in_the_same_moment(
    configure, long_sessions, child, name
):
    using = configure(dict.fromkeys(("default", "other"), long_sessions.hosts), session_timeout=60)
    for _ in range(5):
        child(leave_in_a_hurry, using, name).finish()
        with Lock(name, using="other", timeout=PATIENCE):
            pass


@pytest.mark.slow
def test_a_stopped_holder_has_lost_the_lock_the_moment_it_goes_on(brief, child, actor, name):
    stopped = child(look_at_once, brief, name)
    token = int(stopped.line().split()[1])
    stopped.signal(signal.SIGSTOP)
    successor = actor("thread", "other").lock(name)
    assert successor.acquire(timeout=PATIENCE)
    assert successor.token > token
    stopped.tell("go on")
    stopped.signal(signal.SIGCONT)
    assert stopped.finish() == ["False", "LockLost", "LockLost"]
    successor.verify()


def look_at_once(using, name):
    lock = Lock(name, using=using)
    lock.acquire()
    write_line("held", lock.token)
    read_line()
    write_line(lock.held)
    for look in (lock.check, lock.release):
        try:
            look()
        except LockLost:
            write_line("LockLost")


# Broken from outside


def test_a_break_is_noticed_while_the_work_goes_on(using, sent_events, name):
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
    lock.acquire()
    token = lock.token
    assert Lock(name, using="other").force_release(token)
    (lease,) = on_lost.wait()
    assert lease.token == token
    assert not lock.held
    with pytest.raises(LockLost, match="broken"):
        lock.release()
    assert "released" not in sent_events.words(name)


def test_after_its_first_renewal_a_hold_is_told_of_a_break(
    configure, zookeeper, tree, name, monkeypatch
):
    """Its node is watched, and need not be asked for again."""
    using = configure()
    on_lost = Once()
    with pytest.raises(LockLost, match="deleted"), Lock(name, using=using, on_lost=on_lost):
        session = session_of(locks[using])
        eventually(lambda: watches(zookeeper, session) == tree.queue(name))
        monkeypatch.setattr(locks[using], "renew", lambda leases, deadline: {})
        tree.kazoo.delete(tree.queue(name)[0])
        on_lost.wait()


def test_who_leaves_a_broken_lock_is_told_even_if_it_was_held_for_a_moment_only(using, name):
    """By another client, of which this one has heard nothing yet."""
    for _ in range(10):
        lock = Lock(name, using=using)
        lock.acquire()
        assert Lock(name, using="other").force_release(lock.token)
        with pytest.raises(LockLost):
            lock.release()


def test_of_leaving_and_breaking_one_comes_first_and_both_know_which(using, actor, name):
    lock = Lock(name, using=using)
    Lock(name, using="other").locked()  # is connected
    for _ in range(5):
        lock.acquire()
        breaking = actor("thread", "other").lock(name).start("force_release", lock.token)
        begun_at = clock()
        try:
            lock.release()
            left = True
        except LockLost:
            left = False
        # Who left it in time, and then stood still before that was sent, may be overtaken.
        stood_still = left and clock() - begun_at > UNBREAKABLE
        assert breaking.result(PATIENCE) is not left or stood_still


def test_the_successor_of_a_broken_hold_is_not_disturbed(using, actor, name):
    stale = Lock(name, using=using)
    stale.acquire()
    assert Lock(name, using="other").force_release(stale.token)
    successor = actor("thread", "third").take(name)
    with pytest.raises(LockLost):
        stale.release()
    successor.verify()
    assert not actor("thread", using).tries(name)


# The end of the connection


def test_closing_the_backend_ends_every_hold_and_says_so(using, backend, actor, tree, name):
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
    lock.acquire()
    backend.close()
    assert not lock.held
    on_lost.wait()
    eventually(lambda: tree.queue(name) == [])
    with pytest.raises(LockLost, match="closed"):
        lock.release()
    with pytest.raises(LockNotHeld):
        lock.release()
    with Lock(name, using=using) as again:
        again.verify()


def test_what_goes_on_with_a_closed_backend_keeps_no_connection(using, backend, name):
    """As one does who waits for a seat when the settings change."""
    locks.close_all()
    assert locks[using] is not backend, "who asks now gets another one"
    backend.store.read(name)
    client = backend.client
    assert client.connected
    locks.close_all()
    eventually(lambda: client.dead)


def test_threads_and_tasks_of_a_process_share_one_session(using, zookeeper, actor, tree, name):
    threads = [actor(what, using) for what in ("thread", "task", "thread", "task")]
    for number, person in enumerate(threads):
        person.take(f"{name}:{number}")
    owners = {tree.read(tree.queue(f"{name}:{n}")[0])[1].ephemeralOwner for n in range(4)}
    assert len(owners) == 1


@pytest.mark.slow
def test_tasks_wait_without_threads(using, zookeeper, actor, name):
    """Each for another lock, all of which someone else has."""
    count = 100
    person = actor("thread", "other")
    held = [person.take(f"{name}:{number}") for number in range(count)]
    Lock(name, using=using).locked()  # connects

    async def wait():
        waiting = [
            asyncio.create_task(Lock(f"{name}:{number}", using=using).aacquire())
            for number in range(count)
        ]
        session = session_of(locks[using])
        while len(watches(zookeeper, session)) < count:
            await asyncio.sleep(0.01)
        threads = threading.active_count()
        for lock in held:
            lock.release()
        assert await asyncio.gather(*waiting) == [True] * count
        return threads

    before = threading.active_count()
    assert asyncio.run(wait()) - before < 10
