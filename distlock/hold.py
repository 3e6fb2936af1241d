"""One lock held by one owner of this process."""

from __future__ import annotations

from collections.abc import Callable

from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.exceptions import LockLost
from distlock.lease import Lease
from distlock.owners import Life

OnLost = Callable[[Lease], object]

#: Why a hold can be gone.
ENDED = "its lease ended before it was renewed"
BROKEN = "it was broken, or taken over after its lease had ended"
ROLLED_BACK = "the transaction it was taken in was rolled back"


class Hold:
    """A lease, how often its owner has entered, and what becomes of it.

    ``lost`` says why the lock is gone although its owner has not left yet; a lost hold stays lost.
    """

    __slots__ = (
        "alive",
        "backend",
        "count",
        "due",
        "lease",
        "look",
        "lost",
        "on_end",
        "on_lost",
        "renews",
    )

    def __init__(
        self,
        backend: BaseBackend,
        lease: Lease,
        *,
        alive: Life,
        renews: bool,
        on_lost: OnLost | None,
        on_end: Callable[[], None],
    ) -> None:
        self.backend = backend
        self.lease = lease
        self.alive = alive
        self.renews = renews and backend.supports_lease
        self.on_lost = on_lost
        self.on_end = on_end
        self.count = 1
        self.lost: str | None = None
        self.due = 0.0  # when it is to be renewed
        self.look = 0.0  # when the keeper looks at it next
        self.extend(lease.deadline)

    def extend(self, deadline: float) -> None:
        """Note that the lease ends at another local deadline."""
        self.lease = self.lease.until(deadline)
        sent_at = deadline - self.lease.duration
        self.due = sent_at + self.backend.settings.interval(self.lease.duration)

    @property
    def next_look(self) -> float:
        """When the keeper has something to do for this hold: renew it, or see it end."""
        return min(self.due, self.lease.deadline) if self.renews else self.lease.deadline

    def why_lost(self) -> str | None:
        """Return why the lock is gone, None while it is held. Asks nobody but this process."""
        if self.lost is not None:
            return self.lost
        if clock() >= self.lease.deadline:
            return ENDED
        if not self.backend.vouches(self.lease):
            return ROLLED_BACK
        return None

    def loss(self) -> LockLost | None:
        """Return the error that tells of the loss, None while the lock is held."""
        if (reason := self.why_lost()) is None:
            return None
        return LockLost(f"lock {self.lease.name!r} (token {self.lease.token}) was lost: {reason}")
