"""The databases of the tests: where they are, and the tables in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from django.core.management import call_command
from django.db import connections

from tests.servers.guard import guard

#: The database alias of each kind of backend that keeps its locks in a database.
ALIASES = {
    "sqlite": "default",
    "memory": "memory",
    "mariadb": "mariadb",
    "postgresql": "postgresql",
}
#: The kinds that processes can share, and those of them that are servers.
DATABASES = ["sqlite", "mariadb", "postgresql"]
SERVERS = ["mariadb", "postgresql"]


class Database(Protocol):
    """What a test can do to any database."""

    def django(self) -> dict[str, Any]: ...
    def execute(self, *statements: str) -> list[tuple[Any, ...]]: ...
    def empty(self, tables: Iterable[str]) -> None: ...
    def heal(self) -> None: ...


class SQLite:
    """A SQLite database, in a file unless told otherwise."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or str(guard().folder("distlock-sqlite-") / "database.sqlite3")
        self._kept = self._connect()  # one in memory is gone with its last connection

    def django(self) -> dict[str, Any]:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.name}

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on a connection of their own; return the rows of the last one."""
        connection = self._connect()
        try:
            return [connection.execute(sql).fetchall() for sql in statements][-1]
        finally:
            connection.close()

    def empty(self, tables: Iterable[str]) -> None:
        """Delete all rows of these tables."""
        self.execute(*(f"DELETE FROM {table}" for table in tables))

    def heal(self) -> None:
        """Nothing can happen to it."""

    def close(self) -> None:
        self._kept.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.name,
            uri=self.name.startswith("file:"),
            isolation_level=None,
            timeout=10,
            check_same_thread=False,
        )


def publish(alias: str, entry: dict[str, Any]) -> None:
    """Fill in where the database ``alias`` is, for all connections made from now on."""
    connections[alias].close()
    connections.settings[alias].update(entry)


def migrate(alias: str) -> None:
    """Make the tables, as an operator would."""
    call_command("migrate", database=alias, run_syncdb=True, verbosity=0, interactive=False)
    connections[alias].close()


@contextmanager
def moved(alias: str, port: int) -> Iterator[None]:
    """Reach the database ``alias`` through another port for a while."""
    entry = {"PORT": connections.settings[alias]["PORT"]}
    publish(alias, {"PORT": str(port)})
    try:
        yield
    finally:
        publish(alias, entry)


@contextmanager
def another_file(alias: str, journal: str) -> Iterator[SQLite]:
    """Let the SQLite database ``alias`` be a new file with that journal for a while.

    A file changes its journal only while nothing else has it open, and other tests may.
    """
    database = SQLite()
    assert database.execute(f"PRAGMA journal_mode = {journal}") == [(journal,)]
    entry = {"NAME": connections.settings[alias]["NAME"]}
    publish(alias, {"NAME": database.name})
    try:
        migrate(alias)
        yield database
    finally:
        publish(alias, entry)
        database.close()
