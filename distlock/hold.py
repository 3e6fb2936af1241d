"""One lock held by one owner of this process."""

from __future__ import annotations

from collections.abc import Callable

from distlock.backends.base import BaseBackend
from distlock.clock import clock, left
from distlock.exceptions import LockLost
from distlock.lease import Lease
from distlock.owners import Life

OnLost = Callable[[Lease], object]

#: Why a hold can be gone.
ENDED = "its lease ended before it was renewed"
BROKEN = "it was broken, or taken over after its lease had ended"


class Hold:
    """A lease, how often its owner has entered, and what becomes of it.

    ``lost`` says why the lock is gone although its owner has not left yet; a lost hold stays lost.
    """

    __slots__ = (
        "abandoned",
        "at_least",
        "backend",
        "count",
        "due",
        "had_at",
        "lease",
        "lives",
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
        at_least: float,
        renews: bool,
        on_lost: OnLost | None,
        on_end: Callable[[], None],
    ) -> None:
        self.backend = backend
        self.lease = lease
        self.renews = renews
        self.on_lost = on_lost
        self.on_end = on_end
        self.had_at = clock()  # it was granted before that
        self.at_least = 0.0
        self.count = 0
        self.lives: set[Life] = set()
        self.lost: str | None = None
        self.abandoned = False  # whether all who entered have ended without leaving
        self.due = 0.0  # when it is to be renewed
        self.look = 0.0  # when the keeper looks at it next
        self.extend(lease.deadline)
        self.enter(alive, at_least)

    def enter(self, life: Life, at_least: float) -> None:
        """Count one level more. A named owner may enter from several threads and tasks."""
        self.lives = {life, *filter(Life.__call__, self.lives)}
        self.count += 1
        self.abandoned = False
        self.at_least = max(self.at_least, at_least)

    @property
    def rest(self) -> float:
        """Seconds for which the lock has to stay taken, whether its holder leaves it or not."""
        return left(self.had_at + self.at_least, self.at_least)

    def free(self, deadline: float | None = None) -> bool:
        """Free the lock, now or when its time is over; False if it is no longer held."""
        if rest := self.rest:
            return self.backend.keep(self.lease, rest, deadline)
        return self.backend.release(self.lease, deadline)

    @property
    def alive(self) -> bool:
        """Whether any of those who entered still runs."""
        return any(life() for life in self.lives)

    @property
    def watched(self) -> bool:
        """Whether it is to be renewed, and its loss would be somebody's emergency."""
        return self.renews and not self.abandoned

    @property
    def ended(self) -> bool:
        """Whether the hold is lost for good: no answer that comes later brings it back."""
        return self.lost is not None or clock() >= self.lease.deadline

    def extend(self, deadline: float) -> None:
        """Note that the lease ends at another local deadline."""
        self.lease = self.lease.until(deadline)
        sent_at = deadline - self.lease.duration
        self.due = sent_at + self.backend.settings.interval(self.lease.duration)

    @property
    def next_look(self) -> float:
        """When the keeper has something to do for this hold: renew it, or see it end."""
        return min(self.due, self.lease.deadline) if self.watched else self.lease.deadline

    def why_lost(self) -> str | None:
        """Return why the lock is gone, None while it is held. Asks nobody but this process."""
        if self.lost is not None:
            return self.lost
        if clock() >= self.lease.deadline:
            return ENDED
        if not self.backend.vouches(self.lease):
            return self.backend.unvouched
        return None

    def loss(self) -> LockLost | None:
        """Return the error that tells of the loss, None while the lock is held."""
        if (reason := self.why_lost()) is None:
            return None
        return LockLost(f"lock {self.lease.name!r} (token {self.lease.token}) was lost: {reason}")
