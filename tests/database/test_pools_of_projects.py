"""Pools of connections that a project has for itself: sessions of locks are none of them."""

import os
import threading
from contextlib import suppress

import pytest
from django.db import connections, transaction
from django.db.backends.signals import connection_created

from distlock import Lock, locks
from distlock.backends.database import errors
from distlock.backends.database.statements import Statement
from distlock.types.lease import State
from tests.contract.watch import eventually
from tests.database.asleep import DISCONNECT, SLEEP
from tests.database.lending import ident_of, next_session
from tests.databases import ALIASES
from tests.pooling import KEPT

#: kind of database, engine, and what its settings have for one connection at the most
DJ_POOL = {"POOL_OPTIONS": {"POOL_SIZE": 1, "MAX_OVERFLOW": 0, "TIMEOUT": 2}}
IN_CAPITALS = {"OPTIONS": {"MAX_CONNS": 4}}
ENGINES = [
    ("mariadb", "dj_db_conn_pool.backends.mysql", DJ_POOL),
    ("postgresql", "dj_db_conn_pool.backends.postgresql", DJ_POOL),
    ("mariadb", "tests.pooling.mysql", IN_CAPITALS),
    ("postgresql", "tests.pooling.postgresql", IN_CAPITALS),
    (
        "postgresql",
        "django.db.backends.postgresql",
        {"OPTIONS": {"pool": {"min_size": 1, "max_size": 1, "timeout": 2}}},
    ),
]

pytestmark = [
    pytest.mark.once,
    pytest.mark.parametrize(
        ("kind", "engine", "entry"),
        ENGINES,
        ids=["dj-mariadb", "dj-postgresql", "own-mariadb", "own-postgresql", "django"],
    ),
]

#: what the sessions of locks set for themselves
SETTINGS = {
    "mariadb": "SELECT @@innodb_lock_wait_timeout, @@time_zone, @@sql_mode, @@autocommit",
    "postgresql": "SELECT current_setting('lock_timeout'), current_setting('client_min_messages'),"
    " current_setting('application_name'), current_setting('plan_cache_mode')",
}


@pytest.fixture
def pooled(kind, engine, entry, backend_settings, settings):
    """The alias of a database whose connections come from a pool; locks are kept there."""
    backend_settings(kind)
    connections.settings["pooled"] = {
        **connections.settings[ALIASES[kind]],
        "ENGINE": engine,
        **entry,
    }
    settings.DISTLOCK = {
        "default": {
            "BACKEND": "distlock.backends.database.DatabaseBackend",
            "OPTIONS": {"database": "pooled", "idle": 60, "timeout": 3},
        }
    }
    yield "pooled"
    locks.close_all()
    connections["pooled"].close()
    close_pool(connections["pooled"])
    del connections["pooled"]
    del connections.settings["pooled"]


def close_pool(connection):
    from dj_db_conn_pool.core import pool_container

    pool_container.dispose()
    pool_container.clear()
    for kept in KEPT.pop("pooled", ()):
        kept.close()
    if connection.settings_dict["OPTIONS"].get("pool"):
        connection.close_pool()


@pytest.fixture
def unchanged(kind, pooled):
    """Compares what the connections of the project have set, before the test and after it."""
    before = of_project(kind)
    yield
    for _ in range(3):
        assert of_project(kind) == before


def of_project(kind):
    connection = connections["pooled"]
    with connection.cursor() as cursor:
        cursor.execute(SETTINGS[kind])
        found = cursor.fetchall()
    connection.close()  # Django does that at the end of a request
    return found


@pytest.mark.usefixtures("unchanged")
def test_a_session_that_is_not_needed_any_more_does_not_go_to_the_pool(name):
    with Lock(name):
        pass
    locks.close_all()


@pytest.mark.usefixtures("unchanged")
def test_a_session_that_waited_does_not_go_to_the_pool(name):
    with Lock(name):
        waiter = threading.Thread(target=lambda: Lock(name).acquire(timeout=0.3))
        waiter.start()
        waiter.join()
    locks.close_all()


@pytest.mark.usefixtures("unchanged")
def test_a_session_that_gave_no_answer_does_not_go_to_the_pool(kind):
    pool = locks["default"].pool
    session = next_session(pool)
    with pytest.raises(errors.StatementTimeout):
        session.run(Statement(SLEEP[kind]), 0.3)
    session.close()


@pytest.mark.usefixtures("unchanged")
def test_a_session_that_the_server_has_ended_does_not_go_to_the_pool(kind, name, server):
    with Lock(name):
        ident = ident_of(next_session(locks["default"].pool))
        server(kind).execute(DISCONNECT[kind] % {"ident": ident})
    locks.close_all()


@pytest.mark.usefixtures("unchanged")
def test_a_session_that_an_interrupt_ends_does_not_go_to_the_pool():
    with pytest.raises(KeyboardInterrupt):
        locks["default"].pool.work(interrupted)
    locks.close_all()


@pytest.mark.usefixtures("unchanged")
def test_a_session_that_was_idle_for_long_does_not_go_to_the_pool(settings, name):
    options = {**settings.DISTLOCK["default"]["OPTIONS"], "idle": 0.2}
    settings.DISTLOCK = {"default": {**settings.DISTLOCK["default"], "OPTIONS": options}}
    with Lock(name):
        pass
    eventually(lambda: not locks["default"].pool._idle)


@pytest.mark.usefixtures("unchanged")
def test_a_session_of_before_a_fork_goes_to_no_pool(kind, name):
    """Neither in the child nor in the parent, whose session goes on."""
    with Lock(name):
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                connections.close_all()
                before = of_project(kind)
                with Lock(f"{name}:child"):
                    pass
                locks.close_all()
                os._exit(0 if of_project(kind) == before else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert Lock(name).info().state == State.HELD
    locks.close_all()


def interrupted(session):
    session.ask(Statement("SELECT 1"))
    raise KeyboardInterrupt


def test_the_project_may_have_all_connections_of_its_pool(pooled, name):
    """A lock that needed one of them would wait for the transaction that waits for the lock."""
    with transaction.atomic(pooled):
        assert Lock(name).acquire(timeout=10)
    Lock(name).release()


def test_a_lock_makes_no_pool_with_parameters_of_its_own(pooled, kind, name):
    """Here the first connection of the process is one of the locks."""
    with Lock(name):
        pass
    first = of_project(kind)
    connections[pooled].close()
    close_pool(connections[pooled])
    assert of_project(kind) == first


def test_atomic_uses_the_connection_of_the_project(pooled, name):
    with Lock(name) as lock, lock.atomic(), connections[pooled].cursor() as cursor:
        cursor.execute("SELECT 1")
    assert Lock(name).info().state == State.FREE


def test_receivers_hear_of_the_projects_engine(pooled, name):
    heard = []

    def receive(connection, **about):
        heard.append(connection.alias)

    connection_created.connect(receive, sender=type(connections[pooled]))
    try:
        with Lock(name):
            pass
    finally:
        connection_created.disconnect(receive, sender=type(connections[pooled]))
    assert heard == [pooled]
