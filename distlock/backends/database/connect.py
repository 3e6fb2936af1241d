"""Which engines can keep locks, how each is spoken to, and how sessions with them are opened.

They have the project's own settings of a database, and what locks need.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from operator import itemgetter
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.connection import DatabaseSession
from distlock.backends.database.errors import (
    NoRight,
    NoSession,
    NotAdmitted,
    StatementFailed,
    failure,
)
from distlock.backends.database.mariadb import MariaDB, MySQL, MySQLLocks, MySQLRecords
from distlock.backends.database.postgresql import (
    PostgreSQL,
    PostgreSQLLocks,
    PostgreSQLRecords,
    namespace_of,
)
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.database.sql import TABLE, Dialect
from distlock.backends.database.sqlite import SQLite, SQLiteRecords
from distlock.backends.database.sqlite_session import SQLiteSession, open_in_process
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import start
from distlock.concurrency.workers import ThreadCall

#: Updates then count the rows that they matched, and a packet may have several statements, which
#: PyMySQL does not ask for by itself. MySQLdb.constants.CLIENT.FOUND_ROWS and MULTI_STATEMENTS
_CLIENT_FLAGS = 2 | 65536
# Both time limits are in seconds, see ROW_WAIT; the second one is for whole tables. The sql_mode is
# set because the statement that acquires a lock relies on assignments from left to right, which the
# mode ORACLE makes all at once, and on '', which other modes read as NULL.
_MYSQL_ONCE = (
    "SET autocommit = 1, time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1,"
    " sql_mode = 'STRICT_TRANS_TABLES'; SHOW VARIABLES LIKE 'wsrep_on'"
)
# wsrep_retry_autocommit: the server must not run a statement again that lost against another node,
# because it would send the rows of both runs. wsrep_sync_wait: each statement sees what other nodes
# have committed before it. Sessions that wait for native locks leave SELECT out: a node that is cut
# off would fail their SELECT with the error of a locked row.
# https://mariadb.com/kb/en/galera-cluster-system-variables/
_GALERA = "SET SESSION wsrep_retry_autocommit = 0, SESSION wsrep_sync_wait = {0}"
_ALL, _NO_SELECT = 7, 6
# A grant must be on disk, and on the synchronous standby if there is one, before we report it,
# whatever the defaults of the database and of the role are. Warnings: see Notices in connection.py.
_POSTGRESQL_ONCE = (
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    " SET lock_timeout = '1s'; SET synchronous_commit = 'on'; SET client_min_messages = 'warning'"
)
# Behind a pooler the search_path may be what another client of it has set.
_POSTGRESQL_EVERY_TIME = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'on', true),"
    " set_config('client_min_messages', 'warning', true), set_config('search_path', {0}, true)",
)
# Which server process answers, and where the tables are: in the schema in which the one of the
# locks is found or, if there is none yet, will be made. A proxy that splits reads sends several
# statements to the primary.
_POSTGRESQL_ASKED = (
    "SET LOCAL lock_timeout = '1s';"
    " SELECT pg_backend_pid(), current_database()::text, COALESCE((SELECT nspname FROM pg_class"
    " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
    f" WHERE pg_class.oid = to_regclass('{TABLE}')), current_schema(), '')::text,"
    " quote_literal(current_setting('search_path'))"
)

#: the first version with RETURNING
OLDEST_SQLITE = (3, 35)

_MARIADB: Dialect = MariaDB()
_MYSQL: Dialect = MySQL()
_POSTGRESQL: Dialect = PostgreSQL()
_SQLITE: Dialect = SQLite()
#: the native locks of an engine, if it has such, by its vendor's name in Django
ADVISORY_LOCKS: dict[str, AdvisoryLocks] = {"mysql": MySQLLocks(), "postgresql": PostgreSQLLocks()}
#: its statements about records
RECORD_SQL: dict[str, RecordSQL] = {
    "mysql": MySQLRecords(),
    "postgresql": PostgreSQLRecords(),
    "sqlite": SQLiteRecords(),
}


def refusal(engine: type[Any]) -> str | None:
    """Return why an engine, by Django's ``DatabaseWrapper``, cannot keep locks; None if it can."""
    vendor = engine.vendor
    if vendor not in RECORD_SQL:
        return f"locks are kept in MariaDB, MySQL, PostgreSQL or SQLite, not in {vendor!r}"
    if vendor == "sqlite" and sqlite3.sqlite_version_info < OLDEST_SQLITE:
        return f"SQLite must be 3.35 or later, this is {sqlite3.sqlite_version}"
    return None


def engine_of(database: str) -> type[Any]:
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
    if wrapper.vendor == "mysql":
        # Django has asked for the version while it connected.
        return _MARIADB if wrapper.mysql_is_mariadb else _MYSQL
    return _POSTGRESQL if wrapper.vendor == "postgresql" else _SQLITE


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
    until = clock() + limit
    settings = {**current_settings(database), "AUTOCOMMIT": True, "TIME_ZONE": None}
    engine: Any = type(connections[database])
    wrapper = _without_pool(engine)(settings, database)
    wrapper.inc_thread_sharing()
    options = wrapper.settings_dict["OPTIONS"]
    if wrapper.vendor == "sqlite":
        return open_in_process(wrapper, limit, lambda: _opened(SQLiteSession, wrapper, limit))
    if wrapper.vendor == "mysql":
        _mysql_options(options, limit, timeout, blocking)
    else:
        _postgresql_options(options, limit)
    return connect_with_timeout(
        until - clock(),  # the driver may have been loaded just now
        lambda: _opened(DatabaseSession, wrapper, limit, blocking=blocking, pooled=pooled),
    )


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

    class Engine(engine):  # type: ignore[misc]
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

    return Engine


def _is_without_pool(wrapper: Any) -> bool:
    return type(wrapper) is not wrapper.__class__


#: What tells to which database a session leads. Engines may note in the rest of the settings what
#: the caller does now (django-tenants: the schema).
target_of = itemgetter("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")


def current_settings(database: str) -> dict[str, Any]:
    """Return a copy of the settings that a connection would be made by now."""
    settings = connections.settings[database]
    return {**settings, "OPTIONS": {**settings["OPTIONS"]}}


def _mysql_options(options: dict[str, Any], limit: float, timeout: float, blocking: bool) -> None:
    options.update(charset="utf8mb4", isolation_level="read committed")
    options["connect_timeout"] = _at_most(options, "connect_timeout", limit)
    options["client_flag"] = options.get("client_flag", 0) | _CLIENT_FLAGS
    for option in ("read_timeout", "write_timeout"):
        # They end an answer that stalls halfway. For the usual time limit see MySQLConnection.
        if blocking:
            options.pop(option, None)
        else:
            options[option] = _at_most(options, option, timeout + 1)


def _postgresql_options(options: dict[str, Any], limit: float) -> None:
    for option in ("pool", "isolation_level", "server_side_binding"):
        options.pop(option, None)
    options["application_name"] = f"distlock {socket.gethostname()}:{os.getpid()}"
    options["connect_timeout"] = _at_most(options, "connect_timeout", limit)
    for option, seconds in {"idle": 30, "interval": 10, "count": 3}.items():
        options.setdefault(f"keepalives_{option}", seconds)


def _at_most(options: dict[str, Any], option: str, seconds: float) -> int:
    """Return the user's own seconds if they are less; drivers want them whole and above 0."""
    own = int(options.get(option) or 0)
    most = max(math.ceil(seconds), 1)
    return min(own, most) if own > 0 else most


def _opened(
    kind: type[DatabaseSession],
    wrapper: Any,
    limit: float,
    *,
    blocking: bool = False,
    pooled: bool | None = False,
) -> DatabaseSession:
    try:
        wrapper.ensure_connection()
        session = kind(wrapper)
    except (wrapper.Database.Error, DjangoDatabaseError) as error:
        how = ""
        if _is_without_pool(wrapper):
            how = f" without get_new_connection() of {wrapper.__class__.__module__}"
        refused = issubclass(failure(error, wrapper.vendor), NoRight)
        cause = error.__cause__ or error
        raise (NotAdmitted if refused else NoSession)(f"cannot connect{how}") from cause
    except OSError as error:  # the process can open no more files
        with suppress(Exception):  # there may be no connection yet
            wrapper.connection.close()
        raise NoSession(f"cannot connect: {error}") from error
    try:
        _set_up(session, limit, blocking, pooled)
    except Exception as error:  # after an interrupt the garbage collector closes it
        session.close()
        if isinstance(error, StatementFailed):
            raise NoSession(f"cannot set up a session: {error}") from error.__cause__
        raise
    return session


def _set_up(session: DatabaseSession, limit: float, blocking: bool, pooled: bool | None) -> None:
    """Set in the server what the statements about locks rely on."""
    vendor = session.wrapper.vendor
    if vendor == "sqlite":
        session.run(Statement("PRAGMA busy_timeout = 0"), limit)
    elif vendor == "mysql":
        session.pooled = bool(pooled)
        if ("wsrep_on", "ON") in session.run(Statement(_MYSQL_ONCE), limit).rows:
            session.run(Statement(_GALERA.format(_NO_SELECT if blocking else _ALL)), limit)
        ((database,),) = session.run(Statement("SELECT DATABASE()"), limit).rows
        session.schema = session.namespace = database or ""
    else:
        # Asked before anything is set, because a pooler would hand that to others.
        ident, database, schema, search_path = _ask_postgresql(session, limit)
        if pooled is None:
            # A pooler invents the ids for its clients.
            pooled = int(ident) != session.wrapper.connection.info.backend_pid
        session.schema, session.namespace = schema, namespace_of(database, schema)
        session.pooled = pooled
        if pooled:
            path = search_path.replace("%", "%%")
            session.before = tuple(text.format(path) for text in _POSTGRESQL_EVERY_TIME)
        else:
            session.run(Statement(_POSTGRESQL_ONCE), limit)


def _ask_postgresql(session: DatabaseSession, limit: float) -> tuple[Any, ...]:
    wrapper, ask = session.wrapper, Statement(_POSTGRESQL_ASKED)
    if not _is_without_pool(wrapper):
        return session.run(ask, limit).rows[0]
    try:
        # An engine may choose the schema with each cursor (django-tenants). In one transaction,
        # because a pooler may give the next one to another server process.
        wrapper.set_autocommit(False)
        wrapper.cursor().close()
        row = session.run(ask, limit).rows[0]
        wrapper.commit()
        wrapper.set_autocommit(True)
    except (wrapper.Database.Error, DjangoDatabaseError) as error:
        raise NoSession(f"cannot ask for the schema: {error}") from (error.__cause__ or error)
    return row


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
            raise NoSession("no thread can be had to connect on") from error
        if pending.wait(clock() + limit):
            return pending.take()
        raise NoSession(f"cannot connect within {limit:.3g} s")
    finally:
        if session := pending.abandon():  # does nothing after take()
            session.close()
