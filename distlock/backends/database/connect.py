"""Which engines can keep locks, how each is spoken to, and how sessions with them are opened.

They have the project's own settings of a database, and what locks need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import Error as DjangoDatabaseError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from distlock.backends.database import mariadb, postgresql, sqlite
from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.connection import DatabaseSession, is_without_pool
from distlock.backends.database.drivers import raw_connection_for
from distlock.backends.database.errors import (
    NoRight,
    NoSession,
    NotAdmitted,
    StatementFailed,
    failure,
)
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.database.sql import Dialect
from distlock.backends.database.sqlite_session import SQLiteSession, open_in_process
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import despite
from distlock.concurrency.threads import start
from distlock.concurrency.workers import ThreadCall


class Engine(NamedTuple):
    """The differences between kinds of databases. Each has its SQL in a file of its own."""

    #: how to speak on a Django connection that is open
    dialect: Callable[[Any], Dialect]
    #: its statements about records
    records: RecordSQL
    #: sets the options of the driver: see set_options() of an engine
    set_options: Callable[[dict[str, Any], float, float, bool], None]
    #: sets in the server what the statements about locks rely on, see set_up() of an engine
    set_up: Callable[[DatabaseSession, float, bool, bool | None], None]
    #: its native locks, if it has such
    locks: AdvisoryLocks | None = None
    #: whether it is SQLite, which has no server
    in_process: bool = False


#: by the vendor's name in Django
ENGINES = {
    "mysql": Engine(
        mariadb.dialect_for,
        mariadb.MySQLRecords(mariadb.MYSQL),
        mariadb.set_options,
        mariadb.set_up,
        mariadb.MySQLLocks(),
    ),
    "postgresql": Engine(
        lambda _: postgresql.POSTGRESQL,
        postgresql.PostgreSQLRecords(postgresql.POSTGRESQL),
        postgresql.set_options,
        postgresql.set_up,
        postgresql.PostgreSQLLocks(),
    ),
    "sqlite": Engine(
        lambda _: sqlite.SQLITE,
        sqlite.SQLiteRecords(sqlite.SQLITE),
        sqlite.set_options,
        sqlite.set_up,
        in_process=True,
    ),
}


def refusal(engine: type[Any]) -> str | None:
    """Return why an engine, by Django's ``DatabaseWrapper``, cannot keep locks; None if it can."""
    if engine.vendor not in ENGINES:
        return f"locks are kept in MariaDB, MySQL, PostgreSQL or SQLite, not in {engine.vendor!r}"
    return sqlite.too_old() if ENGINES[engine.vendor].in_process else None


def wrapper_of(database: str) -> type[Any]:
    """Return Django's ``DatabaseWrapper`` for a database; nothing is connected to."""

    # On another thread, because Ctrl-C in the middle of an import leaves half a driver behind.
    def load() -> type[Any]:
        settings = connections.settings[database]
        wrapper: type[Any] = load_backend(settings["ENGINE"]).DatabaseWrapper
        if wrapper.vendor == "mysql" and wrapper.Database.__name__ == "MySQLdb":
            # It imports this with the first connection; two threads may open one at once.
            with suppress(ImportError):
                import_module("MySQLdb.connections")
        return wrapper

    job = ThreadCall(load)
    start(job.run, "distlock-import", lambda: None)
    job.wait(None)
    return job.take()


def dialect_for(wrapper: Any) -> Dialect:
    """Return how to speak on a Django connection that is open."""
    return ENGINES[wrapper.vendor].dialect(wrapper)


def open_session(
    database: str,
    limit: float,
    *,
    timeout: float,
    blocking: bool = False,
    pooled: bool | None = False,
) -> DatabaseSession:
    """Open a session with the database of an alias; NoSession if there is none within ``limit`` s.

    ``timeout`` is the most that a statement will be given, in seconds. ``blocking`` sessions may
    wait in the server for as long as they like. ``pooled`` says that a pooler may give every
    packet to another server process: on PostgreSQL nothing is set that would last there, and
    nowhere is anything prepared. None finds out whether PostgreSQL has a pooler, and takes each for
    one of that kind.
    """
    until, target = clock() + limit, target_of(current_settings(database))
    settings = {**current_settings(database), "AUTOCOMMIT": True, "TIME_ZONE": None}
    engine: Any = type(connections[database])
    wrapper = _without_pool(engine)(settings, database)
    wrapper.inc_thread_sharing()
    ENGINES[wrapper.vendor].set_options(wrapper.settings_dict["OPTIONS"], limit, timeout, blocking)
    opened = partial(_opened, wrapper, limit, blocking, pooled)
    if ENGINES[wrapper.vendor].in_process:
        session = open_in_process(wrapper, opened)
    else:  # with what is left of the time: the driver may have been loaded just now
        session = connect_with_timeout(until - clock(), opened)
    session.target = target
    return session


@functools.cache
def _without_pool(engine: Any) -> Any:
    """Return an engine that opens and closes connections as Django's own one does.

    Other people's engines may take connections from a pool of the project, and give them back with
    what we have set there; or our connection parameters may become those of the pool.
    """
    # The nearest class of Django. An engine that is made without its engines stays as it is.
    bases = (one for one in engine.__mro__ if one.__module__.startswith("django."))
    django: Any = next(bases, BaseDatabaseWrapper)
    if django in (engine, BaseDatabaseWrapper):
        return engine

    class WithoutPool(engine):  # type: ignore[misc]
        pool = None
        get_new_connection = django.get_new_connection
        _set_autocommit = django._set_autocommit
        _close = django._close

        def get_connection_params(self) -> dict[str, Any]:
            # Drivers have no parameters in capitals: those are of pools.
            params = super().get_connection_params()
            return {name: value for name, value in params.items() if name.islower()}

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            # Receivers of connection_created may listen for this engine only.
            return engine

    return WithoutPool


#: The settings that identify the database of a session. Engines may note in the rest of the
#: settings what the caller does now (django-tenants: the schema).
target_of = itemgetter("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")


def current_settings(database: str) -> dict[str, Any]:
    """Return a copy of the settings that a connection would be made by now."""
    settings = connections.settings[database]
    return {**settings, "OPTIONS": {**settings["OPTIONS"]}}


def _opened(wrapper: Any, limit: float, blocking: bool, pooled: bool | None) -> DatabaseSession:
    engine = ENGINES[wrapper.vendor]
    try:
        wrapper.ensure_connection()
        kind = SQLiteSession if engine.in_process else DatabaseSession
        session = kind(wrapper, raw_connection_for)
    except (wrapper.Database.Error, DjangoDatabaseError) as error:
        how = ""
        if is_without_pool(wrapper):
            how = f" without get_new_connection() of {wrapper.__class__.__module__}"
        refused = issubclass(failure(error, wrapper.vendor), NoRight)
        cause = error.__cause__ or error
        raise (NotAdmitted if refused else NoSession)(f"cannot connect{how}") from cause
    except OSError as error:  # the process can open no more files
        with despite(Exception):  # there may be no connection yet
            wrapper.connection.close()
        raise NoSession(f"cannot connect: {error}") from error
    try:
        engine.set_up(session, limit, blocking, pooled)
    except Exception as error:  # after an interrupt the garbage collector closes it
        session.close()
        if isinstance(error, StatementFailed):
            raise NoSession(f"cannot set up a session: {error}") from error.__cause__
        raise
    return session


def connect_with_timeout(limit: float, connect: Callable[[], DatabaseSession]) -> DatabaseSession:
    """Connect on another thread; NoSession after ``limit`` seconds.

    A driver that connects cannot be interrupted. A session that comes too late is closed.
    """
    pending: Pending[DatabaseSession] = Pending()

    def connect_for_pending() -> None:
        session, _ = pending.settle(connect)
        if session is not None:  # nobody waits for it any more
            session.close()

    try:
        try:
            start(connect_for_pending, "distlock-connect")
        except RuntimeError as error:
            raise NoSession("no thread can be started to connect on") from error
        if pending.wait(clock() + limit):
            return pending.take()
        raise NoSession(f"cannot connect within {limit:.3g} s")
    finally:
        if session := pending.abandon():  # does nothing after take()
            session.close()
