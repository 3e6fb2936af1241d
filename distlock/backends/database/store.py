"""The records of a database: small values in directories, and the sessions they are bound to.

- Every change of a directory first locks its row, and gives it the next revision. So the order of
  revisions is the order of commits, and what was read under a revision can be a condition.
- A session counts until its row is deleted. A process that sees that its time is over deletes it,
  under the lock of the row and together with its records, before it concludes anything from that. A
  renewal that is under way comes before or after it, and never revives a record that somebody
  missed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain, zip_longest
from typing import Any, ClassVar

from distlock.backends.database import errors
from distlock.backends.database.connect import Engine
from distlock.backends.database.connection import Connection
from distlock.backends.database.pool import Pool
from distlock.backends.database.record_listeners import LISTENERS
from distlock.backends.database.record_reads import (
    many_of,
    peek_sql,
    peeked,
    read_many_sql,
    read_sql,
    snapshot,
)
from distlock.backends.database.record_sql import (
    ApplyResult,
    ChangeNotice,
    Edit,
)
from distlock.backends.database.record_watcher import RecordWatcher
from distlock.backends.database.runner import RecordRunner, unlocked
from distlock.backends.database.statements import BATCH, Statement
from distlock.backends.database.transactions import Removal, removing
from distlock.backends.store import (
    Address,
    Change,
    Condition,
    Exists,
    Having,
    Peek,
    Record,
    RecordStore,
    Renewal,
    Session,
    SessionEnded,
    Snapshot,
)
from distlock.concurrency.clock import backoff, clock
from distlock.concurrency.pending import Pending
from distlock.exceptions import LockUnavailable
from distlock.types.lease import RELIED_ON, Lease, SweepResult
from distlock.types.owners import gevent_patched
from distlock.types.values import batches, decoded

#: Seconds between two attempts to end sessions.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1


class DatabaseStore(RecordStore):
    """Keeps records in three tables beside that of the locks."""

    at_once: ClassVar[int] = 50
    most_filtered: ClassVar[int] = 1000

    def __init__(self, pool: Pool, engine: Engine, keep: float) -> None:
        """Empty directories are kept for ``keep`` seconds."""
        self._pool = pool
        self._sql = engine.records
        self.moves_first = not engine.in_process
        self._keep = keep
        self._runner = RecordRunner(pool, on_sqlite=engine.in_process)
        self._watcher = RecordWatcher(
            self._runner,
            self._sql,
            self.read,
            # A greenlet that waits in poll() for a driver's socket would stop all others.
            listens=bool(self._sql.LISTENS) and not gevent_patched(),
        )

    # Records

    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        """See RecordStore.read()."""
        return self.look(directory, (), deadline)

    def look(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Snapshot:
        """See RecordStore.look()."""
        statement = read_sql(self._sql, directory, keys)
        return snapshot(directory, self._rows(directory, statement, deadline))

    def peek(self, directory: str, peek: Peek, deadline: float | None = None) -> Snapshot:
        """See RecordStore.peek()."""
        rows = self._rows(directory, peek_sql(self._sql, directory, peek), deadline)
        return peeked(directory, rows, peek)

    def read_many(
        self,
        directories: Collection[str],
        deadline: float | None = None,
        *,
        keys: Collection[str] = (),
        peek: Peek | None = None,
        having: Having | None = None,
    ) -> Mapping[str, Snapshot]:
        """See RecordStore.read_many()."""
        found: dict[str, Snapshot] = {}
        for some in batches(directories, self.at_once):
            statement = read_many_sql(self._sql, some, keys, peek, having)
            rows = self._rows(some[0], statement, deadline)
            found |= many_of(rows, some, peek)
        return found

    def _rows(
        self, directory: str, statement: Statement, deadline: float | None
    ) -> Sequence[tuple[Any, ...]]:
        """Return what a statement reads, once it finds no session whose time is over."""
        until = clock() + self._pool.limit(deadline)
        pauses = chain((0.0,), backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE))
        while True:
            rows = self._runner.work(lambda db: db.ask(statement).rows, until)
            # Of a session without a row only the records are left to be deleted.
            ended = {
                session
                for now, *_, session, expires_at in rows
                if session is not None and (expires_at is None or int(expires_at) <= int(now))
            }
            if not ended:
                return rows
            for names in batches(sorted(ended), BATCH):
                self._end(names, until, expired=True)
            if clock() >= until:
                raise LockUnavailable(
                    f"database {self._pool.database!r}: sessions that have ended could not be"
                    f" cleared from {directory!r} in time"
                )
            time.sleep(next(pauses))  # another node of a cluster may have another clock

    def apply(
        self,
        directory: str,
        changes: Sequence[Change],
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> int | None:
        """See RecordStore.apply().

        Raises NotSupported where a record would be bound to a session within a transaction of the
        caller, on SQLite.
        """
        edit = Edit(directory, changes, conditions)
        if edit.sessions:
            self._runner.refuse_in_transaction(repr(directory))
        until = clock() + self._pool.limit(deadline)
        create = ended = False
        while True:
            result = self._runner.work(lambda db: self._apply(db, edit, create), until)  # noqa: B023
            if result.revision is not None:
                keys = None if edit.move else {change.key for change in changes}
                notice = ChangeNotice(directory, result.revision, keys)
                if edit.move:
                    key, text, created, last = result.moved
                    edit.move.moved = Record(key, decoded(text), int(created), int(last))
                self._watcher.note_change(notice)
                self._notify([(channel, notice) for channel in result.heard], until)
                self._tell_observers(directory, result.revision)
                return result.revision
            if edit.move and not result.held:
                return None
            if not result.found and any(isinstance(one, Exists) for one in conditions):
                return None  # nothing is in it: there need not be a directory to say so
            if not result.found and not create:
                create = True
            elif result.stale and not ended:
                self.read(directory, until)
                ended = True
            elif result.found and result.held:
                raise SessionEnded(f"a session for records of {directory!r} has ended")
            elif result.found:
                return None

    def _apply(self, connection: Connection, edit: Edit, create: bool) -> ApplyResult:
        try:
            return self._sql.apply(connection, edit, create=create)
        except (errors.ConnectionLost, errors.StatementCancelled) as failed:
            # The pool would send it once more. But what is carried out twice may have been undone
            # by others in between, and what was carried out can make the conditions fail.
            if not failed.maybe_applied:
                raise
            raise errors.StatementFailed(*failed.args) from failed.__cause__

    def directories(self, prefix: str = "", deadline: float | None = None) -> Iterable[str]:
        """See RecordStore.directories()."""
        return sorted(name for (name,) in self._rows_if_any(self._sql.in_use(prefix), deadline))

    def _rows_if_any(
        self, statement: Statement, deadline: float | None
    ) -> Sequence[tuple[Any, ...]]:
        """Return what a statement reads: nothing if the tables have not been made yet."""

        def ask(connection: Connection) -> Sequence[tuple[Any, ...]]:
            try:
                return connection.ask(statement).rows
            except errors.NoTable:
                return ()

        return self._runner.work(ask, deadline)

    # Sessions

    def open_session(self, seconds: float, deadline: float | None = None) -> Session:
        """See RecordStore.open_session(). Raises NotSupported as apply() does."""
        self._runner.refuse_in_transaction(
            "counters, latches, groups, elections, names, semaphores and read/write locks"
        )
        name, sent_at = os.urandom(16).hex(), clock()
        self._runner.work(lambda db: db.ask(self._sql.open_session(name, seconds)), deadline)
        return Session(name, seconds, sent_at + seconds * RELIED_ON)

    def renew(
        self,
        sessions: Collection[str],
        records: Collection[Address] = (),
        deadline: float | None = None,
    ) -> Renewal:
        """See RecordStore.renew(). It is one packet for some hundred sessions and records."""
        asked: set[str] = set()
        there: set[tuple[str, str]] = set()
        some_sessions = batches(sorted(sessions), BATCH)
        some_records = batches(sorted(records), BATCH)
        for names, addresses in zip_longest(some_sessions, some_records, fillvalue=()):
            try:
                renewed, rows = self._runner.around_locked(
                    partial(self._renew_some, names, addresses), deadline
                )
            except errors.StatementFailed as failed:
                raise self._runner.unavailable(failed) from failed.__cause__
            asked.update(renewed)
            there.update((one, other) for one, other in rows)
        alive = frozenset(name for name in asked if (name, "") in there)
        present = frozenset(address for address in records if address in there)
        return Renewal(alive, frozenset(asked) - alive, present, frozenset(records) - present)

    def _renew_some(
        self,
        names: Sequence[str],
        records: Sequence[Address],
        connection: Connection,
        *,
        around_locked: bool = False,
    ) -> tuple[Sequence[str], Sequence[tuple[str, str]]]:
        """Return the sessions that were renewed, and the sessions and records that are there."""
        if around_locked and names:
            free = unlocked(connection, self._sql.sessions, names)
            names = [name for name in names if name in free]
        if not names and not records:
            return (), ()
        return names, self._sql.renew_all(connection, names, records)

    def end_session(self, session: str, deadline: float | None = None) -> None:
        """See RecordStore.end_session()."""
        self._end([session], deadline, expired=False)
        self._watcher.look_soon()

    def _end(self, sessions: Sequence[str], deadline: float | None, *, expired: bool) -> None:
        gone = self._runner.work(lambda db: self._sql.end(db, sessions, expired=expired), deadline)
        changed = {*gone, *((directory, None) for directory, _ in gone)}
        self._notify(
            {(self._sql.channel_of(*one), ChangeNotice(one[0])) for one in changed}, deadline
        )

    # Transactions of the caller

    def removing(
        self,
        directory: str,
        keys: Sequence[str],
        lease: Lease,
        using: str | None,
        *,
        before: Callable[[], object],
        lost: Callable[[], Exception],
    ) -> AbstractContextManager[Sequence[bool]]:
        """See RecordStore.removing()."""

        def after() -> None:
            notice, until = ChangeNotice(directory), clock() + self._pool.limit(None)
            self._watcher.note_change(notice)
            channels = [self._sql.channel_of(directory, key) for key in (None, *keys)]
            self._notify([(channel, notice) for channel in channels], until)

        removal = Removal(directory, keys, lease, before, lost, after)
        return removing(self._pool, self._sql, removal, using)

    # Waking up

    def watch(self, directory: str, since: int, key: str | None = None) -> Pending[None]:
        """See RecordStore.watch()."""
        return self._watcher.watch(directory, since, key)

    def _notify(
        self, notices: Collection[tuple[str, ChangeNotice]], deadline: float | None
    ) -> None:
        """Tell those who listen. It is after the commit: to tell in it makes all others wait."""
        listens = self._sql.LISTENS
        for statement in LISTENERS[listens].notify_sql(notices) if listens and notices else ():
            with suppress(errors.StatementFailed):  # they look now and then
                self._runner.attempt(lambda db: db.ask(statement), deadline)  # noqa: B023

    def close(self) -> None:
        """Give the session back that listens for changes. Who waits for some looks again."""
        self._watcher.close()

    # Clearing

    def sweep(self, deadline: float | None = None) -> SweepResult:
        """See RecordStore.sweep()."""
        ended = removed = 0
        last: list[str] = []
        while rows := self._rows_if_any(self._sql.ended(), deadline):
            names = sorted(name for (name,) in rows)
            if names == last:  # another node of a cluster, whose clock is behind, has refused
                break
            self._end(names, deadline, expired=True)
            ended, last = ended + len(names), names
        try:
            with suppress(errors.NoTable):
                removed = self._runner.clear(lambda _: self._sql.empty(self._keep), deadline)
        except errors.StatementFailed as failed:
            raise self._runner.unavailable(failed) from failed.__cause__
        return SweepResult(ended, removed)
