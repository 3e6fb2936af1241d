"""How many threads and tasks wait in each process behind its holder or its waiter: for people.

A process contends once for all its threads and tasks (see ``local_queue``), so a backend knows at
most one waiter of it. A process in which more wait writes their number into the backend's store:
one record for all its locks, at most every PERIOD seconds, and only if a number has changed.
Nothing is decided by it. A number counts only while its process holds the lock or has a waiter for
it, and the record ends with a session, soon after its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from distlock.backends.base import BaseBackend
from distlock.backends.process_session import ProcessSession
from distlock.backends.store import Delete, Put
from distlock.concurrency.threads import start, thread_logger
from distlock.concurrency.timers import call_after
from distlock.conf import locks
from distlock.core.local_queue import LocalQueue
from distlock.exceptions import LockError
from distlock.types.lease import Behind, Kind, LockInfo, new_nonce
from distlock.types.owners import current_owner

#: Seconds between two writes of a process to one backend.
PERIOD = 5.0
#: Seconds until the first one: most waits are shorter, and cause none.
_FIRST = 1.0
#: Seconds that a record lasts after its process was killed, at the most.
_LASTS = 30.0
#: Locks that a record tells of, those with most waiters: longer names than any fit into a record.
_MOST_LOCKS = 25

_DIRECTORY = "waiting"


@dataclass(slots=True)
class _Written:
    """What this process has written to one backend, and the id of the session it is bound to."""

    backend: BaseBackend
    process_session: ProcessSession
    key: str = field(default_factory=new_nonce)
    counts: Mapping[str, int] = field(default_factory=dict)
    session: str = ""

    def write(self, counts: Mapping[str, int]) -> None:
        """Let the record say these numbers, unless it does; without any, remove it."""
        store = self.backend.store
        if not counts:
            if self.counts:
                store.apply(_DIRECTORY, [Delete(self.key)])
        else:
            session = self.process_session.get(None).id
            if (counts, session) == (self.counts, self.session):
                return
            me, self.session = current_owner(), session
            value = {"host": me.host, "pid": me.pid, "locks": counts}
            store.apply(_DIRECTORY, [Put(self.key, value, session)])
        self.counts = counts


class WaitingCounts:
    """Writes down how many wait in this process, for as long as any do."""

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self._scheduled = False
        self._written: dict[str, _Written] = {}
        self._writing: set[str] = set()

    def note(self) -> None:
        """Note that a thread or task begins to wait behind another one; this takes no mutex."""
        if not self._scheduled:
            self._schedule(_FIRST)

    def _schedule(self, seconds: float) -> None:
        with suppress(RuntimeError):  # no more threads: the next one who waits tries again
            call_after(seconds, self._write_all)
            self._scheduled = True  # interrupted before this there are two timers, which do no harm

    def _write_all(self) -> None:
        """Have the present numbers written, on threads, as the timers must not be kept waiting."""
        self._scheduled = False  # first: who comes from now on may not be among the numbers
        behind = self._queue.behind()
        aliases = behind.keys() | {alias for alias, one in self._written.items() if one.counts}
        for alias in aliases - self._writing:
            self._writing.add(alias)
            try:
                start(self._write, "distlock-waiting", alias, behind.get(alias, {}))
            except RuntimeError:
                self._writing.discard(alias)
        if aliases:
            self._schedule(PERIOD)

    def _write(self, alias: str, behind: Mapping[str, int]) -> None:
        most = sorted(behind.items(), key=lambda item: -item[1])[:_MOST_LOCKS]
        try:
            if (written := self._record_of(alias)) is not None:
                written.write(dict(most))
        except Exception as error:  # the next write comes soon
            thread_logger.debug("DISTLOCK[%r]: numbers of waiters not written: %s", alias, error)
        finally:
            self._writing.discard(alias)

    def _record_of(self, alias: str) -> _Written | None:
        """Return the record of this process in a backend; None if nobody would read it."""
        backend = next((made for made in locks.made() if made.alias == alias), None)
        if backend is None or not backend.capabilities.waiters:
            self._written.pop(alias, None)
            return None
        written = self._written.get(alias)
        if written is None or written.backend is not backend:
            session = ProcessSession(backend.store, _LASTS)
            written = self._written[alias] = _Written(backend, session)
        return written


@dataclass(frozen=True, slots=True)
class Crowds:
    """Who waits behind others of their processes: by the name of the lock, in one backend."""

    _by_lock: Mapping[str, list[Behind]]

    @classmethod
    def read(cls, backend: BaseBackend, queue: LocalQueue, deadline: float | None = None) -> Self:
        """Ask a backend, if it knows who waits; ``queue`` is that of this very process.

        What its store does not say is left out: a lock is shown all the same.
        """
        if not backend.capabilities.waiters:
            return cls({})
        me = current_owner()
        here = {"host": me.host, "pid": me.pid, "locks": queue.behind().get(backend.alias, {})}
        said: list[Any] = [here]
        with suppress(LockError):
            records = backend.store.read(_DIRECTORY, deadline).records.values()
            said += [record.value for record in records if isinstance(record.value, dict)]
        by_lock: dict[str, list[Behind]] = {}
        for one in said:
            process = str(one.get("host")), int(one.get("pid", 0))
            if one is here or process != (me.host, me.pid):
                for name, number in one.get("locks", {}).items():
                    by_lock.setdefault(name, []).append(Behind(*process, int(number)))
        return cls(by_lock)

    @classmethod
    def of_one(
        cls, info: LockInfo, backend: BaseBackend, queue: LocalQueue, deadline: float | None = None
    ) -> LockInfo:
        """Return added_to() for one lock; nobody is asked where nobody can be behind another."""
        if info.kind is not Kind.LOCK or not (info.holders or info.waiters):
            return info
        return cls.read(backend, queue, deadline).added_to(info)

    def added_to(self, info: LockInfo) -> LockInfo:
        """Return what is known of a lock, with those of its processes that hold it or wait."""
        if info.waiters is None or info.kind is not Kind.LOCK or info.name not in self._by_lock:
            return info
        owners = (*info.waiters, *(holder.owner for holder in info.holders))
        there = {(owner.host, owner.pid) for owner in owners}
        behind = [one for one in self._by_lock[info.name] if (one.host, one.pid) in there]
        return replace(info, behind=tuple(behind))

    @property
    def total(self) -> int:
        """How many they are, for all locks."""
        return sum(one.number for some in self._by_lock.values() for one in some)
