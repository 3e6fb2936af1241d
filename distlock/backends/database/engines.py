"""Which engines can keep locks, and how each is spoken to."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from typing import Any

from django.db import connections
from django.db.utils import load_backend

from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.mariadb import MariaDB, MySQL, MySQLLocks, MySQLRecords
from distlock.backends.database.postgresql import (
    PostgreSQL,
    PostgreSQLLocks,
    PostgreSQLRecords,
)
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.database.sql import Dialect
from distlock.backends.database.sqlite import SQLite, SQLiteRecords
from distlock.concurrency.threads import start

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
    engine: Future[type[Any]] = Future()

    def load() -> None:
        try:
            wrapper = load_backend(connections.settings[database]["ENGINE"]).DatabaseWrapper
            if wrapper.vendor == "mysql" and wrapper.Database.__name__ == "MySQLdb":
                # It imports this with the first connection; two threads may open one at once.
                with suppress(ImportError):
                    import_module("MySQLdb.connections")
            engine.set_result(wrapper)
        except BaseException as error:
            engine.set_exception(error)

    start(load, "distlock-import")
    return engine.result()


def dialect_for(wrapper: Any) -> Dialect:
    """Return how to speak on a Django connection that is open."""
    if wrapper.vendor == "mysql":
        # Django has asked for the version while it connected.
        return _MARIADB if wrapper.mysql_is_mariadb else _MYSQL
    return _POSTGRESQL if wrapper.vendor == "postgresql" else _SQLITE
