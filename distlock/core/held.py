"""One lock held by one owner of this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from distlock.backends.base import BaseBackend
from distlock.clock import clock, left
from distlock.exceptions import LockLost, LockUnavailable
from distlock.types.lease import Lease
from distlock.types.owners import Liveness, is_named

OnLost = Callable[[Lease], object]

#: Why a hold can be gone.
ENDED = "its lease ended before it was renewed"
BROKEN = "it was broken, or taken over after its lease had ended"
TAKEN_AWAY = "it was broken, or taken over"
HANDED_OVER = "it was taken under its owner's name in another process"


@dataclass(slots=True, eq=False)
class Level:
    """That a thread or task entered a hold through a Lock object: on which terms, how often."""

    life: Callable[[], bool]
    at_least: float = 0.0
    renews: bool = True
    on_lost: OnLost | None = None
    lock: object = None
    count: int = 1


class HeldLease:
    """A lease, how often its owner has entered, and what becomes of it.

    ``lost`` says why the lock is gone although its owner has not left yet; a lost hold stays lost.
    """

    __slots__ = (
        "abandoned",
        "asked",
        "at_least",
        "backend",
        "count",
        "due",
        "failed",
        "had_at",
        "lease",
        "levels",
        "look",
        "lost",
        "on_end",
        "renewing",
        "stale",
    )

    def __init__(
        self,
        backend: BaseBackend,
        lease: Lease,
        *,
        alive: Callable[[], bool],
        at_least: float,
        renews: bool,
        on_lost: OnLost | None,
        on_end: Callable[[], None],
        lock: object = None,
    ) -> None:
        self.backend = backend
        self.lease = lease
        self.on_end = on_end
        self.had_at = clock()  # it was granted before that
        self.at_least = 0.0
        self.count = 0
        # A list is replaced when it changes: other threads read them without a mutex.
        self.levels: list[Level] = []
        self.stale: list[Level] = []  # of earlier, lost holds of the same owner
        self.lost: str | None = None
        self.abandoned = False  # whether all who entered have ended without leaving
        self.asked: float | None = None  # the end of the lease before which it was asked for
        self.due = 0.0  # when it is to be renewed
        self.renewing = False  # whether that is under way
        self.failed = False  # whether the last renewal had no answer for it
        self.look = 0.0  # when the renewer looks at it next
        self.enter(Level(alive, at_least, renews, on_lost, lock))
        self.extend(lease.deadline)

    def enter(self, level: Level) -> None:
        """Count one level more. A named owner may enter from several threads and tasks."""
        for known in self.levels:
            if known.lock is level.lock and known.life == level.life:
                known.count += 1
                break
        else:
            self.levels = [*self.levels, level]
        self.count += 1
        self.abandoned = False
        self.at_least = max(self.at_least, level.at_least)

    def leave(self, lock: object, life: Callable[[], bool]) -> None:
        """Count one level less, and forget its terms: those it was entered on by this Lock object.

        If there are none, those of the last level of this thread or task; else all terms go on.
        """
        self.count -= 1
        of_lock = [level for level in self.levels if level.lock is lock]
        of_life = [level for level in self.levels if level.life == life]
        left = [level for level in of_lock if level in of_life] or of_lock or of_life
        if left and self.count:
            self.levels = _less(self.levels, left[-1])

    def follow(self, earlier: HeldLease) -> None:
        """Remember who is still in an earlier hold of this owner, which was lost."""
        levels = [*earlier.stale, *earlier.levels]
        self.stale = [level for level in levels if level.life()]

    def is_stale(self, life: Liveness) -> bool:
        """Return whether this thread or task is in an earlier hold only, not in this one."""
        return (
            bool(self.stale)
            and all(level.life != life for level in self.levels)
            and any(level.life == life for level in self.stale)
        )

    def leave_stale(self, life: Liveness) -> None:
        """Count one level of the earlier holds less."""
        self.stale = _less(self.stale, next(x for x in self.stale if x.life == life))

    def desert(self) -> None:
        """Note that all who entered are over."""
        self.levels = [replace(level, life=_over) for level in self.levels]

    @property
    def renews(self) -> bool:
        """Whether any of those who entered wants it to be renewed."""
        return any(level.renews for level in self.levels)

    @property
    def on_lost(self) -> list[OnLost]:
        """What to call when it is lost, each callback once."""
        called: list[OnLost] = []
        for level in self.levels:
            if level.on_lost is not None and level.on_lost not in called:
                called.append(level.on_lost)
        return called

    @property
    def portable(self) -> bool:
        """Whether another process can take or free it, by its owner's name."""
        return is_named(self.lease.owner)

    @property
    def rest(self) -> float:
        """Seconds for which the lock has to stay taken, whether its holder leaves it or not."""
        return left(self.had_at + self.at_least, self.at_least)

    def free(self, deadline: float | None = None) -> str | None:
        """Free the lock, now or when its time is over; why it was gone, None if it was not."""
        if rest := self.rest:
            freed = self.backend.reserve_for(self.lease, rest, deadline)
        else:
            freed = self.backend.release(self.lease, deadline)
        if freed:
            return None
        return self.why_gone(deadline) if self.portable else BROKEN

    @property
    def alive(self) -> bool:
        """Whether any of those who entered still runs."""
        return any(level.life() for level in self.levels)

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
        sent_at = deadline - self.lease.claim.relied_on
        self.due = sent_at + self.backend.settings.interval(self.lease.duration)

    def renewal(self, at_least: float = 0.0) -> Lease:
        """Return the lease as the backend is to renew it: not to end before ``at_least`` is over.

        This process goes on counting its own, shorter length.
        """
        at_least = max(self.at_least, at_least)
        rest = left(self.had_at + at_least, at_least)
        return self.lease.lasting(rest) if rest > self.lease.duration else self.lease

    @property
    def next_look(self) -> float:
        """When the renewer has something to do for this hold: renew it, ask for it, or see it end.

        What is not renewed, and may have been carried to another process, is asked for once before
        its end, so that nobody is told of a loss that is none.
        """
        end = self.lease.deadline
        if self.watched:
            return min(self.due, end)
        if self.portable and self.asked != end:
            return end - self.backend.settings.interval(self.lease.duration)
        return end

    def ask(self, deadline: float | None = None) -> str | None:
        """Ask whether the lock is still held; why it is gone, or None. LockUnavailable if unknown.

        A named owner's hold can be told from a broken one only before somebody takes the lock.
        """
        if self.backend.verify(self.lease, deadline):
            return None
        return self.why_gone(deadline) if self.portable else BROKEN

    def why_gone(self, deadline: float | None = None) -> str:
        """Ask why the backend no longer knows this hold of a named owner.

        Until the lease ends nobody can take the lock except this owner elsewhere, or whoever comes
        after that; unless it was broken. If somebody has taken it since, it was handed over.
        """
        try:
            token = self.backend.inspect(self.lease.name, deadline).token
        except LockUnavailable:
            return TAKEN_AWAY
        taken_since = token is not None and token > self.lease.token
        return HANDED_OVER if taken_since and clock() < self.lease.deadline else TAKEN_AWAY

    def why_lost(self) -> str | None:
        """Return why the lock is gone, None while it is held. Asks nobody but this process."""
        if self.lost is not None:
            return self.lost
        if clock() >= self.lease.deadline:
            return ENDED
        return self.backend.known_lost(self.lease)

    def loss(self) -> LockLost | None:
        """Return the error that tells of the loss, None while the lock is held."""
        if (reason := self.why_lost()) is None:
            return None
        return LockLost(f"lock {self.lease.name!r} (token {self.lease.token}) was lost: {reason}")


def _less(levels: list[Level], one: Level) -> list[Level]:
    one.count -= 1
    return levels if one.count else [level for level in levels if level is not one]


def _over() -> bool:
    return False
