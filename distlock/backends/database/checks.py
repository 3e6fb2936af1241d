"""System checks of a database that keeps locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import NotSupportedError, connections

from distlock.backends.testcase import in_test_environment
from distlock.models import DatabaseLock

#: where Django notes what has been migrated
_MIGRATIONS = "django_migrations"

TABLE = DatabaseLock._meta.db_table
#: Signs in the settings of PostgreSQL that a pooler stands before it; 6432 is PgBouncer's own port.
POOLER_PORT = "6432"
POOLER_HOSTS = ("pgbouncer", "pgcat", "pooler")
#: How often a pooler is asked whose session is whose.
_TRIES = 5


def settings_checks(alias: str, database: str, wait: str) -> Iterator[CheckMessage]:
    """Check the settings of the database ``database``, which ``DISTLOCK[alias]`` names."""
    entry = f"DISTLOCK[{alias!r}]"
    try:
        connection = connections[database]
    except ImproperlyConfigured as error:
        yield Error(
            f"The driver of the database {database!r} is not installed: {error}",
            hint='Install it, with `python -m pip install "django-distlock[mysql]"`, or'
            ' "[postgresql]".',
            obj=entry,
            id="distlock.E002",
        )
        return
    if connection.vendor == "sqlite":
        yield from _sqlite(entry, connection.settings_dict)
    elif connection.vendor == "postgresql" and wait == "native":
        yield from _pooler(entry, connection.settings_dict)


def _sqlite(entry: str, database: dict[str, Any]) -> Iterator[CheckMessage]:
    tested = in_test_environment()  # where every thread sees one database
    if not tested and str(database["NAME"]) in ("", ":memory:"):
        yield Error(
            "The locks live in a SQLite database in memory, which every connection has for itself.",
            hint="Give the database a file, or use distlock.backends.local.LocalBackend.",
            obj=entry,
            id="distlock.E003",
        )
    elif not settings.DEBUG and not tested:
        yield Warning(
            "The locks live in SQLite, so only the processes of this host exclude each other.",
            hint="Use MariaDB, MySQL or PostgreSQL if several hosts take the same locks; silence"
            " this with SILENCED_SYSTEM_CHECKS if there is only this one.",
            obj=entry,
            id="distlock.W002",
        )


def _pooler(entry: str, database: dict[str, Any]) -> Iterator[CheckMessage]:
    sign = None
    options = database.get("OPTIONS") or {}
    if database.get("DISABLE_SERVER_SIDE_CURSORS"):
        sign = "DISABLE_SERVER_SIDE_CURSORS is set"
    elif str(database.get("PORT")) == POOLER_PORT:
        sign = f"its port is {POOLER_PORT}"
    elif any(name in str(database.get("HOST")).lower() for name in POOLER_HOSTS):
        sign = f"its host is {database['HOST']}"
    elif "prepare_threshold" in options and options["prepare_threshold"] is None:
        sign = "prepare_threshold is None"
    if sign:
        yield Warning(
            f"The database seems to be reached through a connection pooler: {sign}. In transaction"
            " mode a pooler may strand the session that waits for a lock.",
            hint='Set OPTIONS["wait"] to "poll", or let OPTIONS["database"] name an alias that'
            " reaches the server directly.",
            obj=entry,
            id="distlock.W003",
        )


def database_checks(alias: str, database: str, wait: str) -> Iterator[CheckMessage]:
    """Ask the database ``database`` about the table of the locks, and how it is reached."""
    entry = f"DISTLOCK[{alias!r}]"
    try:
        yield from _table(entry, connections[database])
        if connections[database].vendor == "postgresql" and wait != "poll":
            yield from _found_pooler(entry, connections[database], wait)
    except NotSupportedError as error:
        yield Error(
            f"The server of the database {database!r} is too old: {error}.",
            hint="Upgrade the server.",
            obj=entry,
            id="distlock.E007",
        )
    except (DatabaseError, ImproperlyConfigured) as error:
        yield Warning(
            f"The database {database!r} could not be asked about its locks: {error}",
            hint="Locks raise LockUnavailable until it can be.",
            obj=entry,
            id="distlock.W005",
        )


def _found_pooler(entry: str, connection: Any, wait: str) -> Iterator[CheckMessage]:
    # A pooler tells its clients made-up ids.
    if _session_of(connection) == connection.connection.info.backend_pid:
        return
    if wait == "native":
        if not _shares_sessions(connection):
            return
        message = (
            "a connection pooler that gives one session to several clients: it strands the sessions"
            ' that wait for a lock, and OPTIONS["wait"] is "native".'
        )
        hint = 'Set OPTIONS["wait"] to "poll"'
    else:
        message = (
            "a connection pooler: locks are waited for by looking now and then, and not first come,"
            " first served."
        )
        hint = (
            'Set OPTIONS["wait"] to "poll" to agree with that, to "native" if the pooler keeps one'
            " session for each client (PgBouncer's pool_mode = session)"
        )
    yield Warning(
        f"The database {connection.alias!r} is reached through {message}",
        hint=f'{hint}, or let OPTIONS["database"] name an alias that reaches the server directly.',
        obj=entry,
        id="distlock.W003",
    )


def _session_of(connection: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _shares_sessions(connection: Any) -> bool:
    """Return whether two clients, or one after a while, get the same session from a pooler."""
    with closing(connection.copy()) as other:
        own = _session_of(connection)
        for _ in range(_TRIES):
            if own == _session_of(other) or own != _session_of(connection):
                return True
    return False


def _table(entry: str, connection: Any) -> Iterator[CheckMessage]:
    with connection.cursor() as cursor:
        introspection = connection.introspection
        found: set[str] = set()
        tables = introspection.table_names(cursor)
        if not {TABLE, _MIGRATIONS} & set(tables):
            return  # nothing has ever been migrated: this is the first `migrate`, as a rule
        if TABLE in tables:
            description = introspection.get_table_description(cursor, TABLE)
            found = {column.name for column in description}
        if missing := [c for f in _fields() if (c := str(f.column)) not in found]:
            # An error would stop the very command that makes the table.
            yield Warning(
                f"The table {TABLE} in the database {connection.alias!r} "
                + (f"lacks columns: {', '.join(missing)}." if found else "does not exist."),
                hint=f"Run `manage.py migrate distlock --database={connection.alias}`.",
                obj=entry,
                id="distlock.W004",
            )
            return
        constraints = introspection.get_constraints(cursor, TABLE).values()
        if not any(one["unique"] and one["columns"] == ["lock"] for one in constraints):
            yield Error(
                f"The table {TABLE} has no unique key on the column lock, which decides who gets"
                " a lock.",
                hint=f"Make one: CREATE UNIQUE INDEX uiq_idx_lock ON {TABLE} "
                f"({connection.ops.quote_name('lock')}).",
                obj=entry,
                id="distlock.E004",
            )
        if connection.vendor == "mysql":
            yield from _mysql(entry, cursor)
            yield from _galera(entry, connection.alias, cursor)
        yield from _durability(entry, connection.vendor, cursor)


def _mysql(entry: str, cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute(
        "SELECT engine FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = %s",
        [TABLE],
    )
    (engine,) = cursor.fetchone()
    if engine != "InnoDB":
        yield Error(
            f"The table {TABLE} uses the storage engine {engine}, which has no row locks.",
            hint=f"ALTER TABLE {TABLE} ENGINE = InnoDB.",
            obj=entry,
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
            obj=entry,
            id="distlock.E006",
        )


#: Of wsrep_sync_wait: reads, updates, deletes and inserts wait for what other nodes have committed.
_ALL_WAIT = 7


def _galera(entry: str, database: str, cursor: Any) -> Iterator[CheckMessage]:
    cursor.execute("SHOW VARIABLES LIKE 'wsrep_%'")
    settings = dict(cursor.fetchall())
    if settings.get("wsrep_on") != "ON":
        return
    cursor.execute("SHOW STATUS LIKE 'wsrep_cluster_size'")
    size = int(dict(cursor.fetchall()).get("wsrep_cluster_size", 1))
    wait = int(settings.get("wsrep_sync_wait", 0))
    if size > 1 and wait & _ALL_WAIT != _ALL_WAIT:
        yield Warning(
            f"The database {database!r} is a Galera cluster of {size} nodes with wsrep_sync_wait ="
            f" {wait}: where the connections of one process go to several nodes, the holder of a"
            " lock may not see what the last one has written.",
            hint="Set wsrep_sync_wait to 7 in the servers' configuration. If there is one node that"
            " all write through, silence this with SILENCED_SYSTEM_CHECKS. Either way keep the"
            " clocks of the nodes together: leases end by the clock of the node that is asked.",
            obj=entry,
            id="distlock.W007",
        )


class _Durability(NamedTuple):
    """A setting by which a server may forget a commit; no session can choose it for itself."""

    setting: str
    question: str
    durable: tuple[str, ...]
    after: str  # what then can make it forget


_MACHINE = "a crash of its machine"
_DURABLE = {
    "postgresql": [
        _Durability("fsync", "SHOW fsync", ("on",), _MACHINE),
        _Durability("full_page_writes", "SHOW full_page_writes", ("on",), _MACHINE),
    ],
    "mysql": [
        _Durability(
            "innodb_flush_log_at_trx_commit",
            "SELECT @@global.innodb_flush_log_at_trx_commit",
            ("1", "3"),
            "a crash",
        ),
        # With a binary log it is that log which decides after a crash what was committed.
        # https://mariadb.com/kb/en/binary-log-group-commit-and-innodb-flushing-performance/
        _Durability(
            "sync_binlog",
            "SELECT IF(@@global.log_bin, @@global.sync_binlog, 1)",
            ("1",),
            _MACHINE,
        ),
    ],
}


def _durability(entry: str, vendor: str, cursor: Any) -> Iterator[CheckMessage]:
    for setting, question, durable, after in _DURABLE.get(vendor, ()):
        cursor.execute(question)
        (value,) = cursor.fetchone()
        if str(value) not in durable:
            yield Warning(
                f"The server has {setting} = {value}: after {after} it may have forgotten who"
                " holds a lock, and grant it to a second one.",
                hint=f"Set {setting} to {durable[0]} in the server's configuration.",
                obj=entry,
                id="distlock.W006",
            )


def _fields() -> Any:
    return DatabaseLock._meta.concrete_fields
