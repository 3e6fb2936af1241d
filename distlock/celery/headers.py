"""What travels with a task's message: its queueing lock, and how often it has been put off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.conf import locks
from distlock.types.lease import Claim, Lease, Owner

#: The message header that has it all.
HEADER = "distlock"


@dataclass(frozen=True, slots=True)
class QueueLockHandle:
    """A queueing lock's hold, as any process can free it: exactly this one and no successor's."""

    name: str
    using: str
    owner: str
    token: int
    nonce: str
    duration: float

    @classmethod
    def of(cls, lease: Lease, using: str) -> Self:
        """Return the ticket for a lease of this process."""
        return cls(lease.name, using, lease.owner.key, lease.token, lease.nonce, lease.duration)

    @property
    def backend(self) -> BaseBackend:
        """The backend that has the lock."""
        return locks[self.using]

    @property
    def claim(self) -> Claim:
        """The claim that was granted; who made it is told by nothing but its key."""
        return Claim(self.name, Owner(self.owner, "", 0, ""), self.duration, nonce=self.nonce)

    @property
    def lease(self) -> Lease:
        """The lease; its deadline is counted from now, because nobody knows when it was renewed."""
        return self.claim.granted(self.token, clock())


@dataclass(frozen=True, slots=True)
class LockHeader:
    """What is noted on the message of the task ``task_id``.

    The task has been put off so many times because its lock was ``busy``, and so many times in a
    row because that was ``unavailable``. What follows ``ticket`` is added by the worker that
    received the message: the nonces of the claims that are made for this very delivery, on the
    running lock and on the queueing lock, so that whoever sees its process die can take them back;
    and whether the worker sends events.
    """

    task_id: str
    busy: int = 0
    unavailable: int = 0
    ticket: QueueLockHandle | None = None
    claim: str | None = None
    queueing_claim: str | None = None
    events: bool = False

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None, task_id: str | None) -> Self | None:
        """Return what is noted for this task; None if nothing is, or for another task.

        Code that hands on the headers of its own task hands on this note, too, which is not meant
        for the other task.
        """
        said = (headers or {}).get(HEADER)
        if not isinstance(said, Mapping) or said.get("task_id") != task_id:
            return None
        ticket = said.get("ticket")
        return cls(**{**said, "ticket": QueueLockHandle(**ticket) if ticket else None})

    def header(self) -> dict[str, Any]:
        """Return it as a message header has it."""
        return asdict(self)

    def republished(self, ticket: QueueLockHandle | None) -> Self:
        """Return what is noted on the next message of the same task."""
        return replace(self, ticket=ticket, claim=None, queueing_claim=None, events=False)
