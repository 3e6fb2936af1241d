"""The records of one process: the reference of what a store does."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from weakref import ref

from distlock.backends.reading import count_keys, first_keys, list_keys
from distlock.backends.store import (
    Address,
    Change,
    Condition,
    Peek,
    Put,
    Record,
    RecordStore,
    Renewal,
    Session,
    SessionEnded,
    Snapshot,
    holds,
)
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import Timer, call_after
from distlock.types.lease import RELIED_ON, SweepResult, new_nonce
from distlock.types.values import decoded


@dataclass(slots=True)
class _Session:
    seconds: float
    expires_at: float
    #: in which directories it has had records
    directories: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str
    created: int
    revision: int
    session: str | None


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory at one revision; replaced as a whole: no interrupt leaves half a change."""

    revision: int = 0
    records: Mapping[str, _Kept] = field(default_factory=dict)


class LocalStore(RecordStore):
    """Records in the memory of one process; other processes do not see them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._directories: dict[str, _Directory] = {}
        #: the last one of all directories, so that it goes on growing in one that was swept
        self._revision = 0
        self._sessions: dict[str, _Session] = {}
        #: The waiters for a change, and their records. It is changed in single atomic steps:
        #: the garbage collector may abandon a watch while this thread has the mutex.
        self._watches: dict[object, tuple[str, str | None, Pending[None]]] = {}
        #: by the token of a watch, what wakes it when a session ends
        self._timers: dict[object, Timer] = {}

    # Records

    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        with self._mutex:
            self._end_expired()
            found, now = self._find(directory), time.time_ns() // 1000
            records = [self._record(key, kept) for key, kept in found.records.items()]
        return Snapshot.of(directory, found.revision, records, now)

    def peek(self, directory: str, peek: Peek, deadline: float | None = None) -> Snapshot:
        with self._mutex:
            self._end_expired()
            found, now = self._find(directory), time.time_ns() // 1000
            keys = first_keys(found.records, peek.first)
            records = {key: self._record(key, found.records[key]) for key in keys}
        counts = count_keys(found.records, peek.count)
        some = list_keys(found.records, peek.listed)
        return Snapshot(directory, found.revision, records, now, counts, some)

    def _find(self, directory: str) -> _Directory:
        return self._directories.get(directory) or _Directory()

    def _record(self, key: str, kept: _Kept) -> Record:
        session = None if kept.session is None else self._sessions[kept.session]
        rest = None if session is None else max(session.expires_at - clock(), 0.0)
        return Record(key, decoded(kept.text), kept.created, kept.revision, kept.session, rest)

    def apply(
        self,
        directory: str,
        changes: Sequence[Change],
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> int | None:
        with self._mutex:
            revision = self._apply(directory, changes, conditions)
        if revision is not None:
            self._wake(directory, {change.key for change in changes})
            self._tell_observers(directory, revision)
        return revision

    def _apply(
        self, directory: str, changes: Sequence[Change], conditions: Collection[Condition]
    ) -> int | None:
        """See apply(). The caller has the mutex."""
        self._end_expired()
        found = self._find(directory)
        if not all(holds(condition, found.revision, found.records) for condition in conditions):
            return None
        for change in changes:
            if isinstance(change, Put) and change.session not in (None, *self._sessions):
                raise SessionEnded(f"a session for records of {directory!r} has ended")
        revision, records = self._next_revision(), {**found.records}
        for change in changes:
            old = records.pop(change.key, None)
            if isinstance(change, Put):
                if change.session is not None:
                    self._sessions[change.session].directories.add(directory)
                created = old.created if old else revision
                records[change.key] = _Kept(change.text, created, revision, change.session)
        self._directories[directory] = _Directory(revision, records)
        return revision

    def directories(self, prefix: str = "", deadline: float | None = None) -> list[str]:
        with self._mutex:
            self._end_expired()
            names = tuple(name for name, found in self._directories.items() if found.records)
        return sorted(name for name in names if name.startswith(prefix))

    # Sessions

    def open_session(self, seconds: float, deadline: float | None = None) -> Session:
        session, now = new_nonce(), clock()
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
                if key in self._find(directory).records
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
        ended = {name for name, session in self._sessions.items() if session.expires_at <= now}
        if not ended:
            return
        for directory in set().union(*(self._sessions[name].directories for name in ended)):
            found = self._find(directory)
            left = {key: kept for key, kept in found.records.items() if kept.session not in ended}
            if len(left) < len(found.records):
                self._directories[directory] = _Directory(self._next_revision(), left)
                self._wake(directory, found.records.keys() - left.keys())
        for name in ended:  # last, because an interrupt may come before
            del self._sessions[name]

    def _next_revision(self) -> int:
        """Return a new revision. The caller has the mutex."""
        # They go on growing over restarts, because what they fence may outlive this process.
        self._revision = max(self._revision + 1, time.time_ns() // 1000)
        return self._revision

    # Waking up

    def watch(self, directory: str, since: int, key: str | None = None) -> Pending[None]:
        token = object()
        pending: Pending[None] = Pending(lambda: self._forget(token))
        self._watches[token] = directory, key, pending
        # A writer makes its change before looking for watches, and we the other way round.
        found = self._find(directory)
        kept = None if key is None else found.records.get(key)
        if (kept or found).revision > since:
            self._forget(token)
            pending.resolve(None)
        else:
            self._wake_at_end(token, found.records.values() if kept is None else [kept])
        return pending

    def _wake_at_end(self, token: object, records: Iterable[_Kept]) -> None:
        """Wake one who watches when the first session may have ended: nobody else would say so."""
        sessions = [self._sessions.get(kept.session or "") for kept in records]
        ends = [session.expires_at for session in sessions if session is not None]
        if ends:
            with suppress(RuntimeError):  # no more threads: who waits looks by itself
                wait, wake = max(min(ends) - clock(), 0.0), partial(_wake, ref(self), token)
                self._timers[token] = call_after(wait, wake)
            if token not in self._watches:  # it was answered meanwhile
                self._forget(token)

    def _wake(self, directory: str, keys: Collection[str]) -> None:
        for token, (watched, key, pending) in self._watches.copy().items():
            if watched == directory and (key is None or key in keys):
                self._forget(token)
                pending.resolve(None)

    def _forget(self, token: object) -> tuple[str, str | None, Pending[None]] | None:
        """End a watch, and its timer; return it, None if it had ended before."""
        if (timer := self._timers.pop(token, None)) is not None:
            timer.cancel()
        return self._watches.pop(token, None)

    # Clearing

    def sweep(self, deadline: float | None = None) -> SweepResult:
        with self._mutex:
            before = len(self._sessions)
            self._end_expired()
            empty = tuple(name for name, found in self._directories.items() if not found.records)
            for name in empty:
                del self._directories[name]
            return SweepResult(before - len(self._sessions), len(empty))


def _wake(known: ref[LocalStore], token: object) -> None:
    store = known()
    if store is not None and (watch := store._forget(token)):
        *_, pending = watch
        pending.resolve(None)
