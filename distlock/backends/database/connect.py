"""Opens sessions: on the project's own settings of a database, with what locks need put on top."""

from __future__ import annotations

import math
import os
import socket
import threading
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
from distlock.bell import Bell
from distlock.clock import clock
from distlock.threads import start

Options = dict[str, Any]

#: How many sessions in a row are given up because of forks; then the next one has to do.
_SPOILED = 2
_MAX_APPLICATION_NAME = 63  # bytes; PostgreSQL cuts the rest off
# Time limits for locks are in seconds, see ROW_WAIT. The second one is about whole tables. What
# takes a lock counts on assignments being made one after the other, which ORACLE, for one, is not
# the mode for; others read '' as NULL.
_MYSQL = (
    "SET autocommit = 1, time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1,"
    " sql_mode = 'STRICT_TRANS_TABLES'; SHOW VARIABLES LIKE 'wsrep_on'"
)
# A statement that lost against another node is not to be run again by the server, which would send
# the rows of both times. Each sees what other nodes have committed before; but a node that is cut
# off answers a SELECT without tables, as for a native lock, like one that meets a locked row then.
# https://mariadb.com/kb/en/galera-cluster-system-variables/
_GALERA = "SET SESSION wsrep_retry_autocommit = 0, SESSION wsrep_sync_wait = {0}"
_ALL, _NO_SELECT = 7, 6
# A grant must not be told before it is on disk, and on the synchronous standby if there is one,
# whatever the defaults of the database and of the role are. Warnings: see notices.py.
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
    packet to another server process: nothing is set that would last there. None finds out, and
    takes every pooler for one of that kind.
    """
    connection = connections[database]
    settings = current_settings(connection)
    wrapper = type(connection)({**settings, "AUTOCOMMIT": True, "TIME_ZONE": None}, database)
    wrapper.inc_thread_sharing()
    options = wrapper.settings_dict["OPTIONS"]
    if wrapper.vendor == "sqlite":
        if wrapper.settings_dict["NAME"] == ":memory:":
            raise ImproperlyConfigured(
                f"DATABASES[{database!r}] is ':memory:', of which every connection has its own:"
                " nobody would see the locks of others. Use a file, or for the threads of one"
                " process 'file:locks?mode=memory&cache=shared'."
            )
        try:
            with gate.closed:
                return _opened(SQLiteSession, wrapper, "PRAGMA busy_timeout = 0", limit)
        except BaseException:  # also Ctrl-C, which leaves a connection that nobody closes
            with suppress(Exception):  # there may be none yet
                wrapper.connection.close()
            raise
    set_up: str | None = None
    if wrapper.vendor == "mysql":
        _mysql(options, limit, timeout, blocking)
        set_up = _MYSQL
    elif wrapper.vendor == "postgresql":
        _postgresql(options, limit)
        set_up = _POSTGRESQL_ONCE
        return connect_with_timeout(limit, lambda: _opened(Session, wrapper, set_up, limit, pooled))
    return connect_with_timeout(
        limit, lambda: _opened(Session, wrapper, set_up, limit, blocking=blocking)
    )


def current_settings(connection: Any) -> dict[str, Any]:
    """Return a copy of the settings that a connection would be made by now."""
    return {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"]}}


def _mysql(options: Options, limit: float, timeout: float, blocking: bool) -> None:
    options.update(charset="utf8mb4", isolation_level="read committed")
    options["connect_timeout"] = _at_most(options, "connect_timeout", limit)
    for option in ("read_timeout", "write_timeout"):
        # The watchdog is more precise, but has no say where gevent runs everything on one thread.
        if blocking:
            options.pop(option, None)
        else:
            options[option] = _at_most(options, option, timeout + 1)


def _postgresql(options: Options, limit: float) -> None:
    for option in ("pool", "isolation_level", "server_side_binding"):
        options.pop(option, None)
    name = f"distlock {socket.gethostname()}:{os.getpid()}"
    options["application_name"] = name.encode()[:_MAX_APPLICATION_NAME].decode(errors="ignore")
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
    set_up: str | None,
    limit: float,
    pooled: bool | None = False,
    *,
    blocking: bool = False,
) -> Session:
    try:
        session = _connected(kind, wrapper)
    except (wrapper.Database.Error, DjangoDatabaseError) as error:
        raise NoSession("cannot connect") from (error.__cause__ or error)
    try:
        # Before anything is set that the pooler would hand to others.
        session.pooled = _is_pooled(session, limit) if pooled is None else pooled
        if session.pooled:
            session.before = _POSTGRESQL_EVERY_TIME
        elif set_up is not None:
            answer = session.run(Statement(set_up), limit)
            if ("wsrep_on", "ON") in answer.rows:
                session.run(Statement(_GALERA.format(_NO_SELECT if blocking else _ALL)), limit)
    except BaseException as error:
        session.close()
        if isinstance(error, StatementFailed):
            raise NoSession(f"cannot set up a session: {error}") from error.__cause__
        raise
    return session


def _is_pooled(session: Session, limit: float) -> bool:
    """Return whether PostgreSQL is behind a pooler, which tells its clients made-up ids."""
    ((ident,),) = session.run(Statement("SELECT pg_backend_pid()"), limit).rows
    return int(ident) != session.ident


def _connected(kind: type[Session], wrapper: Any) -> Session:
    """Connect, and again if the process forked meanwhile.

    Only what is a session by then is left to the parent. The child of an earlier moment has a
    socket that the driver alone knows of, and while that is open the server does not notice that
    the parent has died. Therefore the parent ends such a session itself, which the server is told.
    """
    for _ in range(_SPOILED):
        began = clock()
        session = _connect(kind, wrapper)
        if _forked_at < began:
            return session
        session.close()
    return _connect(kind, wrapper)


def _connect(kind: type[Session], wrapper: Any) -> Session:
    wrapper.ensure_connection()
    return kind(wrapper)


_forked_at = -math.inf


def _note_fork() -> None:
    global _forked_at
    _forked_at = clock()


if hasattr(os, "register_at_fork"):
    # Before it for what was begun by then, after it for what began while other hooks ran.
    os.register_at_fork(before=_note_fork, after_in_parent=_note_fork)


def connect_with_timeout(limit: float, opening: Callable[[], Session]) -> Session:
    """Open on a thread of its own, and do not wait for longer than the limit."""
    arrival = _PendingSession(opening)
    try:
        start(arrival.run, "distlock-connect")
        return arrival.result(limit)
    except BaseException:  # also Ctrl-C: the session would be opened for nobody, and stay
        arrival.abandon()
        raise


class _PendingSession:
    """A session that another thread opens, and closes if nobody wants it any more."""

    def __init__(self, opening: Callable[[], Session]) -> None:
        self._opening = opening
        self._mutex = threading.Lock()
        self._over = Bell()
        self._unwanted = False
        self._session: Session | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            session = self._opening()
        except BaseException as error:
            self._error = error
        else:
            with self._mutex:
                self._session = session
                unwanted = self._unwanted
            if unwanted:
                session.close()
        self._over.ring()

    def result(self, limit: float) -> Session:
        if self._over.wait(limit) and self._error is not None:
            raise self._error
        with self._mutex:
            session = self._session
            self._unwanted = session is None
        if session is None:
            raise NoSession(f"cannot connect within {limit:.3g} s")
        return session

    def abandon(self) -> None:
        """Want it no more. Doing it twice does no harm."""
        with self._mutex:
            self._unwanted = True
            session = self._session
        if session is not None:
            session.close()
