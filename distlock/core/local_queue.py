"""The local queue: threads and tasks of this process, first come, first served.

Only the one whose turn it is asks the backend, so a process contends once for all its threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from distlock.bell import Bell
from distlock.clock import clock, left
from distlock.exceptions import LockDeadlock
from distlock.types.lease import Owner, Waiting
from distlock.types.owners import is_named

Key = tuple[str, ...]  # alias, name, and the owner's key if that is a named one

_LONGEST_WAIT = threading.TIMEOUT_MAX


class Ticket:
    """A place in the queue for one lock."""

    __slots__ = (
        "_bell",
        "_gone",
        "_loop",
        "_wake",
        "called",
        "joined",
        "key",
        "limited",
        "owner",
        "since",
    )

    def __init__(self, key: Key, owner: Owner) -> None:
        self.key = key
        self.owner = owner
        self.limited = False  # it waits for a limited time
        self.joined = False  # someone else with the same owner's name has got the lock meanwhile
        self.called = False  # whether it was told that it is its turn
        self.since = 0.0  # when it began to wait
        self._bell = Bell()
        self._wake: Callable[[], object] = lambda: None
        self._gone = False  # its event loop was closed: nobody is there
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it waits

    def seen(self, now: float) -> Waiting:
        """Return who waits, for people to read."""
        who = self.owner
        return Waiting(who.key, who.host, who.pid, who.thread, max(now - self.since, 0.0))

    @property
    def forsaken(self) -> bool:
        """Whether its event loop was closed before it could go on."""
        return self._loop is not None and self._loop.is_closed()

    def wake(self) -> bool:
        """Say that it is this one's turn; False if nobody waits for it any more."""
        self._bell.ring()
        self._wake()
        self.called = True
        return not self._gone

    def wait(self, deadline: float | None) -> bool:
        """Block until it is one's turn; False if ``deadline`` passed before."""
        return self._bell.wait(left(deadline, _LONGEST_WAIT))

    async def await_(self, deadline: float | None) -> bool:
        """See wait()."""
        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                self._gone = True

        self._wake = wake
        if self._bell.rung:  # it may have come before there was anyone to tell
            return True
        self._loop = loop
        try:
            rest = None if deadline is None else left(deadline, _LONGEST_WAIT)
            async with asyncio.timeout(rest):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._loop = None
        return True


class LocalQueue:
    """All queues of a process. The first in a queue has the turn, and keeps it until it leaves."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queues: dict[Key, deque[Ticket]] = {}
        self._waiting: dict[str, Ticket] = {}  # by owner; a thread or task waits for one turn only

    def enqueue(self, ticket: Ticket, *, wait: bool, limited: bool = False) -> bool:
        """Take the next place; False if it is someone else's turn and the caller will not wait.

        ``limited`` says that the caller waits for a limited time. Raises LockDeadlock if the one
        whose turn it is waits, perhaps through others, for the caller, and all of them without a
        limit: none would ever go on.
        """
        ticket.limited = limited
        with self._mutex:
            queue = self._queues.setdefault(ticket.key, deque())
            if queue:
                if not wait:
                    return False
                self._detect_deadlock(ticket)
                self._waiting[ticket.owner.key] = ticket
                ticket.since = clock()
            queue.append(ticket)
            self._next(queue)
        return True

    def waiting(self, key: Key) -> tuple[Waiting, ...]:
        """Return who waits for a lock here, behind another thread or task, by when they came."""
        with self._mutex:
            tickets = [
                ticket
                for queued_for, queue in self._queues.items()
                if queued_for[: len(key)] == key
                for ticket in queue
                if not ticket.called
            ]
        tickets.sort(key=lambda ticket: ticket.since)
        now = clock()
        return tuple(ticket.seen(now) for ticket in tickets)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place, or end one's turn: the next one comes.

        Leaving twice does no harm; and what an interrupt left undone, the second time does.
        """
        with self._mutex:
            self._stop_waiting(ticket)
            queue = self._queues.get(ticket.key)
            if queue is None:
                return
            if ticket in queue:
                queue.remove(ticket)
            self._next(queue)
            if not queue:
                del self._queues[ticket.key]

    def first(self, key: Key) -> Owner | None:
        """Return whose turn it is, None if nobody is in the queue."""
        with self._mutex:
            queue = self._queues.get(key)
            return queue[0].owner if queue else None

    def wake_same_owner(self, ticket: Ticket) -> None:
        """Let in all who wait under the same owner's name: the lock is now theirs as well."""
        with self._mutex:
            queue = self._queues.get(ticket.key, deque())
            for other in [other for other in queue if other is not ticket]:
                if other.owner == ticket.owner:
                    queue.remove(other)
                    other.joined = True
                    self._wake(other)

    def _next(self, queue: deque[Ticket]) -> None:
        """Let the first one come, if it has not yet."""
        while queue and (queue[0].forsaken or not (queue[0].called or self._wake(queue[0]))):
            self._stop_waiting(queue.popleft())

    def _wake(self, ticket: Ticket) -> bool:
        self._stop_waiting(ticket)
        return ticket.wake()

    def _stop_waiting(self, ticket: Ticket) -> None:
        if self._waiting.get(ticket.owner.key) is ticket:
            del self._waiting[ticket.owner.key]

    def _detect_deadlock(self, ticket: Ticket) -> None:
        if ticket.limited:
            return  # it gives up when its time is over, and can then let others go on
        names = [ticket.key[1]]
        ahead = self._queues[ticket.key][0]
        # A named owner may be in other threads too, which can free what it holds.
        while not is_named(ahead.owner):
            if ahead.owner == ticket.owner:
                raise LockDeadlock(
                    "waiting would never end: each owner in this circle of locks waits for the"
                    f" next, {' -> '.join(map(repr, names))}"
                )
            blocked = self._waiting.get(ahead.owner.key)
            if blocked is None or blocked.limited:
                return
            names.append(blocked.key[1])
            ahead = self._queues[blocked.key][0]
