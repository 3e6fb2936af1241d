"""How a statement can fail, told from the errors of the drivers."""

from __future__ import annotations

import sqlite3
from typing import Any

from distlock.backends.database.statements import renamed_tables
from distlock.exceptions import LockUnavailable, NotPermitted

#: Seconds that a statement waits for a locked row: a transaction that only commits needs less.
ROW_WAIT = 1.0
#: Seconds within which a locked row looks like a silent server.
BRIEF = 1.5 * ROW_WAIT


class StatementFailed(Exception):
    """A statement failed, or had no answer. The driver's error is the ``__cause__``."""

    #: whether the session can go on
    usable = False
    #: whether the server may have carried the statement out all the same
    maybe_applied = True


class NoSession(StatementFailed):
    """No session could be opened, so nothing was sent."""

    maybe_applied = False


class ConnectionLost(StatementFailed):
    """The session ended before the answer came: the server stopped, or the network broke."""


class NotPrepared(ConnectionLost):
    """The session no longer knows its prepared statements, or those of this table."""

    maybe_applied = False


class StatementTimeout(StatementFailed):
    """The answer did not come in time, and the session was given up."""


class Refused(StatementFailed):
    """The database has not carried the statement out, and the session can go on."""

    usable = True
    maybe_applied = False


class RowLocked(Refused):
    """A transaction of someone else kept a row, or the table, locked for as long as ROW_WAIT."""


class FileLocked(Refused):
    """SQLite: another connection was writing for as long as the statement could wait."""


class TableLocked(FileLocked):
    """SQLite with a shared cache: another connection of this process was writing."""


class SerializationFailure(Refused):
    """The engine ended this statement because of a deadlock or a concurrent write; try again."""


class StatementCancelled(StatementFailed):
    """Another session cancelled the statement."""

    usable = True


class NotReplicated(StatementCancelled):
    """The wait for the synchronous standby was cancelled: the standby may not have the commit.

    PostgreSQL reports a success, with a warning. After a failover the commit may be gone.
    """


class NoRight(StatementFailed):
    """The user of the database lacks a right."""


class NotAdmitted(NoSession, NoRight):
    """The server lets this user open no session; drivers of PostgreSQL do not tell that."""


class NoTable(StatementFailed):
    """The table of the locks has not been made yet."""

    maybe_applied = False


_LOCKED = "another transaction keeps the row of the lock, or the whole table, locked"

# https://mariadb.com/kb/en/mariadb-error-code-reference/
_MYSQL: dict[int, type[StatementFailed]] = {
    1205: RowLocked,  # ER_LOCK_WAIT_TIMEOUT
    3572: RowLocked,  # ER_LOCK_NOWAIT
    1094: Refused,  # ER_NO_SUCH_THREAD
    1095: Refused,  # ER_KILL_DENIED_ERROR
    1044: NoRight,  # ER_DBACCESS_DENIED_ERROR
    1045: NoRight,  # ER_ACCESS_DENIED_ERROR
    1142: NoRight,  # ER_TABLEACCESS_DENIED_ERROR
    1143: NoRight,  # ER_COLUMNACCESS_DENIED_ERROR
    1227: NoRight,  # ER_SPECIFIC_ACCESS_DENIED_ERROR
    1698: NoRight,  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
    1213: SerializationFailure,  # ER_LOCK_DEADLOCK
    1020: SerializationFailure,  # ER_CHECKREAD
    1317: StatementCancelled,  # ER_QUERY_INTERRUPTED
    1146: NoTable,  # ER_NO_SUCH_TABLE
    1243: NotPrepared,  # ER_UNKNOWN_STMT_HANDLER: a proxy has changed the session, or reset it
    1615: NotPrepared,  # ER_NEED_REPREPARE: the table is changed all the time
    1047: ConnectionLost,  # ER_UNKNOWN_COM_ERROR: a Galera node that is cut off from the others
    1053: ConnectionLost,  # ER_SERVER_SHUTDOWN
    1158: ConnectionLost,  # ER_NET_READ_ERROR
    1159: ConnectionLost,  # ER_NET_READ_INTERRUPTED
    1160: ConnectionLost,  # ER_NET_ERROR_ON_WRITE
    1161: ConnectionLost,  # ER_NET_WRITE_INTERRUPTED
    1180: ConnectionLost,  # ER_ERROR_DURING_COMMIT: a Galera node that is being cut off
    1927: ConnectionLost,  # ER_CONNECTION_KILLED
    2006: ConnectionLost,  # CR_SERVER_GONE_ERROR
    2013: ConnectionLost,  # CR_SERVER_LOST
    2026: ConnectionLost,  # CR_SSL_CONNECTION_ERROR: over TLS it stands for all of these
    2055: ConnectionLost,  # CR_SERVER_LOST_EXTENDED
    4031: ConnectionLost,  # ER_CLIENT_INTERACTION_TIMEOUT
    5013: ConnectionLost,  # CR_ERR_NET_READ
    5014: ConnectionLost,  # CR_ERR_NET_WRITE
}

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRESQL: dict[str, type[StatementFailed]] = {
    "55P03": RowLocked,  # lock_not_available
    "28000": NoRight,  # invalid_authorization_specification
    "28P01": NoRight,  # invalid_password
    "42501": NoRight,  # insufficient_privilege, also by row-level security
    "40P01": SerializationFailure,  # deadlock_detected
    "40001": SerializationFailure,  # serialization_failure
    "57014": StatementCancelled,  # query_canceled
    "42P01": NoTable,  # undefined_table
    "57P01": ConnectionLost,  # admin_shutdown
    "57P02": ConnectionLost,  # crash_shutdown
    "57P05": ConnectionLost,  # idle_session_timeout
    "26000": NotPrepared,  # a prepared statement is gone: a pooler has changed the session
    "0A000": NotPrepared,  # the table is another one now than when it was prepared
    "25P03": ConnectionLost,  # idle_in_transaction_session_timeout
}


# https://www.sqlite.org/rescode.html
_SQLITE: dict[int, type[StatementFailed]] = {
    sqlite3.SQLITE_BUSY: FileLocked,
    sqlite3.SQLITE_LOCKED: TableLocked,
    sqlite3.SQLITE_PERM: NoRight,
    sqlite3.SQLITE_READONLY: NoRight,  # the file, or its folder, cannot be written
    sqlite3.SQLITE_AUTH: NoRight,
}


def failure(error: Any, vendor: str) -> type[StatementFailed]:
    """Return what kind of failure a driver's error is; Django may have wrapped it."""
    if error.__cause__ is not None and type(error).__module__ == "django.db.utils":
        error = error.__cause__
    if vendor == "mysql":
        return _MYSQL.get(error.args[0] if error.args else 0, StatementFailed)
    if vendor == "postgresql":
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg2
        if state is None:
            # It did not come from the server: the connection broke, or the driver found a mistake.
            broke = type(error).__name__ in ("OperationalError", "InterfaceError")
            return ConnectionLost if broke else StatementFailed
        if state.startswith("08"):  # connection exceptions
            return ConnectionLost
        return _POSTGRESQL.get(state, StatementFailed)
    # Extended codes keep the primary one in the low byte.
    # Errors of Python's own module have none.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if "no such table" in str(error):
        return NoTable
    return _SQLITE.get(code, StatementFailed)


def seems_locked(failed: StatementFailed) -> StatementFailed:
    """Return the error of a write that failed just after the row had been read."""
    if not isinstance(failed, StatementTimeout):
        return failed
    locked = StatementTimeout(f"{_LOCKED}, or the server has just stopped answering: {failed}")
    locked.__cause__ = failed.__cause__
    return locked


def unavailable(failed: StatementFailed, database: str, tables: str = "") -> LockUnavailable:
    """Return the error that callers of the backend get to see.

    ``tables`` is what the database needs, if it is not the table of the locks.
    """
    cause = failed.__cause__
    # libpq's messages have several lines; callers print and log this one as it is.
    why = " ".join(str(cause).split())
    if isinstance(failed, NoTable):
        name = renamed_tables().get("database_lock")
        tables = tables or f"table for locks{f' ({name})' if name else ''}"
        message = (
            f"database {database!r} has no {tables}:"
            f" run `manage.py migrate distlock --database={database}`"
        )
    elif isinstance(failed, RowLocked):
        message = f"database {database!r}: {_LOCKED}: {failed}"
    else:
        message = f"database {database!r}: {failed}"
        if cause is not None and why not in message:
            message += f": {why}"
    error = (NotPermitted if isinstance(failed, NoRight) else LockUnavailable)(message)
    error.maybe_applied = failed.maybe_applied
    error.__cause__ = cause
    return error
