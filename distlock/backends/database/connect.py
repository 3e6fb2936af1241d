"""Opens sessions with the project's own settings of a database, and with what locks need."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DjangoDatabaseError
from django.db import connections

from distlock.backends.database.connection import Session
from distlock.backends.database.errors import NoSession, StatementFailed
from distlock.backends.database.sqlite_session import SQLiteSession, gate
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import start

Options = dict[str, Any]

#: Updates then count the rows that they matched. MySQLdb.constants.CLIENT.FOUND_ROWS
_CLIENT_FOUND_ROWS = 2
# Both time limits are in seconds, see ROW_WAIT; the second one is for whole tables. The sql_mode is
# set because the statement that acquires a lock relies on assignments from left to right, which the
# mode ORACLE makes all at once, and on '', which other modes read as NULL.
_MYSQL = (
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
_POSTGRESQL_EVERY_TIME = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET LOCAL lock_timeout = '1s'",
    "SET LOCAL synchronous_commit = 'on'",
    "SET LOCAL client_min_messages = 'warning'",
)


def open_session(
    database: str,
    limit: float,
    *,
    timeout: float,
    blocking: bool = False,
    pooled: bool | None = False,
) -> Session:
    """Open a session with the database of an alias; NoSession if there is none within ``limit`` s.

    ``timeout`` is the most that a statement will be given, in seconds. ``blocking`` sessions may
    wait in the server for as long as they like. ``pooled`` says that a pooler may give every
    packet to another server process: on PostgreSQL nothing is set that would last there, and
    nowhere is anything prepared. None finds out whether PostgreSQL has a pooler, and takes each for
    one of that kind.
    """
    until = clock() + limit
    settings = {**current_settings(database), "AUTOCOMMIT": True, "TIME_ZONE": None}
    wrapper = type(connections[database])(settings, database)
    wrapper.inc_thread_sharing()
    options = wrapper.settings_dict["OPTIONS"]
    if wrapper.vendor == "sqlite":
        if wrapper.settings_dict["NAME"] == ":memory:":
            raise ImproperlyConfigured(
                f"DATABASES[{database!r}] is ':memory:', of which every connection has its own:"
                " nobody would see the locks of others. Use a file, or for the threads of one"
                " process 'file:locks?mode=memory&cache=shared'."
            )
        # Django runs statements of its own, and those of "init_command", on a new connection.
        options["timeout"] = min(limit, options.get("timeout", limit))
        try:
            if gate.broken:
                raise NoSession(
                    "another thread was writing to SQLite when this process was forked; start it"
                    " anew"
                )
            with gate.closed:
                return _opened(SQLiteSession, wrapper, limit)
        except BaseException:  # also Ctrl-C, which leaves a connection that nobody closes
            with suppress(Exception):  # there may be none yet
                wrapper.connection.close()
            raise
    if wrapper.vendor == "mysql":
        _mysql_options(options, limit, timeout, blocking)
    else:
        _postgresql_options(options, limit)
    return connect_with_timeout(
        until - clock(),  # the driver may have been loaded just now
        lambda: _opened(Session, wrapper, limit, blocking=blocking, pooled=pooled),
    )


def current_settings(database: str) -> dict[str, Any]:
    """Return a copy of the settings that a connection would be made by now."""
    settings = connections.settings[database]
    return {**settings, "OPTIONS": {**settings["OPTIONS"]}}


def _mysql_options(options: Options, limit: float, timeout: float, blocking: bool) -> None:
    options.update(charset="utf8mb4", isolation_level="read committed")
    options["connect_timeout"] = _at_most(options, "connect_timeout", limit)
    options["client_flag"] = options.get("client_flag", 0) | _CLIENT_FOUND_ROWS
    for option in ("read_timeout", "write_timeout"):
        # They end an answer that stalls halfway. For the usual time limit see MySQLConnection.
        if blocking:
            options.pop(option, None)
        else:
            options[option] = _at_most(options, option, timeout + 1)


def _postgresql_options(options: Options, limit: float) -> None:
    for option in ("pool", "isolation_level", "server_side_binding"):
        options.pop(option, None)
    options["application_name"] = f"distlock {socket.gethostname()}:{os.getpid()}"
    options["connect_timeout"] = _at_most(options, "connect_timeout", limit)
    for option, seconds in {"idle": 30, "interval": 10, "count": 3}.items():
        options.setdefault(f"keepalives_{option}", seconds)


def _at_most(options: Options, option: str, seconds: float) -> int:
    """Return the user's own seconds if they are less; drivers want them whole and above 0."""
    own = int(options.get(option) or 0)
    most = max(math.ceil(seconds), 1)
    return min(own, most) if own > 0 else most


def _opened(
    kind: type[Session],
    wrapper: Any,
    limit: float,
    *,
    blocking: bool = False,
    pooled: bool | None = False,
) -> Session:
    try:
        wrapper.ensure_connection()
        session = kind(wrapper)
    except (wrapper.Database.Error, DjangoDatabaseError) as error:
        raise NoSession("cannot connect") from (error.__cause__ or error)
    except OSError as error:  # the process can open no more files
        with suppress(Exception):  # there may be no connection yet
            wrapper.connection.close()
        raise NoSession(f"cannot connect: {error}") from error
    try:
        _set_up(session, limit, blocking, pooled)
    except BaseException as error:
        session.close()
        if isinstance(error, StatementFailed):
            raise NoSession(f"cannot set up a session: {error}") from error.__cause__
        raise
    return session


def _set_up(session: Session, limit: float, blocking: bool, pooled: bool | None) -> None:
    """Set in the server what the statements about locks rely on."""
    vendor = session.wrapper.vendor
    if vendor == "sqlite":
        session.run(Statement("PRAGMA busy_timeout = 0"), limit)
    elif vendor == "mysql":
        session.pooled = bool(pooled)
        if ("wsrep_on", "ON") in session.run(Statement(_MYSQL), limit).rows:
            session.run(Statement(_GALERA.format(_NO_SELECT if blocking else _ALL)), limit)
    else:
        # Asked before anything is set, because a pooler would hand that to others.
        if pooled is None:
            ((ident,),) = session.run(Statement("SELECT pg_backend_pid()"), limit).rows
            # A pooler invents the ids for its clients.
            pooled = int(ident) != session.wrapper.connection.info.backend_pid
        session.pooled = pooled
        if pooled:
            session.before = _POSTGRESQL_EVERY_TIME
        else:
            session.run(Statement(_POSTGRESQL_ONCE), limit)


def connect_with_timeout(limit: float, connect: Callable[[], Session]) -> Session:
    """Connect on another thread; NoSession after ``limit`` seconds.

    A driver that connects cannot be interrupted. A session that comes too late is closed.
    """
    pending: Pending[Session] = Pending()

    def connect_for_pending() -> None:
        try:
            session = connect()
        except BaseException as error:
            pending.fail(error)
        else:
            if not pending.resolve(session):
                session.close()

    try:
        try:
            start(connect_for_pending, "distlock-connect")
        except RuntimeError as error:
            raise NoSession("no thread can be had to connect on") from error
        if pending.wait(clock() + limit):
            return pending.take()
        raise NoSession(f"cannot connect within {limit:.3g} s")
    except BaseException:  # also Ctrl-C
        if session := pending.abandon():
            session.close()
        raise
