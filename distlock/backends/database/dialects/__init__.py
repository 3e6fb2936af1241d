"""What is said to each database engine, and how its answers read."""

from __future__ import annotations

from typing import Any

from distlock.backends.database.dialects.base import Dialect
from distlock.backends.database.dialects.generic import Generic
from distlock.backends.database.dialects.mysql import MariaDB, MySQL
from distlock.backends.database.dialects.postgresql import PostgreSQL
from distlock.backends.database.dialects.sqlite import SQLite

_MARIADB: Dialect = MariaDB()
_MYSQL: Dialect = MySQL()
_POSTGRESQL: Dialect = PostgreSQL()
_SQLITE: Dialect = SQLite()


def dialect_for(wrapper: Any) -> Dialect:
    """Return how to speak on a Django connection that is open."""
    if wrapper.vendor == "mysql":
        # Django has asked for the version while it connected.
        return _MARIADB if wrapper.mysql_is_mariadb else _MYSQL
    if wrapper.vendor == "postgresql":
        return _POSTGRESQL
    if wrapper.vendor == "sqlite" and wrapper.Database.sqlite_version_info >= (3, 35):
        return _SQLITE
    return Generic(wrapper)
