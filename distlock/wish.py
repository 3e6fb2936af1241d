"""What someone wants of a backend, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distlock.backends.base import BaseBackend
from distlock.hold import Hold, OnLost
from distlock.lease import Claim, Lease
from distlock.owners import Life
from distlock.turns import Key, Turn, Turns


@dataclass(frozen=True, slots=True)
class Wish:
    """A claim, and what is to become of the hold if it is granted."""

    backend: BaseBackend
    claim: Claim
    alive: Life
    at_least: float
    on_lost: OnLost | None

    @property
    def key(self) -> Key:
        return self.backend.alias, self.claim.name

    def fulfilled(self, lease: Lease, on_end: Callable[[], None]) -> Hold:
        """Return the hold that was wished for; ``on_end`` is called once nobody has it."""
        return Hold(
            self.backend,
            lease,
            alive=self.alive,
            at_least=self.at_least,
            renews=self.claim.renews,
            on_lost=self.on_lost,
            on_end=on_end,
        )


class Entry:
    """A wish, its place in the queue, and what came of it so far."""

    def __init__(self, wish: Wish, turns: Turns) -> None:
        self.wish = wish
        self.turns = turns
        self.turn = Turn(wish.key, wish.claim.owner)
        self.asked = False
        self.dismissed = False  # its level of a hold has been left again
        self.lease: Lease | None = None

    def line_up(self, wait: bool, deadline: float | None) -> bool:
        """See Turns.take()."""
        return self.turns.take(self.turn, wait=wait, limited=deadline is not None)
