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

from distlock.backends.database.errors import NoSession, StatementFailed
from distlock.backends.database.inprocess import LocalSession, gate
from distlock.backends.database.session import Session
from distlock.backends.database.statements import Statement
from distlock.bell import Bell
from distlock.threads import start

Options = dict[str, Any]

_MAX_APPLICATION_NAME = 63  # bytes; PostgreSQL cuts the rest off
# Time limits for locks are in seconds, see ROW_WAIT. The second one is about whole tables.
_MYSQL = (
    "SET autocommit = 1, time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"
)
_POSTGRESQL_ONCE = (
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    " SET lock_timeout = '{0}s'"
)
_POSTGRESQL_EVERY_TIME = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET LOCAL lock_timeout = '1s'",
)


def open_session(
    database: str, limit: float, *, timeout: float, blocking: bool = False, pooled: bool = False
) -> Session:
    """Open a session with the database of an alias; NoSession if there is none within ``limit`` s.

    ``timeout`` is the most that a statement will be given, in seconds. ``blocking`` sessions may
    wait in the server for as long as they like. ``pooled`` says that a pooler may give every
    packet to another server process: nothing is set that would last there.
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
                return _opened(LocalSession, wrapper, "PRAGMA busy_timeout = 0", limit)
        except BaseException:
            with suppress(Exception):  # there may be none yet
                wrapper.connection.close()
            raise
    set_up: str | None = None
    before: tuple[str, ...] = ()
    if wrapper.vendor == "mysql":
        _mysql(options, limit, timeout, blocking)
        set_up = _MYSQL
    elif wrapper.vendor == "postgresql":
        _postgresql(options, limit)
        if pooled:
            before = _POSTGRESQL_EVERY_TIME
        else:
            # A time limit for locks would end the waits for native ones, too.
            set_up = _POSTGRESQL_ONCE.format(0 if blocking else 1)
    session = _within(limit, lambda: _opened(Session, wrapper, set_up, limit))
    session.before = before
    return session


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


def _opened(kind: type[Session], wrapper: Any, set_up: str | None, limit: float) -> Session:
    try:
        wrapper.ensure_connection()
        session = kind(wrapper)
    except (wrapper.Database.Error, DjangoDatabaseError) as error:
        raise NoSession("cannot connect") from (error.__cause__ or error)
    if set_up is not None:
        try:
            session.run(Statement(set_up), limit)
        except BaseException as error:
            session.close()
            if isinstance(error, StatementFailed):
                raise NoSession(f"cannot set up a session: {error}") from error.__cause__
            raise
    return session


def _within(limit: float, opening: Callable[[], Session]) -> Session:
    """Open on a thread of its own, and do not wait for longer than the limit."""
    arrival = _Arrival(opening)
    try:
        start(arrival.run, "distlock-connect")
        return arrival.result(limit)
    except BaseException:
        arrival.abandon()
        raise


class _Arrival:
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
