"""System checks of a database that keeps locks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import NotSupportedError, connections

from distlock.backends.open_transactions import in_test_environment
from distlock.migrations._create_table import lacks
from distlock.models import DatabaseLock, DatabaseRecord, RecordDirectory, RecordSession

TABLE = DatabaseLock._meta.db_table
_MODELS = (DatabaseLock, RecordDirectory, DatabaseRecord, RecordSession)
#: the table in which Django notes what has been migrated
_MIGRATIONS = "django_migrations"
#: How often the ids of two connections are compared, to see whether a pooler mixes them up.
_COMPARISONS = 5
#: The value of wsrep_sync_wait with which reads, updates, deletes and inserts all wait.
_ALL_WAIT = 7

#: Of the beginning of a SQLite file: how long it is, where it says how it is written, and what it
#: says then of a rollback journal.
_HEADER, _WRITES, _ROLLBACK_JOURNAL = 19, 18, b"\x01"

#: The statements on the rows of each table; and the same with no row at all.
_NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE")
_WRITE_NOTHING = (
    "INSERT INTO {0} SELECT * FROM {0} WHERE 1 = 0",
    "UPDATE {0} SET id = id WHERE 1 = 0",
    "DELETE FROM {0} WHERE 1 = 0",
)

#: By vendor, the settings by which a server may forget a commit, and which no session can set for
#: itself: name, query, the durable values (the first is recommended), and what it may forget after.
_DURABILITY: dict[str, list[tuple[str, str, tuple[str, ...], str]]] = {
    "postgresql": [
        ("fsync", "SHOW fsync", ("on",), "a crash of its machine"),
        ("full_page_writes", "SHOW full_page_writes", ("on",), "a crash of its machine"),
    ],
    "mysql": [
        (
            "innodb_flush_log_at_trx_commit",
            "SELECT @@global.innodb_flush_log_at_trx_commit",
            ("1", "3"),
            "a crash",
        ),
        # With a binary log it is that log which decides after a crash what was committed.
        # https://mariadb.com/kb/en/binary-log-group-commit-and-innodb-flushing-performance/
        (
            "sync_binlog",
            "SELECT IF(@@global.log_bin, @@global.sync_binlog, 1)",
            ("1",),
            "a crash of its machine",
        ),
    ],
}


def settings_checks(alias: str, database: str) -> Iterator[CheckMessage]:
    """Check the settings of ``DATABASES[database]``, which ``DISTLOCK[alias]`` names.

    Connects to nothing.
    """
    connection = connections[database]
    # In tests all threads share one connection, and there is one process.
    if connection.vendor != "sqlite" or in_test_environment():
        return
    entry = f"DISTLOCK[{alias!r}]"
    if str(connection.settings_dict["NAME"]) in ("", ":memory:"):
        yield Error(
            "The locks live in a SQLite database in memory, and every connection has its own.",
            hint="Give the database a file, or use distlock.backends.local.LocalBackend.",
            obj=entry,
            id="distlock.E003",
        )
    elif not settings.DEBUG:
        yield Warning(
            "The locks live in SQLite, so only the processes of this host exclude each other.",
            hint="Use MariaDB, MySQL or PostgreSQL if several hosts take the same locks; silence"
            " this with SILENCED_SYSTEM_CHECKS if there is only this one.",
            obj=entry,
            id="distlock.W002",
        )


def deployment_checks(alias: str, database: str) -> Iterator[CheckMessage]:
    """Check what would make ``DATABASES[database]`` better in production. Connects to nothing."""
    connection = connections[database]
    if connection.vendor != "sqlite" or in_test_environment():
        return
    try:
        with Path(str(connection.settings_dict["NAME"])).open("rb") as file:
            header = file.read(_HEADER)
    except OSError:  # it has not been made yet, or is in memory
        return
    # https://www.sqlite.org/fileformat2.html#file_format_version_numbers
    if header[_WRITES:] == _ROLLBACK_JOURNAL:
        yield Warning(
            "The locks live in a SQLite file with a rollback journal: a lock that is acquired and"
            " released waits for the disk eight times, and readers and writers for each other.",
            hint="Run `PRAGMA journal_mode = WAL` in it once, which lasts. Then a lock waits for"
            " the disk once. A file on a network file system has to stay as it is.",
            obj=f"DISTLOCK[{alias!r}]",
            id="distlock.W011",
        )


def database_checks(alias: str, database: str, wait: str) -> Iterator[CheckMessage]:
    """Ask the database ``database`` about the table of the locks, its server and poolers.

    ``wait`` is ``OPTIONS["wait"]`` of ``DISTLOCK[alias]``.
    """
    for message in _database_checks(database, wait):
        message.obj = f"DISTLOCK[{alias!r}]"
        yield message


def _database_checks(database: str, wait: str) -> Iterator[CheckMessage]:
    connection = connections[database]
    try:
        with connection.cursor() as cursor:
            yield from _table(connection, cursor)
        if connection.vendor == "postgresql" and wait != "poll":
            yield from _pooler(connection, wait)
    except NotSupportedError as error:
        yield Error(
            f"The server of the database {database!r} is too old: {error}.",
            hint="Upgrade the server.",
            id="distlock.E007",
        )
    except (DatabaseError, ImproperlyConfigured) as error:
        yield Warning(
            f"The database {database!r} could not be asked about its locks: {error}",
            hint="Locks raise LockUnavailable until it answers.",
            id="distlock.W005",
        )


def _table(connection: Any, cursor: Any) -> Iterator[CheckMessage]:
    introspection = connection.introspection
    tables = introspection.table_names(cursor)
    if TABLE not in tables and _MIGRATIONS not in tables:
        return  # nothing has been migrated yet: most probably this is the first `migrate`
    for model in _MODELS:
        table, problem = model._meta.db_table, "does not exist"
        if table in tables:
            columns, keys = lacks(connection, cursor, model)
            problem = f"lacks columns: {', '.join(columns)}" if columns else ""
        if problem:
            # A warning: an error would stop the very command that makes the table.
            yield Warning(
                f"The table {table} in the database {connection.alias!r} {problem}.",
                hint=f"Run `manage.py migrate distlock --database={connection.alias}`.",
                id="distlock.W004",
            )
            if model is DatabaseLock:
                return
        else:
            yield from _unique_keys(connection, table, keys)
            yield from _rights(connection, cursor, table)
    if connection.vendor == "mysql":
        yield from _mysql(cursor)
        yield from _galera(connection.alias, cursor)
    yield from _durability(connection.vendor, cursor)


def _unique_keys(connection: Any, table: str, lacking: Iterable[Any]) -> Iterator[CheckMessage]:
    for key in lacking:
        columns = list(key.fields)
        yield Error(
            f"The table {table} has no unique key on {' and '.join(columns)}, which decides who"
            " gets a lock.",
            hint=f"Make one: CREATE UNIQUE INDEX {key.name} ON {table} "
            f"({', '.join(map(connection.ops.quote_name, columns))}).",
            id="distlock.E004",
        )


def _rights(connection: Any, cursor: Any, table: str) -> Iterator[CheckMessage]:
    """Warn if the user may not do with a table what locks need. Changes nothing."""
    quoted = connection.ops.quote_name(table)
    problem, hint = None, f"GRANT {', '.join(_NEEDED)} ON {quoted} TO its user"
    if connection.vendor == "postgresql":
        cursor.execute(
            "SELECT row_security_active(%s::regclass), current_setting('transaction_read_only'),"
            " ARRAY(SELECT need FROM unnest(%s::text[]) need"
            " WHERE NOT has_table_privilege(%s, need))",
            [quoted, list(_NEEDED), quoted],
        )
        row_security, read_only, missing = cursor.fetchone()
        if missing:
            problem = f"its user may not {', '.join(missing)} there"
        elif read_only == "on":
            problem, hint = "its sessions are read-only", "Use an alias that can write"
        elif row_security:
            problem = "row-level security applies to its user, which may hide what others hold"
            hint = (
                f"ALTER TABLE {quoted} DISABLE ROW LEVEL SECURITY; or silence this with"
                " SILENCED_SYSTEM_CHECKS if the policies let that user read and write all rows"
            )
    elif connection.vendor == "mysql":
        try:
            for text in _WRITE_NOTHING:
                cursor.execute(text.format(quoted))
        except DatabaseError as error:
            problem = f"writing is refused: {error.args[-1]}"
    if problem is not None:
        yield Warning(
            f"The table {table} in the database {connection.alias!r} cannot keep locks: {problem}.",
            hint=f"{hint}.",
            id="distlock.W010",
        )


def _mysql(cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute(
        "SELECT table_name, engine FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND engine <> 'InnoDB'",
    )
    others = {str(table): engine for table, engine in cursor.fetchall()}
    for table in (model._meta.db_table for model in _MODELS):
        if table in others:
            yield Error(
                f"The table {table} uses the storage engine {others[table]}, which has no row"
                " locks.",
                hint=f"ALTER TABLE {table} ENGINE = InnoDB.",
                id="distlock.E005",
            )
    cursor.execute(
        "SELECT collation_name FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND table_name = %s AND column_name = 'lock'",
        [TABLE],
    )
    (collation,) = cursor.fetchone()
    if not str(collation).endswith("_bin"):
        yield Error(
            f"The column lock of {TABLE} has the collation {collation}, which takes different"
            " names for the same lock.",
            hint=f"ALTER TABLE {TABLE} MODIFY `lock` varchar(564) "
            " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL.",
            id="distlock.E006",
        )


def _galera(database: str, cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute("SHOW STATUS LIKE 'wsrep_cluster_size'")
    size = int(dict(cursor.fetchall()).get("wsrep_cluster_size", 0))
    if size < 2:
        return
    cursor.execute("SELECT @@wsrep_sync_wait")
    (wait,) = cursor.fetchone()
    if wait & _ALL_WAIT != _ALL_WAIT:
        yield Warning(
            f"The database {database!r} is a Galera cluster of {size} nodes with wsrep_sync_wait ="
            f" {wait}: where the connections of one process go to several nodes, the holder of a"
            " lock may not see the writes of the last one.",
            hint="Set wsrep_sync_wait to 7 in the servers' configuration. If there is one node that"
            " all write through, silence this with SILENCED_SYSTEM_CHECKS. Either way keep the"
            " clocks of the nodes together: leases end by the clock of the node that answers.",
            id="distlock.W007",
        )


def _durability(vendor: str, cursor: Any) -> Iterator[CheckMessage]:
    for setting, query, durable, after in _DURABILITY.get(vendor, ()):
        cursor.execute(query)
        (value,) = cursor.fetchone()
        if str(value) not in durable:
            yield Warning(
                f"The server has {setting} = {value}: after {after} it may have forgotten who"
                " holds a lock, and grant it to a second one.",
                hint=f"Set {setting} to {durable[0]} in the server's configuration.",
                id="distlock.W006",
            )


def _pooler(connection: Any, wait: str) -> Iterator[CheckMessage]:
    # A pooler invents the ids that it gives to its clients.
    if _server_process(connection) == connection.connection.info.backend_pid:
        return
    if wait == "auto":
        message = (
            "waiters for locks, and for changes of semaphores and the like, poll, and locks are"
            " not first come, first served."
        )
        hint = (
            'Set OPTIONS["wait"] to "poll" to accept that, to "native" if the pooler keeps one'
            " session for each client (PgBouncer's pool_mode = session)"
        )
    elif _shares_sessions(connection):
        message = (
            "it gives one session to several clients, which strands the sessions that wait for a"
            ' lock, and OPTIONS["wait"] is "native".'
        )
        hint = 'Set OPTIONS["wait"] to "poll"'
    else:
        return
    yield Warning(
        f"The database {connection.alias!r} is reached through a connection pooler: {message}",
        hint=f'{hint}, or let OPTIONS["database"] name an alias that reaches the server directly.',
        id="distlock.W003",
    )


def _server_process(connection: Any) -> int:
    """Return the id of the server process that runs a statement of this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _shares_sessions(connection: Any) -> bool:
    """Return whether a pooler gives two connections one process, or one of them several in turn."""
    with closing(connection.copy()) as other:
        own = _server_process(connection)
        return any(
            own == _server_process(other) or own != _server_process(connection)
            for _ in range(_COMPARISONS)
        )
