"""What someone wants of a backend, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from distlock.backends.base import BaseBackend
from distlock.hold import OnLost
from distlock.lease import Claim, Lease
from distlock.owners import Life
from distlock.turns import Key, Turn


@dataclass(frozen=True, slots=True)
class Wish:
    """A claim, and what is to become of the hold if it is granted."""

    backend: BaseBackend
    claim: Claim
    alive: Life
    at_least: float
    renews: bool
    on_lost: OnLost | None

    @property
    def key(self) -> Key:
        return self.backend.alias, self.claim.name


class Entry:
    """A wish, its place in the queue, and what came of it so far."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.turn = Turn(wish.key, wish.claim.owner)
        self.asked = False
        self.lease: Lease | None = None
