"""Processes that are killed or stopped, and servers that cannot be reached: seats of all kinds."""

import random
import signal
import sqlite3
import threading
import time
from contextlib import closing, suppress

import pytest
from django.db import connections

from distlock import LockError, LockLost, LockUnavailable, locks
from distlock.recipes import RWLock, Semaphore
from distlock.records import shared_backend
from tests.children import read_line, write_line
from tests.contract.actor_process import actors
from tests.contract.actors import MAKERS, PATIENCE
from tests.contract.watch import cleaned_up, eventually, passed, steadily
from tests.databases import ALIASES
from tests.recipes.every_kind import (  # noqa: F401 - pytest calls it
    ONE_PROCESS,
    pytest_generate_tests,
)

#: how to make what one at a time can have
ALONE = [
    pytest.param({"make": "semaphore", "value": 1}, id="semaphore"),
    pytest.param({"make": "writer"}, id="writer", marks=pytest.mark.slow),
]


def new(name, make, **options):
    return MAKERS[make](name, **options)


def hold(name, options):
    """As a child: hold seats; once told to go on, say whether they are held."""
    told = []
    lock = new(name, on_lost=told.append, **options)
    lock.acquire()
    write_line(lock.token)
    read_line()
    write_line("held" if lock.held else "not held")
    try:
        lock.check()
        write_line("unharmed")
    except LockLost:
        write_line("lost")
    try:
        lock.release()
        write_line("released")
    except LockLost:
        write_line("lost")
    eventually(lambda: told)
    write_line("told")


def wait(name, options):
    """As a child: wait for seats; then leave them when told to."""
    write_line("waiting")
    lock, taken = new(name, **options), False
    while not taken:
        with suppress(LockUnavailable):  # it was stopped while it waited for an answer
            taken = lock.acquire()
    write_line(lock.token)
    read_line()
    lock.release()


def stop(process, kind):
    """Stop a process, but not where it would keep everybody from SQLite's file."""

    def is_out_of_the_way():
        process.signal(signal.SIGSTOP)
        if kind != "sqlite" or _is_free(connections[ALIASES[kind]].settings_dict["NAME"]):
            return True
        process.signal(signal.SIGCONT)
        return False

    eventually(is_out_of_the_way)


def _is_free(path):
    with closing(sqlite3.connect(path, timeout=0)) as own:
        try:
            own.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
    return True


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.faults
@pytest.mark.parametrize("options", ALONE)
class TestProcesses:
    def test_the_killed_hold_nothing_and_wait_for_nothing(
        self, child, using, long_leases, name, options
    ):
        """One who holds seats, and the first in line."""
        holder = child(hold, name, options)
        token = int(holder.line())
        waiter = child(wait, name, options)
        waiter.line()
        lock = new(name, using=using, **options)

        def one_waits():  # unless the machine has stood still for a lease
            info = lock.info()
            return info.waiters or [one.token for one in info.holders] != [token]

        eventually(one_waits)
        holder.kill()
        waiter.kill()
        long_leases()
        assert lock.acquire(timeout=PATIENCE)
        assert lock.token > token
        assert len(lock.info().holders) == 1
        lock.release()
        eventually(lambda: not lock.info().waiters)

    def test_who_was_stopped_has_lost_and_takes_nothing_away(
        self, child, kind, using, long_leases, name, options
    ):
        stopped = child(hold, name, options)
        token = int(stopped.line())
        stop(stopped, kind)
        long_leases()
        with new(name, using=using, **options) as successor:
            assert successor.token > token
            stopped.tell("go on")
            stopped.signal(signal.SIGCONT)
            assert stopped.finish() == ["not held", "lost", "lost", "told"]
            successor.verify()
            assert len(successor.info().holders) == 1


ONE_SEAT = {"make": "semaphore", "value": 1}


def one_waits(child, actor, using, name):
    """Let a child wait for the one seat of a semaphore: who holds it, the child, and the lock."""
    held = actor("thread").take(name, **ONE_SEAT)
    waiter = child(wait, name, ONE_SEAT)
    waiter.line()
    lock = Semaphore(name, using=using)
    eventually(lambda: len(lock.info().waiters) == 1)
    return held, waiter, lock


def goes_on(stopped):
    """See that one who was stopped gets its seat after all, and leaves it."""
    stopped.signal(signal.SIGCONT)
    assert int(stopped.line()) > 0
    stopped.tell("leave")
    stopped.finish()


@pytest.mark.shared
@pytest.mark.slow
def test_one_who_is_stopped_at_the_head_of_the_queue_keeps_nobody_out(
    child, kind, actor, using, name
):
    """Its session lasts for half a minute, and so does its place; its turn does not."""
    held, stopped, lock = one_waits(child, actor, using, name)
    others = [actor("thread").lock(name, **ONE_SEAT) for _ in range(2)]
    waiting = []
    for number, other in enumerate(others):
        waiting.append(other.start("acquire"))
        eventually(lambda: len(lock.info().waiters) == number + 2)  # noqa: B023 - called at once
    stop(stopped, kind)
    held.release()
    for other, future in zip(others, waiting, strict=True):
        assert future.result(PATIENCE)
        other.release()
    goes_on(stopped)


@pytest.mark.shared
@pytest.mark.slow
def test_one_who_comes_when_the_head_is_stopped_does_not_pass_by_the_next(
    child, kind, actor, using, name, monkeypatch
):
    """The next one is told of nothing, so it may be some seconds before it looks."""
    monkeypatch.setattr(shared_backend, "_PATIENCE", 4.0)  # it may stand still for some more
    held, stopped, lock = one_waits(child, actor, using, name)
    following, late = (actor("thread").lock(name, **ONE_SEAT) for _ in range(2))
    earlier = following.start("acquire")
    eventually(lambda: len(lock.info().waiters) == 2)
    stop(stopped, kind)
    held.release()
    later = late.start("acquire")
    assert earlier.result(PATIENCE)
    assert not later.done()
    following.release()
    assert later.result(PATIENCE)
    late.release()
    goes_on(stopped)


def work_for_ever(name, who):
    """As a child: take one or two of three seats, again and again."""
    dice, number = random.Random(who), 0
    while True:
        number += 1
        lock = Semaphore(name, 3, n=dice.choice([1, 1, 2]))
        with suppress(LockLost, LockUnavailable):
            if lock.acquire(timeout=dice.choice([0.05, 5])):
                time.sleep(dice.random() * 0.02)
                lock.release()
        if number % 5 == 0:
            write_line(number)


@pytest.mark.shared
@pytest.mark.brief
@pytest.mark.slow
def test_a_storm_of_kills_and_stops(child, kind, using, long_leases, name):
    """At no moment more seats are taken than there are, and at the end nothing is."""
    dice, lock = random.Random(name), Semaphore(name, 3, using=using)
    working = [child(work_for_ever, name, who) for who in range(5)]
    for round_number in range(12):
        for process in working:
            process.line()
        victim = dice.randrange(len(working))
        stop(working[victim], kind)
        for _ in range(10):
            assert answer(lock.info).taken <= 3
        if round_number % 2:
            working[victim].signal(signal.SIGCONT)
        else:
            working[victim].kill()
            working[victim] = child(work_for_ever, name, 100 + round_number)
    for process in working:
        process.kill()
    eventually(lambda: is_unused(lock))
    long_leases()
    with lock:
        lock.verify()


def all_taken_back():
    """Return whether nothing has to be taken back any more."""
    return cleaned_up() and not any(
        one.shared.cleanup.pending for one in locks.made() if one.shared is not None
    )


def answer(call):
    """Return the first answer after an outage."""

    def try_again():
        try:
            return call(), True
        except LockUnavailable:
            return None

    return eventually(try_again)[0]


def is_unused(lock):
    info = answer(lock.info)
    return not info.holders and not info.waiters


@pytest.mark.shared
@pytest.mark.faults
class TestNetwork:
    @pytest.mark.parametrize("how", ["refuse", pytest.param("silence", marks=pytest.mark.slow)])
    def test_an_outage_while_waiting_is_told_and_leaves_no_waiter(self, proxy, loop, name, how):
        if proxy is None:
            return

        def wait_for(seconds):
            lock = Semaphore(f"{name}:{seconds}", 1)
            assert answer(lambda: lock.acquire(timeout=PATIENCE))
            with actors(loop) as make:
                waiting = [
                    make(what)
                    .lock(lock.name, make="semaphore", value=1)
                    .start("acquire", timeout=seconds)
                    for what in ("thread", "task")
                ]
                eventually(
                    lambda: (
                        len(answer(lock.info).waiters) == 2 or any(one.done() for one in waiting)
                    )
                )
                if any(one.done() for one in waiting):
                    raise LockUnavailable("the machine has stood still: one waits no more")
                getattr(proxy, how)()
                for future in waiting:
                    with suppress(LockUnavailable):
                        assert future.result(PATIENCE) is False
                proxy.heal()
            with_answer = eventually(lambda: answer(lock.info).waiters == () and answer(lock.info))
            assert len(with_answer.holders) <= 1
            with suppress(LockError):
                lock.release()
            eventually(lambda: is_unused(lock))

        steadily(wait_for, 1.5, 8.0)

    @pytest.mark.parametrize("make", ["semaphore", "own", "writer"])
    def test_lost_replies_leave_nothing_behind(self, kind, proxy, make, name):
        """Each of the first requests of taking and of leaving in turn."""
        if proxy is None:
            return
        lock = {
            "semaphore": lambda: Semaphore(name, 2),
            "own": lambda: Semaphore(name, 2, lease=600),
            "writer": lambda: RWLock(name).writer(),
        }[make]()
        answer(lock.info)
        if make == "own" and kind == "zookeeper":
            return
        for moment in range(4):
            lost = None
            try:
                if moment == 0:
                    lost = proxy.lose_reply()
                lock.acquire(timeout=PATIENCE)
                if moment == 1:
                    lost = proxy.lose_reply()
                if moment == 2:
                    proxy.cut()
                lock.release()
            except LockUnavailable:
                pass
            assert lost is None or kind == "zookeeper" or lost.wait(PATIENCE)
            proxy.heal()
            while lock.held:
                with_retry(lock.release)
            eventually(lambda: is_unused(lock))

    @pytest.mark.parametrize("busy", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_a_request_that_comes_late_takes_nothing(self, kind, proxy, loop, busy, name):
        """For a seat, or for a place in the queue. It was given up; then the server gets it."""
        if proxy is None or kind in {"etcd", "zookeeper"}:
            return  # etcd gets values in base64; ZooKeeper's requests cannot overtake each other
        lock = Semaphore(name, 1)
        with actors(loop) as make:
            holder = make("thread").lock(name, make="semaphore", value=1)
            assert answer(lambda: holder.acquire(timeout=PATIENCE))
            if not busy:
                with_retry(holder.release)
                eventually(lambda: is_unused(lock))
            late = proxy.delay(b"description of the late one")

            def is_late():  # if it has not got so far, it tries again
                with pytest.raises(LockUnavailable) as told:
                    Semaphore(name, 1, description="description of the late one").acquire()
                return late.kept_back.wait(PATIENCE if told.value.maybe_applied else 0)

            eventually(is_late)
            eventually(all_taken_back)
            late.end()
            passed(0.3)
            info = answer(lock.info)
            assert info.waiters == ()
            assert info.taken == busy
            if busy:
                with_retry(holder.release)
            assert answer(lambda: lock.acquire(timeout=PATIENCE))
            answer(lambda: lock.verify() or True)
            with_retry(lock.release)

    def test_a_place_in_the_queue_outlasts_a_short_outage(self, proxy, loop, name, monkeypatch):
        if proxy is None:
            return
        store = type(locks["default"].store)
        watch, watches = store.watch, threading.Event()

        def note_and_watch(*args):
            watches.set()
            return watch(*args)

        with actors(loop) as make:
            lock = Semaphore(name, 1)
            assert answer(lambda: lock.acquire(timeout=PATIENCE))
            monkeypatch.setattr(store, "watch", note_and_watch)
            future = make("thread").lock(name, make="semaphore", value=1).start("acquire")
            assert watches.wait(PATIENCE)  # it knows that it has joined
            assert answer(lock.info).waiters
            proxy.cut()
            answer(lock.info)
            with_retry(lock.release)
            assert future.result(PATIENCE) is True


def with_retry(leave):
    """Leave a lock; if its backend cannot be told, it is freed in the background."""
    with suppress(LockUnavailable, LockLost):
        leave()
