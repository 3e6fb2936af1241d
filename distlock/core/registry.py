"""Which locks this process holds: by lock and owner, and entered how often."""

from __future__ import annotations

import threading
from collections.abc import Callable

from distlock.core.held import HeldLease, Level
from distlock.core.local_queue import Key
from distlock.core.renewal import LeaseRenewer
from distlock.exceptions import LockLost, LockNotHeld
from distlock.types.lease import Owner
from distlock.types.owners import current_life

#: So many lost holds that nobody has left here are remembered, and again as many as are held.
_FEW = 64


class HeldLeases:
    """The holds of a process. A lost one stays here until it was left, or is taken anew."""

    def __init__(self, renewer: LeaseRenewer) -> None:
        self._renewer = renewer
        self._mutex = threading.Lock()
        self._holds: dict[tuple[Key, str], HeldLease] = {}
        self._most = _FEW

    def find(self, key: Key, owner: Owner) -> HeldLease | None:
        """Return the hold of an owner, lost or not."""
        with self._mutex:
            return self._holds.get((key, owner.key))

    def hold(self, key: Key, owner: Owner) -> HeldLease:
        """Return what the owner holds, as far as is known here; LockNotHeld or LockLost."""
        if (hold := self.find(key, owner)) is None:
            raise not_held(key, owner)
        if loss := hold.loss():
            raise loss
        if hold.stale and hold.is_stale(current_life()):
            raise _lost_before(hold)
        return hold

    def all(self) -> list[HeldLease]:
        """Return the holds whose leases have not ended."""
        with self._mutex:
            return [hold for hold in self._holds.values() if not hold.ended]

    def every(self) -> list[HeldLease]:
        """Return all holds, those included that were lost and have not been left."""
        with self._mutex:
            return list(self._holds.values())

    def add(self, hold: HeldLease) -> None:
        """Note a new hold."""
        with self._mutex:
            if hold.portable:
                if earlier := self._holds.get(_place(hold)):
                    hold.follow(earlier)
                self._forget_leftovers()
            self._holds[_place(hold)] = hold
        self._renewer.keep(hold)

    def enter(self, hold: HeldLease, level: Level) -> bool:
        """Count one level more; False if the hold was lost or left meanwhile."""
        with self._mutex:
            if self._holds.get(_place(hold)) is not hold or hold.loss():
                return False
            self._renewer.enter(hold, level)
            return True

    def leave(self, hold: HeldLease, lock: object) -> None:
        """Count one level less, by this Lock object. See Lock.release() for the errors."""
        life = current_life()
        with self._mutex:
            if self._holds.get(_place(hold)) is not hold:
                # Another one with its name was faster.
                raise not_held(_place(hold)[0], hold.lease.owner)
            if hold.is_stale(life):
                hold.leave_stale(life)
                raise _lost_before(hold)
            hold.leave(lock, life)
            if hold.count == 0:
                del self._holds[_place(hold)]
            loss = hold.loss()
        if loss:
            self._renewer.lose(hold, hold.why_lost() or "")
            raise loss

    def undo(
        self, key: Key, owner: Owner, nonce: str, take_level: Callable[[], Level | None]
    ) -> bool:
        """Take a level back, if this hold is there; False if others are in it by its owner's name.

        ``take_level`` returns that level; None if this has been done, and is repeated.
        """
        with self._mutex:
            hold = self._holds.get((key, owner.key))
            if hold is None or hold.lease.nonce != nonce:
                return True
            if (level := take_level()) is not None:
                hold.leave(level.lock, level.life)
        if hold.count:
            return False
        self.discard(hold)
        return True

    def discard(self, hold: HeldLease) -> None:
        """Forget a hold, and stop watching it."""
        with self._mutex:
            if self._holds.get(_place(hold)) is hold:
                del self._holds[_place(hold)]
        self._renewer.drop(hold)

    def _forget_leftovers(self) -> None:
        """Forget lost holds of named owners now and then: most were left elsewhere, not here."""
        if len(self._holds) > self._most:
            ended = [place for place, hold in self._holds.items() if hold.portable and hold.ended]
            for place in ended:
                del self._holds[place]
            self._most = 2 * len(self._holds) + _FEW


def not_held(key: Key, owner: Owner) -> LockNotHeld:
    """Return the error for an owner who does not hold a lock."""
    return LockNotHeld(f"lock {key[1]!r} on {key[0]!r} is not held by {owner}")


def _place(hold: HeldLease) -> tuple[Key, str]:
    return (hold.backend.alias, hold.lease.name), hold.lease.owner.key


def _lost_before(hold: HeldLease) -> LockLost:
    return LockLost(
        f"lock {hold.lease.name!r} was lost here, and has been taken anew since (token"
        f" {hold.lease.token}) under its owner's name"
    )
