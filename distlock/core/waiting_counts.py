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
from dataclasses import dataclass, replace
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


def write_counts_of(queue: LocalQueue) -> None:
    """Write down how many wait in the queue of this process, for as long as any do."""
    by_alias: dict[str, _Counts] = {}

    def note(alias: str) -> None:
        if (counts := by_alias.get(alias)) is None:
            counts = by_alias[alias] = _Counts(alias, queue)
        if not counts.scheduled:
            counts.schedule(_FIRST)

    queue.on_wait = note


class _Counts:
    """Writes the numbers for the locks of one alias, after each other on threads of its own."""

    def __init__(self, alias: str, queue: LocalQueue) -> None:
        self._alias, self._queue = alias, queue
        self.scheduled = False
        self._key = new_nonce()
        self._backend: BaseBackend | None = None
        #: what the record says, and the id of the session that it is bound to
        self._said: tuple[Mapping[str, int], str] = {}, ""

    def schedule(self, seconds: float) -> None:
        """Write in so many seconds. Where no thread can be had, the next one who waits retries."""
        self.scheduled = False
        with suppress(RuntimeError):
            call_after(seconds, self._start)
            self.scheduled = True

    def _start(self) -> None:
        try:
            start(self._run, "distlock-waiting")
        except RuntimeError:
            self.scheduled = False

    def _run(self) -> None:
        numbers = dict(self._queue.behind(self._alias).most_common(_MOST_LOCKS))
        if numbers or self._said[0]:
            try:
                self._write(numbers)
            except Exception as error:  # the next write comes soon
                thread_logger.debug("the numbers of waiters were not written: %s", error)
        else:
            self.scheduled = False  # who comes from now on schedules a write
            if not self._queue.behind(self._alias):
                return
        self.schedule(PERIOD)

    def _write(self, numbers: Mapping[str, int]) -> None:
        backend = next((made for made in locks.made() if made.alias == self._alias), None)
        if backend is not self._backend:
            self._backend, self._said = backend, ({}, "")
        if backend is None or not backend.capabilities.waiters:
            return  # nobody would read it
        if not numbers:
            backend.store.apply(_DIRECTORY, [Delete(self._key)])
            self._said = {}, ""
            return
        if not self._said[0]:
            self._session = ProcessSession(backend.store, _LASTS)
        session = self._session.get(None).id
        if (numbers, session) != self._said:
            me = current_owner()
            value = {"host": me.host, "pid": me.pid, "locks": numbers}
            backend.store.apply(_DIRECTORY, [Put(self._key, value, session)])
            self._said = numbers, session


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
        here = {"host": me.host, "pid": me.pid, "locks": queue.behind(backend.alias)}
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
