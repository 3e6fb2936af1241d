"""Installations on one server: in two schemas of PostgreSQL, or two databases of MariaDB."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connections, transaction

from distlock import Lock, LockLost, locks
from distlock.backends.database import wait_session
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import run
from distlock.recipes import Queue
from distlock.types.query import LockQuery
from tests.contract.watch import eventually
from tests.database.speaking import claim, speaking
from tests.databases import ALIASES, migrate

pytestmark = pytest.mark.once

PROD, STAGING = NAMES = "prod", "staging"

#: how the server is told which installation a session belongs to
WAYS = [("postgresql", "options"), ("postgresql", "role"), ("mariadb", "database")]

PREPARE = {
    "options": ("CREATE SCHEMA {0} AUTHORIZATION distlock",),
    "role": (
        "CREATE ROLE {0} LOGIN PASSWORD 'not-a-secret'",
        "CREATE SCHEMA {0} AUTHORIZATION {0}",
        "ALTER ROLE {0} SET search_path = {0}",
    ),
    "database": (
        "CREATE DATABASE {0} CHARACTER SET utf8mb4",
        "GRANT ALL ON {0}.* TO distlock@'127.0.0.1'",
    ),
}
REMOVE = {
    "options": ("DROP SCHEMA IF EXISTS {0} CASCADE",),
    "role": ("DROP SCHEMA IF EXISTS {0} CASCADE", "DROP ROLE IF EXISTS {0}"),
    "database": ("DROP DATABASE IF EXISTS {0}",),
}
ENTRY = {
    "options": lambda name: {"OPTIONS": {"options": f"-c search_path={name}"}},
    "role": lambda name: {"USER": name},
    "database": lambda name: {"NAME": name},
}


@pytest.fixture(scope="module", params=WAYS, ids=[way for _, way in WAYS])
def installations(request, django_db_blocker):
    """The kind of database; the aliases ``prod`` and ``staging`` are there, with their tables."""
    kind, way = request.param
    server = request.getfixturevalue(kind)
    with django_db_blocker.unblock():
        for name in (PROD, STAGING):
            for statement in (*REMOVE[way], *PREPARE[way]):
                server.execute(statement.format(name))
            connections.settings[name] = {
                **connections.settings[ALIASES[kind]],
                **server.django(),
                **ENTRY[way](name),
            }
            migrate(name)
        yield kind
        for name in (PROD, STAGING):
            connections[name].close()
            del connections[name]
            del connections.settings[name]
            for statement in REMOVE[way]:
                server.execute(statement.format(name))


@pytest.fixture
def kind(installations):
    return installations


@pytest.fixture
def backends(installations):
    """Their backends: ``prod`` and ``staging``."""
    made = [speaking(None)(name, {"OPTIONS": {"database": name, "idle": 60}}) for name in NAMES]
    yield made
    for backend in made:
        backend.close()


@contextmanager
def waited_for(backend, name):
    """Hold a lock, while another one waits for it in the server."""
    lease = backend.try_acquire(claim(name))
    leases = []
    waiter = threading.Thread(
        target=lambda: leases.append(run(backend.enqueue(claim(name), clock() + 60)))
    )
    waiter.start()
    eventually(lambda: backend.inspect(name).waiters)
    try:
        yield
    finally:
        assert backend.release(lease)
        waiter.join()
        assert backend.release(leases[0])


def test_who_waits_elsewhere_is_not_in_the_way(backends, name, monkeypatch):
    monkeypatch.setattr(wait_session, "GRACE", 600)  # after that anyone may take it, out of turn
    prod, staging = backends
    assert prod.release(prod.try_acquire(claim(name)))  # a row is there, and free
    with waited_for(staging, name):
        lease = run(prod.enqueue(claim(name), clock() + 2))
    assert lease
    assert prod.release(lease)


def test_who_waits_elsewhere_is_not_reported(backends, name):
    prod, staging = backends
    with waited_for(staging, name):
        # Between two statements that wait, a waiter is not seen for a moment.
        eventually(lambda: len(staging.inspect(name).waiters) == 1)
        eventually(lambda: staging.page(LockQuery()).counts.waiting == 1)
        assert prod.inspect(name).waiters == ()
        assert prod.page(LockQuery()).counts.waiting == 0


def test_both_hold_a_lock_of_the_same_name(backends, name):
    for backend in backends:
        assert backend.try_acquire(claim(name))


def test_processes_of_one_installation_wait_in_one_queue(backends, name):
    prod, _ = backends
    other = speaking(None)("other", {"OPTIONS": {"database": PROD, "idle": 60}})
    try:
        with waited_for(prod, name):
            eventually(lambda: len(other.inspect(name).waiters) == 1)
    finally:
        other.close()


@pytest.fixture
def aliases(installations, settings):
    """The locks of both, by the aliases ``prod`` and ``staging``."""
    backend = "distlock.backends.database.DatabaseBackend"
    settings.DISTLOCK = {
        name: {"BACKEND": backend, "OPTIONS": {"database": name, "idle": 60}} for name in NAMES
    }
    yield NAMES
    locks.close_all()


#: makes an unqualified table be that of ``staging``
ELSEWHERE = {"postgresql": f"SET search_path = {STAGING}", "mariadb": f"USE {STAGING}"}


@pytest.fixture
def elsewhere(aliases, kind):
    """Lets the connection of the caller look at ``staging``."""
    with connections[PROD].cursor() as cursor:
        cursor.execute(ELSEWHERE[kind])
    yield
    connections[PROD].close()


@pytest.mark.usefixtures("elsewhere")
def test_atomic_finds_the_lock_whatever_the_caller_has_set(name):
    committed = []
    with Lock(name, using=PROD) as lock, lock.atomic():
        transaction.on_commit(lambda: committed.append(1), using=PROD)
    assert committed


@pytest.mark.usefixtures("elsewhere")
def test_a_lost_lock_is_told_whatever_the_caller_has_set(name):
    """Even if a lock of this name is held where the caller looks."""
    lock = Lock(name, using=PROD)
    lock.acquire()
    with Lock(name, using=STAGING):
        with pytest.raises(LockLost), lock.atomic():
            assert locks[PROD].force_release(name, lock.token)
        with pytest.raises(LockLost):
            lock.release()


@pytest.mark.usefixtures("elsewhere")
def test_a_delivery_is_acknowledged_whatever_the_caller_has_set(name):
    queue = Queue(name, using=PROD)
    queue.put("paid")
    with queue.get() as delivery, delivery.atomic():
        pass
    assert queue.qsize() == 0
