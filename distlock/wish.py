"""What someone wants of a backend, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.hold import Hold, Level
from distlock.lease import Claim, Lease
from distlock.owners import is_named
from distlock.turns import Key, Turn, Turns

#: Seconds that the last answer may take for one who has waited.
_MOMENT = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
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
    def queue(self) -> Key:
        """Where in this process it is waited for.

        A named owner's hold may be taken or freed in another process, which nobody here would be
        told of. So who wants the lock does not wait for such a hold here, but at the backend; and
        a named owner does not wait here for others, whose wait it may be about to end.
        """
        owner = self.claim.owner
        return (*self.key, owner.key) if is_named(owner) else self.key

    def last_answer_due(self, wait: bool) -> float | None:
        """Return when an answer is due that is asked for at the end, though the time is over."""
        return self.backend.calls.due(clock() + _MOMENT if wait else None)

    def fulfilled(self, lease: Lease, on_end: Callable[[], None]) -> Hold:
        """Return the hold that was wished for; ``on_end`` is called once nobody has it."""
        return Hold(
            self.backend,
            lease,
            alive=self.level.life,
            at_least=self.level.at_least,
            renews=self.level.renews,
            on_lost=self.level.on_lost,
            lock=self.level.lock,
            on_end=on_end,
        )


class Entry:
    """A wish, its place in the queue, and what came of it so far."""

    def __init__(self, wish: Wish, turns: Turns) -> None:
        self.wish = wish
        self.turns = turns
        self.turn = Turn(wish.queue, wish.claim.owner)
        self.asked = False
        self.lease: Lease | None = None
        self._level: Level | None = wish.level

    def line_up(self, wait: bool, deadline: float | None) -> bool:
        """See Turns.take()."""
        return self.turns.take(self.turn, wait=wait, limited=deadline is not None)

    def take_level(self) -> Level | None:
        """Return the level of a hold that is to be taken back after an error; only once."""
        level, self._level = self._level, None
        return level
