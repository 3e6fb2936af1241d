"""What this process holds: who entered which lock how often, and the way in and out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from distlock.asking import aask, ask
from distlock.events import atell, tell
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.hold import BROKEN, Hold
from distlock.keeper import Keeper
from distlock.lease import Lease, Owner
from distlock.owners import is_named
from distlock.signals import lock_acquired, lock_released
from distlock.threads import start
from distlock.turns import Key, Turn, Turns
from distlock.wish import Entry, Wish
from distlock.withdrawals import Withdrawals


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

    # An interrupt within contextlib would leave a generator behind, and with it what that is to
    # clean up, for as long as anybody knows the error: the ways in and out do without.

    def acquire(self, wish: Wish, *, wait: bool, deadline: float | None) -> bool:
        """Enter the lock; False if someone else has it (until ``deadline``, if ``wait``)."""
        while not self._reenter(wish):
            entry = Entry(wish, self._turns)
            try:
                self._get(entry, wait, deadline)
            except LockError:
                raise
            except BaseException as error:
                self._fail(entry, error)
                raise
            if not entry.turn.joined:
                return entry.lease is not None
        return True

    async def aacquire(self, wish: Wish, *, wait: bool, deadline: float | None) -> bool:
        """See acquire()."""
        while not self._reenter(wish):
            entry = Entry(wish, self._turns)
            try:
                await self._aget(entry, wait, deadline)
            except LockError:
                raise
            except BaseException as error:
                self._fail(entry, error)
                raise
            if not entry.turn.joined:
                return entry.lease is not None
        return True

    def _reenter(self, wish: Wish) -> bool:
        with self._mutex:
            hold = self._holds.get((wish.key, wish.claim.owner.key))
            if hold is None:
                return False
            if loss := hold.loss():
                if not (hold.renews and hold.alive):
                    # Nobody was to watch over it, or is there any more, so nobody will leave it.
                    del self._holds[wish.key, wish.claim.owner.key]
                    self._keeper.lose(hold, hold.why_lost() or "")
                    # The keeper's thread may have been first, but not have come this far yet.
                    hold.backend.forget(hold.lease)
                    hold.on_end()
                    return False
                raise loss
            self._keeper.enter(hold, wish.alive, wish.at_least)
            return True

    def _get(self, entry: Entry, wait: bool, deadline: float | None) -> None:
        """Have the wish fulfilled, unless it is in vain."""
        wish = entry.wish
        try:
            if entry.line_up(wait, deadline) and entry.turn.wait(deadline):
                entry.asked = not entry.turn.joined
            if entry.asked:
                entry.lease = ask(wish.backend, wish.claim, wait=wait, deadline=deadline)
            if entry.lease is not None:
                self._admit(wish, entry.lease, entry.turn)
                tell(lock_acquired, wish.backend, entry.lease)
            else:
                entry.turns.leave(entry.turn)
        except LockError as error:
            self._fail(entry, error)  # an interrupt may come meanwhile; it is then repeated
            raise

    async def _aget(self, entry: Entry, wait: bool, deadline: float | None) -> None:
        """See _get()."""
        wish = entry.wish
        try:
            if entry.line_up(wait, deadline) and await entry.turn.await_(deadline):
                entry.asked = not entry.turn.joined
            if entry.asked:
                entry.lease = await aask(wish.backend, wish.claim, wait=wait, deadline=deadline)
            if entry.lease is not None:
                self._admit(wish, entry.lease, entry.turn)
                await atell(lock_acquired, wish.backend, entry.lease)
            else:
                entry.turns.leave(entry.turn)
        except LockError as error:
            self._fail(entry, error)
            raise

    def _fail(self, entry: Entry, error: BaseException) -> None:
        """Leave nothing behind of a wish that ended with an error."""
        if entry.turns is not self._turns:
            return  # in the child of a fork: the wish is the parent's
        # Interrupted, cancelled, left without an answer: it may have been granted all the same.
        unknown = entry.asked and not (isinstance(error, LockUnavailable) and not error.sent)
        _undo(error, self._abandon, entry, unknown)

    def _admit(self, wish: Wish, lease: Lease, turn: Turn) -> None:
        hold = wish.fulfilled(lease, lambda: self._turns.leave(turn))
        with self._mutex:
            self._holds[wish.key, lease.owner.key] = hold
        self._keeper.keep(hold)
        if is_named(lease.owner):
            self._turns.admit(turn)

    def _abandon(self, entry: Entry, unknown: bool) -> None:
        """Take back what has come of a wish, or may have, and let the next one come."""
        if self._dismiss(entry):
            if unknown:
                self._withdrawals.add(entry.wish.backend, entry.wish.claim)
            self._turns.leave(entry.turn)

    def _dismiss(self, entry: Entry) -> bool:
        """Leave the hold, if there is one yet; False if others entered it by the owner's name."""
        claim = entry.wish.claim
        with self._mutex:
            hold = self._holds.get((entry.wish.key, claim.owner.key))
            if hold is None or hold.lease.nonce != claim.nonce:
                return True
            if not entry.dismissed:
                entry.dismissed = True
                hold.count -= 1
        if hold.count:
            return False
        self._discard(hold)
        return True

    def _discard(self, hold: Hold) -> None:
        place = (hold.backend.alias, hold.lease.name), hold.lease.owner.key
        with self._mutex:
            if self._holds.get(place) is hold:
                del self._holds[place]
        self._keeper.drop(hold)

    # The way out

    def release(self, key: Key, owner: Owner) -> bool:
        """Leave one level; True if that was the last one. See Lock.release()."""
        hold = self._held_or_lost(key, owner)
        try:
            was_last = self._go(key, hold)
        except LockError:
            raise
        except BaseException as error:
            self._fail_to_go(hold, error)
            raise
        if was_last:
            tell(lock_released, hold.backend, hold.lease)
        return was_last

    async def arelease(self, key: Key, owner: Owner) -> bool:
        """See release()."""
        hold = self._held_or_lost(key, owner)
        try:
            was_last = await self._ago(key, hold)
        except LockError:
            raise
        except BaseException as error:
            self._fail_to_go(hold, error)
            raise
        if was_last:
            await atell(lock_released, hold.backend, hold.lease)
        return was_last

    def _go(self, key: Key, hold: Hold) -> bool:
        """Leave one level, and nothing behind of the last one; True if this was it."""
        try:
            if was_last := self._leave(key, hold):
                self._freed(hold, hold.free())
            if hold.count == 0:
                hold.on_end()
        except LockError as error:
            self._fail_to_go(hold, error)  # an interrupt may come meanwhile; it is then repeated
            raise
        return was_last

    async def _ago(self, key: Key, hold: Hold) -> bool:
        """See _go()."""
        try:
            if was_last := self._leave(key, hold):
                self._freed(hold, await hold.backend.calls.run(hold.free, leaves=True))
            if hold.count == 0:
                hold.on_end()
        except LockError as error:
            self._fail_to_go(hold, error)
            raise
        return was_last

    def release_soon(self, key: Key, owner: Owner) -> None:
        """Leave one level for someone who is gone, without making the caller wait.

        It may be the garbage collector, in a thread that has a mutex of ours.
        """

        def leave() -> None:
            with suppress(LockError):
                self.release(key, owner)

        start(leave, "distlock-undo")

    def _fail_to_go(self, hold: Hold, error: BaseException) -> None:
        """Leave nothing behind of a hold whose last level was left with an error."""
        if hold.count:
            return
        if isinstance(error, (LockNotHeld, LockLost)):
            hold.on_end()
        else:
            _undo(error, self._give_up, hold)

    def _give_up(self, hold: Hold) -> None:
        self._discard(hold)
        leave = hold.free if hold.rest else None
        self._withdrawals.add(hold.backend, hold.lease.claim, leave)
        hold.on_end()

    def _leave(self, key: Key, hold: Hold) -> bool:
        """Count one level less; True if that was the last one and the backend is to be told."""
        with self._mutex:
            if self._holds.get((key, hold.lease.owner.key)) is not hold:
                raise _not_held(key, hold.lease.owner)  # another with its name was faster
            hold.count -= 1
            if hold.count == 0:
                del self._holds[key, hold.lease.owner.key]
            loss = hold.loss()
        if loss:
            self._keeper.lose(hold, hold.why_lost() or "")
            raise loss
        if hold.count:
            return False
        if not self._keeper.drop(hold) and (loss := hold.loss()):
            raise loss
        return True

    def _freed(self, hold: Hold, answer: bool) -> None:
        """Note what the backend said to freeing a hold; LockLost if it no longer knew it."""
        if not answer:
            self._keeper.lost(hold, BROKEN)
            if loss := hold.loss():
                raise loss

    # Looking

    def hold(self, key: Key, owner: Owner) -> Hold:
        """Return what the owner holds; raises LockNotHeld or LockLost. Asks no backend."""
        hold = self._held_or_lost(key, owner)
        if loss := hold.loss():
            raise loss
        return hold

    def all(self) -> list[Hold]:
        """Return what this process holds, by what it knows."""
        with self._mutex:
            return [hold for hold in self._holds.values() if not hold.ended]

    def lose(self, hold: Hold, reason: str) -> None:
        """Note that the backend no longer knows this hold."""
        self._keeper.lose(hold, reason)

    # Holds that nobody enters

    def watch(self, hold: Hold) -> None:
        """Keep a lease alive that was taken from its backend past this process's owners."""
        self._keeper.keep(hold)

    def unwatch(self, hold: Hold) -> None:
        """Keep it alive no more; it stays taken until it is released, or ends."""
        self._keeper.drop(hold)

    def _held_or_lost(self, key: Key, owner: Owner) -> Hold:
        with self._mutex:
            hold = self._holds.get((key, owner.key))
        if hold is None:
            raise _not_held(key, owner)
        return hold


def _undo(error: BaseException, call: Callable[..., object], *args: object) -> None:
    """Clean up after an error. What is called may be called twice."""
    if isinstance(error, GeneratorExit):
        # A coroutine is being collected as garbage, perhaps while this thread has a mutex of ours.
        start(call, "distlock-undo", *args)
    else:
        call(*args)


def _not_held(key: Key, owner: Owner) -> LockNotHeld:
    return LockNotHeld(f"lock {key[1]!r} on {key[0]!r} is not held by {owner}")


holdings = Holdings()


def _after_fork() -> None:
    # The child holds nothing: the locks, and the threads that keep them, are the parent's.
    holdings.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
