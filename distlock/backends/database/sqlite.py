"""SQLite 3.35 and later: its words for locks and records, and waiting for locks in it.

SQLite has no queue, but all who wait are on one machine. So they queue for a mutex of the file
system: its holder looks at the row of the lock, and all others look at the mutex, which costs
next to nothing. So a thread that frees the lock and asks again comes after the other waiters.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import math
import os
import random
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from django.db import connections

from distlock.backends.database.connection import Connection, DatabaseSession
from distlock.backends.database.record_sql import (
    DIRECTORIES,
    RECORDS,
    SESSIONS,
    ApplyResult,
    Edit,
    RecordSQL,
    by_shape,
)
from distlock.backends.database.sql import Dialect
from distlock.backends.database.sqlite_session import in_transaction
from distlock.backends.database.statements import Statement, in_list, named_values
from distlock.backends.store import Address
from distlock.concurrency.clock import clock, left
from distlock.concurrency.steps import Sleep, Step, Steps
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named

#: The holder of the mutex looks so often that it adds no more than this part to its wait.
_OVERHEAD = 0.02
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
#: Seconds between two attempts to get the mutex.
_MUTEX_PAUSE = 0.004
#: Seconds between two looks at the row without the mutex: its owner may have been stopped.
_ROW_PERIOD = 0.5

_SUFFIX = "-distlock"
_HIGHEST_BYTE = 2**62

# Text in UTC, to the millisecond, as Django reads it.
_TIME = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'{0})"


class SQLite(Dialect):
    """SQLite, whose one writer at a time keeps everyone else from taking a lock meanwhile."""

    NOW: ClassVar[str] = _TIME.format("")
    LATER: ClassVar[str] = _TIME.format(", '+' || {0} || ' seconds'")
    EARLIER: ClassVar[str] = _TIME.format(", '-' || {0} || ' seconds'")
    MICROSECONDS: ClassVar[str] = (
        "(CAST(strftime('%%s', 'now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%%f', 'now'), 4) AS INTEGER) * 1000)"
    )
    GREATEST: ClassVar[str] = "max"
    UNITS: ClassVar[int] = 1000
    # It has no locks of rows; but there is only one writer at a time.
    FOR_UPDATE: ClassVar[str] = ""
    GUARD: ClassVar[str] = "expires_at = expires_at"
    # LOWER() takes three times as long, and knows no other letters than this.
    CONTAINS: ClassVar[str] = "{0} LIKE '%%' || %(search)s || '%%' ESCAPE '!'"
    BEGINS: ClassVar[str] = "{0} LIKE %(search)s || '%%' ESCAPE '!'"
    EQUALS: ClassVar[str] = "{0} LIKE %(search)s ESCAPE '!'"
    SKIP_LOCKED: ClassVar[str] = ""
    WHO: ClassVar[str] = "(host || ':' || process || ':' || thread)"
    one_writer: ClassVar[bool] = True

    def search_params(self, search: str) -> dict[str, str]:
        return {"search": re.sub("[%_!]", r"!\g<0>", search)}

    def ends_within(self, seconds: str) -> str:
        # Its other form, a text of each row's time, takes twice as long.
        return f"(julianday(expires_at) - julianday('now')) * 86400.0 <= ({seconds})"

    def reads_snapshot(self, connection: Any) -> bool:
        return True

    @functools.lru_cache(maxsize=128)  # noqa: B019 - as Dialect.duration()
    def duration(self, seconds: float) -> str:
        return f"{super().duration(seconds) / self.UNITS:.3f}"

    def to_db(self, moment: datetime) -> str:
        time: datetime = super().to_db(moment)
        return time.isoformat(sep=" ", timespec="milliseconds")

    def from_db(self, value: Any) -> datetime:
        # Columns have been converted by Django, expressions have not.
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return super().from_db(time)


SQLITE = SQLite()


#: the first version with RETURNING
_OLDEST = (3, 35)


def too_old() -> str | None:
    """Return why this library cannot keep locks, if that is so."""
    if sqlite3.sqlite_version_info < _OLDEST:
        return f"SQLite must be 3.35 or later, this is {sqlite3.sqlite_version}"
    return None


def set_options(options: dict[str, Any], limit: float, timeout: float, blocking: bool) -> None:
    """Set the driver's options for a session; see open_session() for the arguments."""
    # Django runs statements of its own, and those of "init_command", on a new connection.
    options["timeout"] = min(limit, options.get("timeout", limit))


def set_up(session: DatabaseSession, limit: float, blocking: bool, pooled: bool | None) -> None:
    """Let no statement of ours wait in the library: see SQLiteSession.ask()."""
    session.run(Statement("PRAGMA busy_timeout = 0"), limit)


class SQLiteRecords(RecordSQL):
    """SQLite: transactions of this process, which keep all others from writing."""

    PAUSES: ClassVar[tuple[float, float]] = (0.02, 0.25)
    HAS: ClassVar[str] = (
        "r.value LIKE '%%' || %(text)s || '%%' OR INSTR(r.value, %(escape)s) > 0"
        " OR LENGTH(CAST(r.value AS BLOB)) <> LENGTH(r.value)"
    )

    @in_transaction
    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> ApplyResult:
        """See RecordSQL.apply()."""
        params, ask = edit.params(), connection.ask
        if create:
            ask(Statement(self._create, params))
        look, *writes = self._texts(edit)
        rows = ask(Statement(look, params)).rows
        if not rows:
            return ApplyResult(None, found=False)
        ((directory, revision, is_held, living),) = rows
        params |= {"id": directory, "new": revision}
        if not is_held or living != len(edit.sessions):
            look = f"SELECT {self._stale.format('%(id)s')}"  # it looks at all that has a session
            ((stale,),) = ask(Statement(look, params)).rows
            return ApplyResult(None, held=bool(is_held), stale=bool(stale))
        for statement in writes:
            ask(Statement(statement, params))
        return ApplyResult(int(revision))

    @by_shape
    def _texts(self, edit: Edit) -> list[str]:
        held = self._conditions(edit, "d.id", "d.revision")
        some = in_list("id", "session", edit.sessions)  # "IN ()" is false here
        alive = f"SELECT COUNT(*) FROM {SESSIONS} WHERE {some} AND {self.sessions.runs}"
        statements = [
            f"SELECT d.id, {self.next}, {held}, ({alive})"
            f" FROM {DIRECTORIES} d WHERE d.name = %(directory)s",
            f"UPDATE {DIRECTORIES} SET revision = %(new)s WHERE id = %(id)s",
        ]
        if edit.deleted:
            statements.append(
                f"DELETE FROM {RECORDS} WHERE directory = %(id)s"
                f" AND {in_list('name', 'deleted', edit.deleted)}"
            )
        if edit.puts:
            row = "(%(id)s, %(key{0})s, %(value{0})s, %(new)s, %(new)s, %(bound{0})s)"
            values = ", ".join(map(row.format, range(len(edit.puts))))
            statements.append(f"{self.PUT} VALUES {values} {self.REPLACE}")
        return statements

    def renew_all(
        self, connection: Connection, sessions: Sequence[str], records: Sequence[Address]
    ) -> list[tuple[str, str]]:
        """See RecordSQL.renew_all()."""
        if sessions:
            connection.ask(self.renew(sessions))
        return connection.ask(self.there(sessions, records)).rows

    @in_transaction
    def end(
        self, connection: Connection, sessions: Sequence[str], *, expired: bool
    ) -> Sequence[Address]:
        """See RecordSQL.end()."""
        for statement in self._ending(sessions, expired=expired):
            connection.ask(Statement(statement, named_values("session", sessions)))
        return []


def poll_in_turn(
    database: str,
    claim: Claim,
    deadline: float | None,
    attempt: Callable[[Claim, float | None], Step],
) -> Steps[Lease | None]:
    """See BaseBackend.enqueue(). ``database`` is an alias, ``attempt`` BaseBackend.attempt()."""
    path = str(connections[database].settings_dict.get("NAME") or "")
    locked_at: float | None = None
    # A named owner may hold the lock already, from elsewhere, and need not wait for anybody.
    look_at = 0.0 if is_named(claim.owner) else clock() + _ROW_PERIOD
    with FileMutex(path, claim.name) as mutex:
        while True:
            rest, now = left(deadline, math.inf), clock()
            pause = _MUTEX_PAUSE
            if mutex.try_lock():
                locked_at = now if locked_at is None else locked_at
                pause = min(max((now - locked_at) * _OVERHEAD, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            if mutex.locked or now >= look_at or rest <= 0:
                look_at = now + _ROW_PERIOD
                lease: Lease | None = yield attempt(claim, deadline)
                if lease is not None:
                    return lease
            if rest <= 0:
                return None
            yield Sleep(min(rest, pause * random.uniform(0.5, 1.0)))


class FileMutex:
    """A mutex of all processes of a machine, one for each lock; the system frees it at their end.

    It is a lock on one byte, chosen by the lock's name, of a file beside the database. It holds no
    lock of ours: it says only whose turn it is to try. Where no file can be locked, all have it.
    """

    def __init__(self, database: str, name: str) -> None:
        """``database`` is the path of the database's file."""
        digest = hashlib.sha256(name.encode()).digest()
        self._byte = int.from_bytes(digest[:8], "big") % _HIGHEST_BYTE
        self._file = _file(database)
        self.locked = False

    def __enter__(self) -> FileMutex:
        return self

    def __exit__(self, *_: object) -> None:
        if self.locked and self._file is not None:
            self.locked = False
            with suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._byte)

    def try_lock(self) -> bool:
        """Lock it if nobody else has; it stays locked until this is left as a context manager."""
        if not self.locked and self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._byte)
            except BlockingIOError:
                return False
            except OSError:  # not all file systems can; or it is EACCES: "not now", for some
                pass
        self.locked = True
        return True


# They are never closed: that would free all mutexes of the process.
_files: dict[str, int] = {}


def _file(database: str) -> int | None:
    """Return the descriptor of the file for a database's mutexes; None if there can be none now."""
    if database not in _files:
        if database == ":memory:" or database.startswith("file:") or not Path(database).is_file():
            return None
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            file = os.open(f"{database}{_SUFFIX}", flags, 0o666)
            _files.setdefault(database, file)  # two threads may have opened it: neither is closed
    return _files.get(database)
