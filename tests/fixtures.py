"""What tests of many kinds ask for: names of locks, locks that are held, an event loop …"""

import logging
import threading
import uuid
from contextlib import suppress

import pytest

from distlock import Lock, LockLost, LockNotHeld, locks
from tests.contract.actor_process import Processes, actors
from tests.contract.actors import Loop
from tests.contract.forks import WAYS
from tests.contract.watch import events
from tests.databases import DATABASES


@pytest.fixture
def name(request):
    """A name that no other test uses."""
    return f"{request.function.__name__[:80]}:{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=WAYS)
def way(request):
    """How a process forks: with Python's hooks, or as uWSGI and other C code does."""
    return request.param


@pytest.fixture
def loop():
    """An event loop on a thread of its own, for actors that are tasks."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def local(backend_settings, settings):
    """One backend, in this process."""
    settings.DISTLOCK = backend_settings("local")
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def taken():
    """``taken("a", "b")``: hold locks here until the test ends; the locks."""
    held = []

    def take(*names, lease=600, **options):
        new = [Lock(name, lease=lease, **options) for name in names]
        for lock in new:
            assert lock.acquire(blocking=False)
        held.extend(new)
        return new

    yield take
    for lock in held:
        with suppress(LockLost, LockNotHeld):
            lock.release()


@pytest.fixture(params=[ValueError, SystemExit], ids=["bug", "exit"])
def failing_log(request):
    """Let a filter of the log have a bug, for the test; what its error says."""
    message = "the filter has a bug"

    def fail(record):
        raise request.param(message)

    logger = logging.getLogger("distlock")
    logger.addFilter(fail)
    yield message
    logger.removeFilter(fail)


@pytest.fixture
def refuse(monkeypatch):
    """``refuse("renewal", 2)``: fail the next two starts of a thread of such a name."""
    start = threading.Thread.start
    left = {}

    def refusing(thread):
        for word in left:
            if word in thread.name and left[word] > 0:
                left[word] -= 1
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    return lambda word, times=1: left.update({word: times})


@pytest.fixture(params=DATABASES)
def kind(request):
    """The kind of backend, as ``backend_settings`` calls it: every database."""
    return request.param


@pytest.fixture(scope="session")
def processes():
    """The processes that tests take their actors from."""
    processes = Processes()
    yield processes
    processes.close()


@pytest.fixture
def backend(using):
    """The backend under test."""
    return locks[using]


@pytest.fixture
def actor(using, loop, processes):
    """``actor("thread")``: an actor; see actors()."""
    with actors(loop, processes) as make:
        yield make


@pytest.fixture
def roles():
    """What the actors of the test are."""


@pytest.fixture
def first(actor, roles):
    """Who comes first, and takes the lock."""
    return actor(roles[0])


@pytest.fixture
def second(actor, roles):
    """Who comes too, and wants it."""
    return actor(roles[1])


@pytest.fixture
def third(actor):
    """A third one."""
    return actor("thread")


@pytest.fixture
def fourth(actor):
    """A fourth."""
    return actor("thread")


@pytest.fixture
def sent_events():
    """The signals that this process has sent during the test."""
    with events() as seen:
        yield seen
