"""Waiting in the servers' own queues, seen from the servers' side."""

import pytest

from distlock import locks
from tests.contract.actor_process import actors
from tests.databases import SERVERS
from tests.queue.engine import ENGINES, GRACE, set_pace


@pytest.fixture(params=SERVERS, scope="module")
def kind(request):
    """The kind of backend, as ``backend_settings`` calls it."""
    return request.param


@pytest.fixture
def options():
    """What a test wants to have in ``OPTIONS``."""
    return {}


@pytest.fixture
def limit():
    """The seconds that the database gets for any one answer."""
    return 10


@pytest.fixture
def grace():
    """The seconds that those in front are given to take a lock; see ``unhurried``."""
    return GRACE


@pytest.fixture
def using(kind, options, limit, grace, backend_settings, settings, monkeypatch):
    """The alias of the backend under test."""
    set_pace(grace, monkeypatch.setattr)
    settings.DISTLOCK = backend_settings(kind, LEASE=6, OPTIONS={"timeout": limit, **options})
    yield "default"
    locks.close_all()


@pytest.fixture
def engine(kind, server, using):
    """The server's own view of its native locks, of which a test before this one has none left."""
    engine = ENGINES[kind](server(kind))
    engine.reaches_line(0)
    return engine


@pytest.fixture
def actor(using, grace, loop, processes):
    """``actor()``: a process, or another actor; see actors()."""
    with actors(loop, processes) as make:

        def make_patient(what="process"):
            new = make(what)
            if what == "process":
                new.call(set_pace, grace)  # also in one that another test has had
            return new

        yield make_patient


@pytest.fixture
def holder(actor, name):
    """Another process, which holds the lock."""
    process = actor()
    process.lock_held = process.take(name, lease=60)
    return process


@pytest.fixture
def waiting(holder, actor, engine, name):
    """Somebody in this process who waits for it without a limit, at the head of the line."""
    future = actor("thread").lock(name).start("acquire")
    engine.reaches_line(1)
    return future


@pytest.fixture
def behind(holder, actor, engine, name):
    """The same, in the queue behind another process that has the native lock."""
    actor().lock(name).start("acquire")
    engine.reaches_line(1)
    future = actor("thread").lock(name).start("acquire")
    engine.reaches_waiting(1)
    return future
