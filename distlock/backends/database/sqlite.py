"""SQLite 3.35 and later: its SQL, and waiting for locks in it.

SQLite has no queue, but all who wait are on one machine. So they queue for a mutex of the file
system: whoever has it looks at the row of the lock, and all others look at the mutex, which costs
next to nothing. So a thread that frees the lock and asks again comes after the other waiters.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from django.db import connections

from distlock.backends.database.sql import TABLE, Dialect, upsert
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock, left
from distlock.concurrency.steps import Sleep, Step, Steps
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named

#: Whoever has the mutex looks so often that it adds no more than this part to its wait.
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
_NOW = _TIME.format("")
_LATER = _TIME.format(", '+' || {0} || ' seconds'")
_MICROSECONDS = (
    "(CAST(strftime('%%s', 'now') AS INTEGER) * 1000000"
    " + CAST(substr(strftime('%%f', 'now'), 4) AS INTEGER) * 1000)"
)


class SQLite(Dialect):
    """SQLite, whose one writer at a time keeps everyone else from taking a lock meanwhile."""

    ACQUIRE: ClassVar[str] = upsert(_NOW, _LATER, _MICROSECONDS, greatest="max")
    NOW: ClassVar[str] = _NOW
    LATER: ClassVar[str] = _LATER
    MICROSECONDS: ClassVar[str] = _MICROSECONDS
    UNITS: ClassVar[int] = 1000
    EARLIER: ClassVar[str] = _TIME.format(", '-' || {0} || ' seconds'")
    FOR_UPDATE: ClassVar[str] = ""
    WHO: ClassVar[str] = "(host || ':' || process || ':' || thread)"
    guards_early: ClassVar[bool] = True
    one_writer: ClassVar[bool] = True

    def ends_within(self, seconds: str) -> str:
        # Its other form, a text of each row's time, takes twice as long.
        return f"(julianday(expires_at) - julianday('now')) * 86400.0 <= ({seconds})"

    def unlocked(self, leases: Sequence[Lease]) -> Statement | None:
        return None  # it has no locks of rows

    def guard(self, lease: Lease, table: str = TABLE) -> Statement:
        # Rows cannot be locked; but whoever writes is the only one who can.
        where, params = self.where_held([lease])
        return Statement(f"UPDATE {table} SET expires_at = expires_at WHERE {where}", params)

    def duration(self, seconds: float) -> str:
        return f"{super().duration(seconds) / self.UNITS:.3f}"

    def to_db(self, moment: datetime) -> str:
        time: datetime = super().to_db(moment)
        return time.isoformat(sep=" ", timespec="milliseconds")

    def from_db(self, value: Any) -> datetime:
        # Columns have been converted by Django, expressions have not.
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return super().from_db(time)


class PollQueue:
    """Those who wait for the locks of one database, on this machine."""

    def __init__(self, database: str, attempt: Callable[[Claim, float | None], Step]) -> None:
        """``database`` is an alias; ``attempt`` is BaseBackend.attempt()."""
        self._database = database
        self._attempt = attempt

    def enqueue(self, claim: Claim, deadline: float | None) -> Steps[Lease | None]:
        """See BaseBackend.enqueue()."""
        path = str(connections[self._database].settings_dict.get("NAME") or "")
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
                    lease: Lease | None = yield self._attempt(claim, deadline)
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
_files: dict[str, int | None] = {}


def _file(database: str) -> int | None:
    """Return the descriptor of the file for a database's mutexes; None if there can be none."""
    if database not in _files:
        if database == ":memory:" or database.startswith("file:") or not Path(database).is_file():
            return None
        file = None
        with suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            file = os.open(f"{database}{_SUFFIX}", flags, 0o666)
        _files.setdefault(database, file)  # two threads may have opened it: neither is closed
    return _files[database]
