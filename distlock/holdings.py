"""What this process holds: who entered which lock how often, and the way in and out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from distlock.asking import aask, ask
from distlock.backends.base import BaseBackend
from distlock.events import atell, tell
from distlock.exceptions import LockNotHeld, LockUnavailable
from distlock.hold import BROKEN, Hold, OnLost
from distlock.keeper import Keeper
from distlock.lease import Claim, Lease, Owner
from distlock.owners import Life, is_named
from distlock.signals import lock_acquired, lock_released
from distlock.threads import in_thread
from distlock.turns import Key, Turn, Turns
from distlock.withdrawals import Withdrawals


@dataclass(frozen=True, slots=True)
class Wish:
    """A claim, and what is to become of the hold if it is granted."""

    backend: BaseBackend
    claim: Claim
    alive: Life
    renews: bool
    on_lost: OnLost | None

    @property
    def key(self) -> Key:
        return self.backend.alias, self.claim.name


class _Entry:
    """A wish whose turn it is, and what came of it so far."""

    asked = False
    lease: Lease | None = None


class Holdings:
    """All holds of a process. Re-entrance goes by owner: the same owner enters again, counted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hold nothing, whatever was held before."""
        self._mutex = threading.Lock()
        self._holds: dict[tuple[Key, str], Hold] = {}
        self._turns = Turns()
        self._keeper = Keeper()
        self._withdrawals = Withdrawals()

    # The way in

    def acquire(self, wish: Wish, *, wait: bool, deadline: float | None) -> bool:
        """Enter the lock; False if someone else has it (until ``deadline``, if ``wait``)."""
        while not self._reenter(wish):
            turn = self._turns.take(wish.key, wish.claim.owner, wait=wait)
            if turn is None:
                return False
            with self._entry(wish, turn) as entry:
                if not turn.wait(deadline):
                    return False
                if turn.joined:
                    continue
                entry.asked = True
                entry.lease = ask(wish.backend, wish.claim, wait=wait, deadline=deadline)
                if entry.lease is None:
                    return False
                self._admit(wish, entry.lease, turn)
                tell(lock_acquired, wish.backend, entry.lease)
            return True
        return True

    async def aacquire(self, wish: Wish, *, wait: bool, deadline: float | None) -> bool:
        """See acquire()."""
        while not self._reenter(wish):
            turn = self._turns.take(wish.key, wish.claim.owner, wait=wait)
            if turn is None:
                return False
            with self._entry(wish, turn) as entry:
                if not await turn.await_(deadline):
                    return False
                if turn.joined:
                    continue
                entry.asked = True
                entry.lease = await aask(wish.backend, wish.claim, wait=wait, deadline=deadline)
                if entry.lease is None:
                    return False
                self._admit(wish, entry.lease, turn)
                await atell(lock_acquired, wish.backend, entry.lease)
            return True
        return True

    def _reenter(self, wish: Wish) -> bool:
        with self._mutex:
            hold = self._holds.get((wish.key, wish.claim.owner.key))
            if hold is None:
                return False
            if loss := hold.loss():
                if not hold.renews:
                    # Nobody was to watch over it, so nobody need have left it.
                    del self._holds[wish.key, wish.claim.owner.key]
                    self._keeper.lose(hold, hold.why_lost() or "")
                    return False
                raise loss
            hold.count += 1
            return True

    @contextmanager
    def _entry(self, wish: Wish, turn: Turn) -> Iterator[_Entry]:
        """Leave nothing behind of a wish that is not fulfilled, whichever way that ends."""
        entry = _Entry()
        try:
            yield entry
        except BaseException as error:
            self._dismiss(wish)
            # Interrupted, cancelled, left without an answer: it may have been granted all the same.
            if entry.asked and not (isinstance(error, LockUnavailable) and not error.sent):
                self._withdrawals.add(wish.backend, wish.claim)
            self._turns.leave(turn)
            raise
        if entry.lease is None:
            self._turns.leave(turn)

    def _admit(self, wish: Wish, lease: Lease, turn: Turn) -> None:
        hold = Hold(
            wish.backend,
            lease,
            alive=wish.alive,
            renews=wish.renews,
            on_lost=wish.on_lost,
            on_end=lambda: self._turns.leave(turn),
        )
        with self._mutex:
            self._holds[wish.key, lease.owner.key] = hold
        self._keeper.keep(hold)
        if is_named(lease.owner):
            self._turns.admit(turn)

    def _dismiss(self, wish: Wish) -> None:
        with self._mutex:
            hold = self._holds.get((wish.key, wish.claim.owner.key))
            if hold is None or hold.lease.nonce != wish.claim.nonce:
                return
            del self._holds[wish.key, wish.claim.owner.key]
        self._keeper.drop(hold)

    # The way out

    def release(self, key: Key, owner: Owner) -> bool:
        """Leave one level; True if that was the last one. See Lock.release()."""
        hold = self._leave(key, owner)
        if hold is None:
            return False
        with self._exit(hold) as done:
            done(hold.backend.release(hold.lease))
        tell(lock_released, hold.backend, hold.lease)
        return True

    async def arelease(self, key: Key, owner: Owner) -> bool:
        """See release()."""
        hold = self._leave(key, owner)
        if hold is None:
            return False
        with self._exit(hold) as done:
            done(await in_thread(hold.backend.release, hold.lease))
        await atell(lock_released, hold.backend, hold.lease)
        return True

    def _leave(self, key: Key, owner: Owner) -> Hold | None:
        """Count one level less; return the hold if that was the last one."""
        with self._mutex:
            hold = self._held_or_lost(key, owner)
            hold.count -= 1
            if hold.count == 0:
                del self._holds[key, owner.key]
            loss = hold.loss()
        if loss:
            self._keeper.lose(hold, hold.why_lost() or "")
            raise loss
        return hold if hold.count == 0 else None

    @contextmanager
    def _exit(self, hold: Hold) -> Iterator[Callable[[bool], None]]:
        """Stop keeping the hold while the backend frees it, then let the next one in."""
        freed = False

        def done(answer: bool) -> None:
            nonlocal freed
            freed = answer

        kept = self._keeper.drop(hold)
        try:
            yield done
        except BaseException:
            self._withdrawals.add(hold.backend, hold.lease.claim)
            raise
        finally:
            hold.on_end()
        if kept and not freed:
            self._keeper.lost(hold, BROKEN)
        if loss := hold.loss():
            raise loss

    # Looking

    def hold(self, key: Key, owner: Owner) -> Hold:
        """Return what the owner holds; raises LockNotHeld or LockLost. Asks no backend."""
        with self._mutex:
            hold = self._held_or_lost(key, owner)
        if loss := hold.loss():
            raise loss
        return hold

    def lose(self, hold: Hold, reason: str) -> None:
        """Note that the backend no longer knows this hold."""
        self._keeper.lose(hold, reason)

    def _held_or_lost(self, key: Key, owner: Owner) -> Hold:
        hold = self._holds.get((key, owner.key))
        if hold is None:
            raise LockNotHeld(f"lock {key[1]!r} on {key[0]!r} is not held by {owner}")
        return hold


holdings = Holdings()


def _after_fork() -> None:
    # The child holds nothing: the locks, and the threads that keep them, are the parent's.
    holdings.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
