"""What someone wants of a backend, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.core.held import HeldLease, Level
from distlock.core.local_queue import Key, LocalQueue, Ticket
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named

#: Seconds that the last answer may take for one who has waited.
_MOMENT = 1.0


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A claim, and what is to become of the hold if it is granted.

    ``lease`` is the length in seconds that was asked for, None for the backend's own.
    """

    backend: BaseBackend
    claim: Claim
    level: Level
    lease: float | None = None

    @property
    def key(self) -> Key:
        return self.backend.alias, self.claim.name

    @property
    def named(self) -> bool:
        """Whether the owner was named by the caller, and may be in several places at once."""
        return is_named(self.claim.owner)

    @property
    def queue(self) -> Key:
        """Where in this process it is waited for.

        A named owner's hold may be taken or freed in another process, which nobody here would be
        told of. So who wants the lock does not wait for such a hold here, but at the backend; and
        a named owner does not wait here for others, whose wait it may be about to end.
        """
        return (*self.key, self.claim.owner.key) if self.named else self.key

    def last_answer_due(self, wait: bool) -> float | None:
        """Return when an answer is due that is asked for at the end, though the time is over."""
        return self.backend.calls.due(clock() + _MOMENT if wait else None)

    def fulfilled(self, lease: Lease, on_end: Callable[[], None]) -> HeldLease:
        """Return the hold that was wished for; ``on_end`` is called once nobody has it."""
        return HeldLease(
            self.backend,
            lease,
            alive=self.level.life,
            at_least=self.level.at_least,
            renews=self.level.renews,
            on_lost=self.level.on_lost,
            lock=self.level.lock,
            on_end=on_end,
        )


class AcquireAttempt:
    """A request, its place in the queue, and what came of it so far."""

    def __init__(self, request: AcquireRequest, queue: LocalQueue) -> None:
        self.request = request
        self.queue = queue
        self.ticket = Ticket(request.queue, request.claim.owner)
        self.until: float | None = None  # for how long it waits for its turn
        self.asked = False
        self.lease: Lease | None = None
        self._level: Level | None = request.level

    def line_up(self, wait: bool, deadline: float | None) -> bool:
        """See LocalQueue.enqueue(). Behind its own name everybody waits for that answer."""
        self.until = deadline if wait else clock()
        limited = self.until is not None
        return self.queue.enqueue(self.ticket, wait=wait or self.request.named, limited=limited)

    def take_level(self) -> Level | None:
        """Return the level of a hold that is to be taken back after an error; only once."""
        level, self._level = self._level, None
        return level
