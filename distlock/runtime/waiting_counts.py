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
from typing import Self
from weakref import WeakKeyDictionary

from distlock.backends.base import BaseBackend
from distlock.backends.store import Delete, Put
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import call_after, start, thread_logger
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.records.seat_requests import ProcessSession
from distlock.runtime.local_queue import LocalQueue
from distlock.types.lease import Behind, Kind, LockInfo, Waiting, new_nonce
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


class WaitingCounts:
    """Writes down how many wait in this process, for as long as any do."""

    def __init__(self, queue: LocalQueue) -> None:
        self._queue, self._key = queue, new_nonce()
        #: By alias, until when the next write should have begun; later, it is taken for lost. It
        #: also tells that write from those of other threads that have scheduled one, too.
        self._scheduled_until: dict[str, float] = {}
        self._sessions: WeakKeyDictionary[BaseBackend, ProcessSession] = WeakKeyDictionary()
        #: what the record in a backend says, and the id of the session that it is bound to
        self._said: WeakKeyDictionary[BaseBackend, tuple[Mapping[str, int], str]]
        self._said = WeakKeyDictionary()

    def note(self, alias: str) -> None:
        """Note that one begins to wait behind another for a lock of this alias."""
        if clock() >= self._scheduled_until.get(alias, 0.0):
            self._schedule(alias, _FIRST)

    def _schedule(self, alias: str, seconds: float) -> None:
        until = self._scheduled_until[alias] = clock() + seconds + _LASTS
        try:
            call_after(seconds, lambda: start(self._run, "distlock-waiting", alias, until))
        except RuntimeError:  # no more threads can be had: one who waits later retries
            self._scheduled_until[alias] = 0.0

    def _run(self, alias: str, until: float) -> None:
        """Write on a thread of its own: timers, and other backends, must not wait for this one."""
        if until != self._scheduled_until[alias]:
            return
        numbers = dict(self._queue.behind(alias).most_common(_MOST_LOCKS))
        backend = next((made for made in locks.made() if made.alias == alias), None)
        if numbers or backend in self._said:
            try:
                if backend is not None:
                    self._write(backend, numbers)
            except Exception as error:  # the next write comes soon
                text = "DISTLOCK[%r]: numbers of waiters not written: %s"
                thread_logger.debug(text, alias, error)
            self._schedule(alias, PERIOD)
        else:
            self._scheduled_until[alias] = 0.0  # who comes from now on schedules a write
            if self._queue.behind(alias):
                self.note(alias)

    def _write(self, backend: BaseBackend, numbers: Mapping[str, int]) -> None:
        if not backend.capabilities.waiters:  # nobody would read it
            return
        if numbers:
            if backend not in self._sessions:
                self._sessions[backend] = ProcessSession(backend.store, _LASTS)
            said = numbers, self._sessions[backend].get(None).id
            if said != self._said.get(backend):
                me = current_owner()
                value = {"host": me.host, "pid": me.pid, "locks": numbers}
                backend.store.apply(_DIRECTORY, [Put(self._key, value, said[1])])
                self._said[backend] = said
        elif backend in self._said:
            backend.store.apply(_DIRECTORY, [Delete(self._key)])
            del self._said[backend]


def counted_queue() -> LocalQueue:
    """Return a local queue whose numbers are written down."""
    queue = LocalQueue()
    queue.on_wait = WaitingCounts(queue).note
    return queue


@dataclass(frozen=True, slots=True)
class Crowds:
    """How many wait behind others of their processes, in one backend."""

    #: by host and pid, and then by the name of the lock
    _by_process: Mapping[tuple[str, int], Mapping[str, int]]

    @classmethod
    def read(cls, backend: BaseBackend, queue: LocalQueue, deadline: float | None = None) -> Self:
        """Ask a backend, if it knows who waits; ``queue`` is that of this very process.

        Numbers that the store cannot give are left out: the lock is shown all the same.
        """
        said: dict[tuple[str, int], Mapping[str, int]] = {}
        if backend.capabilities.waiters:
            with suppress(LockError, TypeError, KeyError):
                for record in backend.store.read(_DIRECTORY, deadline).records.values():
                    said[record.value["host"], record.value["pid"]] = record.value["locks"]
            me = current_owner()
            said[me.host, me.pid] = queue.behind(backend.alias)
        return cls(said)

    def added_to(self, info: LockInfo, here: tuple[Waiting, ...] = ()) -> LockInfo:
        """Return what is known of a lock, with those of its processes that hold it or wait.

        ``here`` are those of this process by name: they are waiters then, and not only a number.
        """
        if info.waiters is None:
            return info
        owners = (*info.waiters, *(holder.owner for holder in info.holders))
        there = dict.fromkeys((owner.host, owner.pid) for owner in owners)
        for one in here:
            there.pop((one.host, one.pid), None)
        name = info.name if info.kind is Kind.LOCK else ""  # others do not wait behind each other
        behind = [Behind(*one, self._by_process.get(one, {}).get(name, 0)) for one in there]
        behind = [one for one in behind if one.number]
        return replace(info, waiters=(*info.waiters, *here), behind=tuple(behind))

    @property
    def total(self) -> int:
        """How many they are, for all locks."""
        return sum(sum(numbers.values()) for numbers in self._by_process.values())
