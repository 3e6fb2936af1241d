"""The records of one process: the reference of what a store does."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from distlock.backends.store import (
    Absent,
    Address,
    Change,
    Condition,
    Exists,
    Put,
    Record,
    RecordStore,
    Renewal,
    Session,
    SessionEnded,
    Snapshot,
)
from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.types.lease import RELIED_ON, SweepResult


@dataclass(slots=True)
class _Session:
    seconds: float
    expires_at: float


@dataclass(slots=True)
class _Kept:
    text: str
    created: int
    revision: int
    session: str | None


@dataclass(slots=True)
class _Directory:
    revision: int = 0
    records: dict[str, _Kept] = field(default_factory=dict)


class LocalStore(RecordStore):
    """Records in the memory of one process; other processes do not see them."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Have no records: they are the parent's."""
        self._mutex = threading.Lock()
        self._directories: defaultdict[str, _Directory] = defaultdict(_Directory)
        self._sessions: dict[str, _Session] = {}
        #: Who waits for a change, and for which record. It is changed in single atomic steps:
        #: the garbage collector may abandon a watch while this thread has the mutex.
        self._watches: dict[object, tuple[str, str | None, Pending[None]]] = {}

    # Records

    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        with self._mutex:
            self._end_expired()
            found = self._directories.get(directory)
            if found is None:
                return Snapshot(directory, 0, {})
            records = [self._record(key, kept) for key, kept in found.records.items()]
        records.sort(key=lambda record: (record.created, record.key))
        by_key = {record.key: record for record in records}
        return Snapshot(directory, found.revision, by_key, time.time_ns() // 1000)

    def _record(self, key: str, kept: _Kept) -> Record:
        session = None if kept.session is None else self._sessions[kept.session]
        rest = None if session is None else max(session.expires_at - clock(), 0.0)
        return Record(key, json.loads(kept.text), kept.created, kept.revision, kept.session, rest)

    def apply(
        self,
        directory: str,
        changes: Sequence[Change],
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> int | None:
        with self._mutex:
            self._end_expired()
            found = self._directories[directory]
            if not all(_holds(condition, found) for condition in conditions):
                return None
            for change in changes:
                if isinstance(change, Put) and change.session not in (None, *self._sessions):
                    raise SessionEnded(f"a session for records of {directory!r} has ended")
            # Revisions go on growing over restarts, because what they fence may outlive us.
            found.revision = max(found.revision + 1, time.time_ns() // 1000)
            for change in changes:
                if isinstance(change, Put):
                    old = found.records.get(change.key)
                    created = old.created if old else found.revision
                    found.records[change.key] = _Kept(
                        change.text, created, found.revision, change.session
                    )
                else:
                    found.records.pop(change.key, None)
            revision = found.revision
        self._wake(directory, {change.key for change in changes})
        return revision

    def directories(self, prefix: str = "", deadline: float | None = None) -> list[str]:
        with self._mutex:
            self._end_expired()
            names = [name for name, found in self._directories.items() if found.records]
        return sorted(name for name in names if name.startswith(prefix))

    # Sessions

    def open_session(self, seconds: float, deadline: float | None = None) -> Session:
        session, now = os.urandom(16).hex(), clock()
        with self._mutex:
            self._sessions[session] = _Session(seconds, now + seconds)
        return Session(session, seconds, now + seconds * RELIED_ON)

    def renew(
        self,
        sessions: Collection[str],
        records: Collection[Address] = (),
        deadline: float | None = None,
    ) -> Renewal:
        with self._mutex:
            self._end_expired()
            alive = frozenset(session for session in sessions if session in self._sessions)
            for session in alive:
                found = self._sessions[session]
                found.expires_at = clock() + found.seconds
            present = frozenset(
                (directory, key)
                for directory, key in records
                if directory in self._directories and key in self._directories[directory].records
            )
        return Renewal(alive, frozenset(sessions) - alive, present, frozenset(records) - present)

    def end_session(self, session: str, deadline: float | None = None) -> None:
        with self._mutex:
            if found := self._sessions.get(session):
                found.expires_at = 0.0
            self._end_expired()

    def _end_expired(self) -> None:
        """End the sessions whose time is over. The caller has the mutex."""
        now = clock()
        ended = [name for name, session in self._sessions.items() if session.expires_at <= now]
        if not ended:
            return
        for name in ended:
            del self._sessions[name]
        for directory, found in self._directories.items():
            gone = [key for key, kept in found.records.items() if kept.session in ended]
            for key in gone:
                del found.records[key]
            if gone:
                self._wake(directory, gone)

    # Waking up

    def watch(self, directory: str, since: int, key: str | None = None) -> Pending[None]:
        token = object()
        pending: Pending[None] = Pending(lambda: self._watches.pop(token, None))
        self._watches[token] = directory, key, pending
        # Whoever changes something does so before looking for watches, and we the other way round.
        found = self._directories.get(directory)
        if found is not None and _changed(found, since, key):
            self._watches.pop(token, None)
            pending.resolve(None)
        return pending

    def _wake(self, directory: str, keys: Collection[str]) -> None:
        for token, (watched, key, pending) in list(self._watches.items()):
            if watched == directory and (key is None or key in keys):
                self._watches.pop(token, None)
                pending.resolve(None)

    # Clearing

    def sweep(self, deadline: float | None = None) -> SweepResult:
        with self._mutex:
            before = len(self._sessions)
            self._end_expired()
            empty = [name for name, found in self._directories.items() if not found.records]
            for name in empty:
                del self._directories[name]
            return SweepResult(before - len(self._sessions), len(empty))


def _holds(condition: Condition, found: _Directory) -> bool:
    if isinstance(condition, Absent):
        return condition.key not in found.records
    if isinstance(condition, Exists):
        kept = found.records.get(condition.key)
        return kept is not None and condition.revision in (None, kept.revision)
    return found.revision == condition.revision


def _changed(found: _Directory, since: int, key: str | None) -> bool:
    if key is None:
        return found.revision > since
    kept = found.records.get(key)
    return kept is None or kept.revision > since
