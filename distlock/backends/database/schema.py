"""Makes the table of the locks where it is missing, on the first deploy or after an upgrade.

On the first deploy several processes may want to be the one that migrates the database, and the
locks that would decide it are in a table that only a migration makes. So the engine's own lock
decides who makes that one table, by the app's own migrations; everything else is left to whoever
gets the lock then. Migrations that run at once without any lock would fail: each makes the table
``django_migrations`` if it does not see one. Somebody may do that all the same, and the lock of one
node of a Galera cluster is unknown to the others: so after an error it is looked whether the table
is there now, and tried again if not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockUnavailable

_APP = "distlock"
#: Seconds between two attempts to be the one.
_PAUSE = 0.25
#: How often to try when there are errors: those that others cause end when others are done.
_TRIES = 5


def make_table(database: str, deadline: float | None) -> bool:
    """Migrate this app, and nothing else, if that has not been done; True if it is done now.

    Raises LockUnavailable if the database cannot be asked, or if others were at it until
    ``deadline``. False for engines that have no lock of their own to guard this, and
    inside a transaction.
    """
    connection: Any = connections[database]
    guard = _GUARDS.get(connection.vendor)
    if guard is None or connection.in_atomic_block:
        return False
    was_open = connection.connection is not None
    try:
        if not _missing(connection):
            return True  # others have been faster
        with guard(connection, deadline):
            _migrate(connection, deadline)
    except (connection.Database.Error, DjangoDatabaseError) as error:
        why = " ".join(str(error).split())
        raise LockUnavailable(
            f"the table of the locks could not be made in the database {database!r}: {why}"
        ) from error
    finally:
        if not was_open:
            connection.close()
    return True


def _migrate(connection: Any, deadline: float | None) -> None:
    for more in reversed(range(_TRIES)):
        try:
            executor = MigrationExecutor(connection)
            executor.migrate(executor.loader.graph.leaf_nodes(_APP))
            return
        except (connection.Database.Error, DjangoDatabaseError):
            if not _missing(connection):
                return  # others were at it without the guard
            if not more or (deadline is not None and clock() >= deadline):
                raise
        time.sleep(left(deadline, _PAUSE))


def _missing(connection: Any) -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes(_APP)))


@contextmanager
def _mysql(connection: Any, deadline: float | None) -> Iterator[None]:
    with _another(connection) as session, session.cursor() as cursor:
        key = f"distlock:migrate:{_hash(connection)[:32]}"  # at most 64 characters

        def attempt() -> bool:
            cursor.execute("SELECT GET_LOCK(%s, 0)", [key])
            return bool(cursor.fetchone()[0])

        _wait(attempt, deadline)
        yield  # the end of the session frees it


@contextmanager
def _postgresql(connection: Any, deadline: float | None) -> Iterator[None]:
    # Of a transaction and not of a session, so that a pooler in transaction mode may be there.
    with _another(connection) as session, session.cursor() as cursor:
        session.set_autocommit(False)
        key = int(_hash(connection)[:15], 16)

        def attempt() -> bool:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [key])
            return bool(cursor.fetchone()[0])

        _wait(attempt, deadline)
        yield


@contextmanager
def _sqlite(connection: Any, deadline: float | None) -> Iterator[None]:
    if connection.is_in_memory_db():
        yield  # no other process sees it
        return
    # Its own lock would keep out the migration, too. Not the file itself: to close it would end
    # the locks that this process has on it, see https://www.sqlite.org/howtocorrupt.html
    folder = os.path.dirname(os.path.abspath(str(connection.settings_dict["NAME"])))
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:

        def attempt() -> bool:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        _wait(attempt, deadline)
        yield
    finally:
        os.close(descriptor)


_GUARDS: dict[str, Callable[[Any, float | None], Any]] = {
    "mysql": _mysql,
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}


@contextmanager
def _another(connection: Any) -> Iterator[Any]:
    """Open another session with the same database."""
    session = connection.copy()
    try:
        yield session
    finally:
        session.close()


def _wait(attempt: Callable[[], bool], deadline: float | None) -> None:
    # Tried again and again, because a driver that waits for a server hears no signal.
    while not attempt():
        if deadline is not None and clock() >= deadline:
            raise LockUnavailable("others were still making the table of the locks")
        time.sleep(left(deadline, _PAUSE))


def _hash(connection: Any) -> str:
    return hashlib.sha256(f"distlock {connection.settings_dict['NAME']}".encode()).hexdigest()
