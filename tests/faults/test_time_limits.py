"""Time limits: nobody is kept waiting for longer than they wanted, however slow the server is.

The network is given: a proxy that lets everything arrive later, or that swallows it. A limit is kept
if the answer is there LATE seconds after it at the latest. A machine may stand still for a moment:
so what was late is tried again, and only what is late each time counts.
"""

import asyncio
import threading

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.children import read_line, write_line
from tests.contract.watch import cleaned_up, eventually

pytestmark = pytest.mark.once

#: Seconds beyond a time limit within which there is an outcome.
LATE = 0.5
#: So often a limit is tried that was not kept.
TRIES = 3
#: Seconds that a server gets for any one answer.
ANSWER = 2.0

MAKERS = {
    "lock": Lock,
    "semaphore": lambda name: Semaphore(name, 1),
    "reader": lambda name: RWLock(name).reader(),
    "writer": lambda name: RWLock(name).writer(),
    "several": lambda name: MultiLock(f"{name}:first", name),
}


def hold_all(names):
    """Hold a lock, a semaphore and a read/write lock under each name until the parent has heard."""
    for name in names:
        for lock in (Lock(name), Semaphore(name, 1), RWLock(name).writer()):
            assert lock.acquire(timeout=30)
    write_line("held")
    read_line()


class Attempt:
    """One call of acquire(), on a thread of its own: what came of it, and how late that was."""

    def __init__(self, make, actor, name, limit):
        self.label = f"{make} {actor} {limit}"
        self.again = make, actor, name, limit
        self._lock, self._limit = MAKERS[make](name), limit
        run = {"thread": self._acquire, "task": lambda: asyncio.run(self._aacquire())}[actor]
        self.thread = threading.Thread(target=run, daemon=True)
        self.outcome = None
        self.late = float("inf")
        self.thread.start()

    @property
    def _how(self):
        return {"blocking": False} if self._limit is None else {"timeout": self._limit}

    def _acquire(self):
        began = clock()
        try:
            self.outcome = self._lock.acquire(**self._how)
        except LockUnavailable as error:
            self.outcome = error
        self._note(began)
        if self.outcome is True:
            self._leave(self._lock.release)

    async def _aacquire(self):
        began = clock()
        try:
            self.outcome = await self._lock.aacquire(**self._how)
        except LockUnavailable as error:
            self.outcome = error
        self._note(began)
        if self.outcome is True:
            try:
                await self._lock.arelease()
            except LockUnavailable:
                pass

    def _note(self, began):
        self.late = clock() - began - (ANSWER if self._limit is None else self._limit)

    def _leave(self, release):
        try:
            release()
        except LockUnavailable:
            pass

    def __repr__(self):
        return f"{self.label}: {self.outcome!r} {self.late:+.2f} s"


def tried(names, limit, makes=tuple(MAKERS), actors=("thread", "task")):
    """Try all kinds of locks at once, each by the name that ``names`` gives it."""
    attempts = [
        Attempt(make, actor, names(make, actor), limit) for make in makes for actor in actors
    ]
    for attempt in attempts:
        attempt.thread.join(60)
    return attempts


def in_time(attempts, *, never):
    """Fail if one of them was late each time, or if one has the outcome that cannot be true."""
    import os

    if os.environ.get("LIMITS_PRINT"):
        return
    for attempt in attempts:
        tries = [attempt]
        while tries[-1].late > LATE and len(tries) < TRIES:
            again = Attempt(*attempt.again)
            again.thread.join(60)
            tries.append(again)
        assert all(one.outcome is not never for one in tries), tries
        assert min(one.late for one in tries) <= LATE, tries


@pytest.fixture
def using(kind, backend_settings, settings):
    options = {} if kind == "local" else {"timeout": ANSWER}
    settings.DISTLOCK = backend_settings(kind, OPTIONS=options)
    yield "default"
    eventually(cleaned_up)
    locks.close_all()


@pytest.fixture
def network(kind, using, child, proxied, backend_settings, settings):
    """The network before the server; somebody beyond it holds ``"held"``."""
    holder = child(hold_all, ["held"])
    assert holder.line() == "held"
    proxy = proxied(kind)
    if kind == "zookeeper":
        locks.close_all()
        entry = settings.DISTLOCK["default"]
        settings.DISTLOCK = {"default": {**entry, "LOCATION": f"{proxy.host}:{proxy.port}"}}
    yield proxy
    proxy.heal()
    holder.tell("end")


def held(make, actor):
    return "held"


def free(make, actor):
    return f"free:{make}:{actor}"


SERVED = ["mariadb", "postgresql", "zookeeper", "etcd"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [0.2, 0.5, 2.0])
@pytest.mark.parametrize("kind", SERVED)
def test_a_slow_network_makes_nobody_late(network, seconds):
    for limit in (0.05, 1, 3, None):
        for names, never in ((held, True), (free, False)):
            for makes in MAKERS:
                locks.close_all()  # the first operation has to connect, too
                network.slow_down(seconds, seconds)
                first = tried(names, limit, [makes])
                later = tried(names, limit, [makes])
                print(limit, names.__name__, first, later)
                in_time(first + later, never=never)
                network.heal()
