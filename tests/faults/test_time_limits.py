"""Time limits: nobody is kept waiting for longer than they wanted, however slow the server is.

The network is given: a proxy that lets everything arrive later, or swallows it. A limit is kept if
there is an outcome LATE seconds after it at the latest. A machine may stand still for a moment, so
what was late is tried again, and only what is late TRIES times counts.
"""

import asyncio
import itertools
import sqlite3
import threading
from contextlib import closing, suppress

import pytest
from django.db import connections, transaction

from distlock import Lock, LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually

pytestmark = pytest.mark.once

#: Seconds beyond a time limit within which there is an outcome.
LATE = 0.5
#: So often a limit is tried that was not kept.
TRIES = 3
#: Seconds that a server gets for any one answer.
ANSWER = 2.0
#: seconds that callers want to wait at the most; None for those who try once
LIMITS = [0.05, 1, 3, None]

SERVED = ["mariadb", "postgresql", "zookeeper", "etcd"]
MAKERS = {
    "lock": Lock,
    "semaphore": lambda name: Semaphore(name, 1),
    "reader": lambda name: RWLock(name).reader(),
    "writer": lambda name: RWLock(name).writer(),
    # the first one has to be left again if the second one is not to be had
    "several": lambda name: MultiLock(f"{name}:{next(_numbers)}:first", name),
}
ALL = list(itertools.product(MAKERS, ["thread", "task"]))

_numbers = itertools.count()


def held():
    return "held"


def free():
    """Return a name that is new: what was given up may be granted later, and then taken back."""
    return f"free:{next(_numbers)}"


def hold():
    """Hold everything that is called "held" until the parent has ended."""
    for lock in (Lock("held"), Semaphore("held", 1), RWLock("held").writer()):
        assert lock.acquire(timeout=PATIENCE)
    write_line("holds")
    read_line()


class Attempt:
    """One call of acquire(), on a thread of its own: what came of it, and how late that was."""

    def __init__(self, make, actor, names, limit):
        self._how = make, actor, names, limit
        self._terms = {"blocking": False} if limit is None else {"timeout": limit}
        self._lock = MAKERS[make](names())
        self.outcome, self.late = None, float("inf")
        target = self._run if actor == "thread" else lambda: asyncio.run(self._arun())
        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()

    def again(self):
        return Attempt(*self._how)

    def join(self):
        self._thread.join(PATIENCE)
        return self

    def _run(self):
        began = clock()
        try:
            self.outcome = self._lock.acquire(**self._terms)
        except LockUnavailable as error:
            self.outcome = error
        self._note(clock() - began)
        if self.outcome is True:
            with suppress(LockUnavailable):
                self._lock.release()

    async def _arun(self):
        began = clock()
        try:
            self.outcome = await self._lock.aacquire(**self._terms)
        except LockUnavailable as error:
            self.outcome = error
        self._note(clock() - began)
        if self.outcome is True:
            with suppress(LockUnavailable):
                await self._lock.arelease()

    def _note(self, seconds):
        *_, limit = self._how
        self.late = seconds - (ANSWER if limit is None else limit)

    def __repr__(self):
        make, actor, names, limit = self._how
        return f"{names.__name__} {make} {actor} {limit}: {self.outcome!r} {self.late:+.2f} s"


def attempts(names, limit, how=ALL):
    """Try to take everything at once; return the attempts when all have an outcome."""
    begun = [Attempt(*each, names, limit) for each in how]
    return [attempt.join() for attempt in begun]


def nobody_was_late(tried, *, never):
    """Fail if one was late each time that it was tried, or had the outcome that cannot be true."""
    for attempt in tried:
        tries = [attempt]
        while tries[-1].late > LATE and len(tries) < TRIES:
            tries.append(attempt.again().join())
        assert all(one.outcome is not never for one in tries), tries
        assert min(one.late for one in tries) <= LATE, tries


@pytest.fixture
def using(kind, backend_settings, settings):
    settings.DISTLOCK = backend_settings(kind, OPTIONS={"timeout": ANSWER})
    yield "default"
    locks.close_all()


@pytest.fixture
def network(kind, using, child, proxied, settings):
    """The network before the server; somebody who does not need it holds what is called "held"."""
    holder = child(hold)
    assert holder.line() == "holds"
    proxy = proxied(kind)
    if kind == "zookeeper":
        locks.close_all()
        entry = settings.DISTLOCK["default"]
        settings.DISTLOCK = {"default": {**entry, "LOCATION": f"{proxy.host}:{proxy.port}"}}
    yield proxy
    proxy.heal()
    eventually(cleaned_up)  # while there is a way to the server


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [0.2, 0.5, 2.0])
@pytest.mark.parametrize("kind", SERVED)
def test_a_slow_network_makes_nobody_late(network, seconds):
    for names, never in ((held, True), (free, False)):
        for limit in LIMITS:
            network.heal()
            locks.close_all()  # the first ones have to connect, too
            network.slow_down(seconds, seconds)
            nobody_was_late(attempts(names, limit), never=never)
            nobody_was_late(attempts(names, limit), never=never)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["silence", "drop_replies", "ignore", "refuse"])
@pytest.mark.parametrize("kind", SERVED)
def test_a_server_that_does_not_answer_makes_nobody_late(network, fault):
    for limit in LIMITS:
        network.heal()
        locks.close_all()
        eventually(lambda: Lock("free").acquire(timeout=PATIENCE))  # there is a connection
        Lock("free").release()
        getattr(network, fault)()
        nobody_was_late(attempts(free, limit), never=False)
        locks.close_all()
        nobody_was_late(attempts(free, limit), never=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVED)
def test_what_the_server_says_in_time_is_told(network):
    network.slow_down(0.05, 0.05)
    one_by_one = [("lock", "thread"), ("semaphore", "task"), ("writer", "thread")]
    attempts(free, 3, one_by_one)  # connects
    for names, outcome in ((held, False), (free, True)):
        for _ in range(3):  # a machine that stands still for a moment does not count
            seen = [one.outcome for one in attempts(names, 3, one_by_one)]
            assert (not outcome) not in seen
            if seen == [outcome] * 3:
                break
        else:
            raise AssertionError(seen)


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_time_limit_is_kept_though_the_last_answer_takes_long(network):
    how = [("lock", "thread"), ("lock", "task"), ("semaphore", "thread")]
    attempts(free, 1, how)  # connects
    network.slow_down(0.4, 0.4)
    nobody_was_late(attempts(held, 0.5, how), never=True)


@pytest.mark.parametrize("actor", ["thread", "task"])
@pytest.mark.parametrize("limit", [0.3, None])
@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_lock_that_another_thread_asks_for_is_not_held(network, limit, actor):
    name = free()
    with Lock(name):
        pass
    late = network.delay(name.encode())
    ahead = Attempt("lock", "thread", lambda: name, PATIENCE)
    assert late.kept_back.wait(PATIENCE)
    behind = Attempt("lock", actor, lambda: name, limit).join()
    late.end()
    ahead.join()
    # Whoever tries once has the time in which the one ahead gives up.
    assert isinstance(behind.outcome, LockUnavailable) or (limit is None and behind.outcome)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("inside", [True, False], ids=["in atomic", "outside"])
def test_another_writer_makes_nobody_late(kind, using, inside):
    def tries():
        began = clock()
        with pytest.raises(LockUnavailable):
            if inside:
                with transaction.atomic():
                    Lock("free").acquire(timeout=0.2)
            else:
                Lock("free").acquire(timeout=0.2)
        return clock() - began - 0.2

    path = connections["default"].settings_dict["NAME"]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert any(tries() <= LATE for _ in range(TRIES))
        other.execute("ROLLBACK")
    with transaction.atomic(), connections["default"].cursor() as cursor:
        ((waits,),) = cursor.execute("PRAGMA busy_timeout").fetchall()
        assert waits > 1000, "the caller's own statements wait as before"
