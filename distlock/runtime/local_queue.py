"""The local queue: threads and tasks of this process, first come, first served.

Only the one whose turn it is asks the backend, so a process contends once for all its threads.

A backend therefore knows at most one waiter of each process. A process in which more wait writes
their number into the backend's store, for people: one record for all its locks, at most every
_PERIOD seconds, and only if a number has changed. Nothing is decided by it. A number counts only
while its process holds the lock or has a waiter for it, and the record ends with a session, soon
after its process.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias
from weakref import WeakKeyDictionary

from distlock.backends.base import BaseBackend
from distlock.backends.store import Delete, Put
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import despite
from distlock.concurrency.threads import call_after, start, thread_logger
from distlock.concurrency.work import awaits, jobs_awaiting, runs_the_loop, thread_awaiting
from distlock.conf import locks
from distlock.exceptions import LockDeadlock, LockError
from distlock.records.process_session import ProcessSession
from distlock.runtime.hold import Entrant, task_of
from distlock.types.lease import Behind, Kind, LockInfo, LockKey, Owner, Waiting, new_nonce
from distlock.types.owners import current_owner, is_named

#: Where tickets for a lock wait in line: all owners together, or one owner apart, by its key.
Lane: TypeAlias = LockKey | tuple[LockKey, str]

#: Seconds between two writes of a process to one backend.
_PERIOD = 5.0
#: Seconds until the first one: most waits are shorter, and cause none.
_FIRST = 1.0
#: Seconds that a record lasts after its process was killed, at most.
_LASTS = 30.0
#: Locks that a record tells of, those with most waiters: longer names than any fit into a record.
_MOST_LOCKS = 25

_DIRECTORY = "waiting"


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue for one lock."""

    key: LockKey
    lane: Lane
    owner: Owner
    #: the thread, task or piece of work that is to enter
    entry: Entrant
    #: whether it waits for a limited time
    limited: bool = False
    #: in which thread it was made
    thread: threading.Thread | None = field(default_factory=threading.current_thread)
    #: whether it has had its turn; the holder of the lock keeps it until it leaves
    called: bool = False
    #: whether the lock, which it had, is being freed: nobody is in it any more
    leaving: bool = False
    #: whether someone else with the same owner's name has got the lock meanwhile
    joined: bool = False
    #: when it began to wait
    since: float = 0.0
    #: answered when it is its turn; None if it was at once
    turn: Pending[bool] | None = None

    def note_leaving(self, job: Entrant | None = None) -> None:
        """Note that the lock is being freed, or that a job has it to which its task has left it."""
        if job is None or job.job is None or job.work is None:
            self.leaving = True
        else:
            self.owner, self.entry, self.thread = job.job, job, job.work.thread

    def stands_still_for(self, other: Ticket) -> bool:
        """Return whether its owner cannot go on before the owner of another ticket does.

        True in three cases: the other owner is in the same thread (a task only if the thread runs
        its event loop until the task is done); it is a task whose result the thread waits for; or
        it is a job or a task that this task awaits.
        """
        if not self.entry.is_alive():
            return False
        own, task = task_of(self.entry), task_of(other.entry)
        if own is not None:
            jobs = [] if other.entry.work is None else other.entry.work.futures()
            return any(awaits(own, one) for one in (jobs if task is None else [task]))
        if self.thread is other.thread:
            return task is None or runs_the_loop(task)
        if task is None or thread_awaiting(task) is not self.thread:
            return False
        jobs = [] if self.entry.work is None else self.entry.work.futures()
        return not jobs or jobs[0] in jobs_awaiting(task)  # another one runs meanwhile


class LocalQueue:
    """All queues of a process. The first in a queue has the turn, and keeps it until it leaves."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queues: dict[Lane, deque[Ticket]] = {}
        #: The ticket that each owner waits with, by the keys of the owner and of everything that it
        #: runs in. A thread or task waits for one turn at a time.
        self._waiting: dict[str, Ticket] = {}
        #: called with the alias when one begins to wait here
        self.on_wait: Callable[[str], object] = str

    def enqueue(self, ticket: Ticket, *, wait: bool) -> bool:
        """Take the next place; False if it is someone else's turn and the caller will not wait.

        Raises LockDeadlock if the one whose turn it is waits, perhaps through others, for the
        caller, and all of them without a limit: none would ever go on.
        """
        with self._mutex:
            queue = self._queues.setdefault(ticket.lane, deque())
            if queue:
                if not wait:
                    return False
                self._detect_deadlock(ticket, queue[0])
                ticket.turn = Pending()
                ticket.since = clock()
                for key in ticket.owner.keys:
                    self._waiting[key] = ticket
            queue.append(ticket)
            if queue[0] is ticket:
                ticket.called = True
            else:
                self._call_next(queue)
        if ticket.turn is not None:
            self.on_wait(ticket.key.alias)
        return True

    def check_deadlock(self, ticket: Ticket) -> None:
        """Check again; LockDeadlock if a waiter that came later has closed a circle of waiting."""
        with self._mutex:
            queue = self._queues.get(ticket.lane)
            if queue and not ticket.called:
                self._detect_deadlock(ticket, queue[0])

    def leave(self, ticket: Ticket) -> None:
        """Give up a place, or end one's turn: then it is the turn of the next one.

        Leaving twice does no harm; and what an interrupt left undone, the second time does.
        """
        with self._mutex:
            if ticket.turn is not None:
                self._stop_waiting(ticket)
            queue = self._queues.get(ticket.lane)
            if queue is None:
                return
            if ticket in queue:
                queue.remove(ticket)
            if queue:
                self._call_next(queue)
            if not queue:
                del self._queues[ticket.lane]

    def waiting(self, key: LockKey) -> tuple[Waiting, ...]:
        """Return who waits for a lock here, behind another thread or task, by when they came."""
        with self._mutex:
            tickets = tuple(
                ticket
                for queue in self._queues.values()
                for ticket in queue
                if ticket.key == key and not ticket.called
            )
        in_order, now = sorted(tickets, key=lambda ticket: ticket.since), clock()
        return tuple(Waiting.of(ticket.owner, now - ticket.since) for ticket in in_order)

    def behind(self, alias: str) -> Counter[str]:
        """Return how many wait here behind others, by the name of the lock."""
        with self._mutex:
            queues = self._queues.values()
            keys = tuple(one.key for queue in queues for one in queue if not one.called)
        return Counter(key.name for key in keys if key.alias == alias)

    def sizes(self) -> dict[Lane, int]:
        """Return how many threads and tasks hold, ask for or wait for each lock, by lane."""
        with self._mutex:
            return {key: len(queue) for key, queue in self._queues.items()}

    def first(self, key: LockKey) -> Owner | None:
        """Return whose turn it is in the common lane, None if nobody is in it."""
        with self._mutex:
            queue = self._queues.get(key)
            return queue[0].owner if queue else None

    def call_same_owner(self, ticket: Ticket) -> None:
        """Let in all who wait under the same owner's name: the lock is now theirs as well."""
        with self._mutex:
            queue = self._queues.get(ticket.lane, deque())
            same = (one for one in queue if one is not ticket and one.owner == ticket.owner)
            for other in tuple(same):
                queue.remove(other)
                other.joined = True
                self._call(other)

    def _call_next(self, queue: deque[Ticket]) -> None:
        """Call the first one whose event loop goes on, unless it was called before."""
        while queue:
            first = queue[0]
            is_closed = first.turn is not None and first.turn.abandoned
            if not is_closed and (first.called or self._call(first)):
                return
            self._stop_waiting(queue.popleft())

    def _call(self, ticket: Ticket) -> bool:
        """Say that it is a ticket's turn; False if nobody waits for it any more.

        After an interrupt the next call does the rest.
        """
        self._stop_waiting(ticket)
        turn = ticket.turn
        if turn is not None and not turn.resolve(True) and not turn.answered:
            return False
        ticket.called = True
        return True

    def _stop_waiting(self, ticket: Ticket) -> None:
        for key in ticket.owner.keys:
            if self._waiting.get(key) is ticket:
                del self._waiting[key]

    def _detect_deadlock(self, ticket: Ticket, ahead: Ticket) -> None:
        if ticket.limited:
            return  # it gives up when its time is over, and can then let others go on
        names = [ticket.key.name]
        # A named owner may be in other threads too, which can free what it holds.
        # Another thread may free what a generator of this owner has left.
        while not (ahead.leaving or is_named(ahead.owner)):
            if ahead.owner.key in ticket.owner.keys or ahead.stands_still_for(ticket):
                raise LockDeadlock(
                    "waiting would never end: each owner in this circle of locks waits for the"
                    f" next, {' -> '.join(map(repr, names))}"
                )
            blocked = self._waiting.get(ahead.owner.key)
            if blocked is None or blocked.limited:
                return
            names.append(blocked.key.name)
            ahead = self._queues[blocked.lane][0]


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
        except RuntimeError:  # no more threads can be started: one who waits later retries
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
            self._schedule(alias, _PERIOD)
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
            with despite(LockError), suppress(TypeError, KeyError):
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
