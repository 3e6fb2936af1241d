"""What this process holds: who entered which lock how often, and the way in and out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from distlock.asking import aask, ask
from distlock.events import atell, tell
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.following import acome, come
from distlock.held_locks import HeldLocks, not_held
from distlock.hold import Hold
from distlock.keeper import Keeper
from distlock.lease import Lease, Owner, Waiting
from distlock.reentry import confirm, must_ask
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
        self._turns = Turns()
        self._keeper = Keeper()
        self._held = HeldLocks(self._keeper)
        self._withdrawals = Withdrawals()

    # The way in

    # An interrupt within contextlib would leave a generator behind, and with it what that is to
    # clean up, for as long as anybody knows the error: the ways in and out do without.

    def acquire(self, wish: Wish, *, wait: bool, deadline: float | None) -> bool:
        """Enter the lock; False if someone else has it (until ``deadline``, if ``wait``)."""
        while not self._reenter(wish, deadline):
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
        while not await self._areenter(wish, deadline):
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

    def _reenter(self, wish: Wish, deadline: float | None) -> bool:
        """Enter what this process holds already; False if the lock has to be taken."""
        while (hold := self._entered(wish)) is not None:
            gone = None
            if must_ask(hold, wish):
                gone = confirm(hold, wish, self._keeper, hold.backend.calls.due(deadline))
            if self._enter(hold, wish, gone):
                return True
        return False

    async def _areenter(self, wish: Wish, deadline: float | None) -> bool:
        """See _reenter()."""
        while (hold := self._entered(wish)) is not None:
            gone = None
            if must_ask(hold, wish):
                asking = partial(confirm, hold, wish, self._keeper)
                gone = await hold.backend.calls.run(asking, deadline)
            if self._enter(hold, wish, gone):
                return True
        return False

    def _entered(self, wish: Wish) -> Hold | None:
        """Return what the owner holds here, None if nothing; LockLost if it has to be left first.

        A named owner may come in from anywhere, and takes the lock anew.
        """
        hold = self._held.find(wish.key, wish.claim.owner)
        if hold is None or (loss := hold.loss()) is None:
            return hold
        if hold.renews and hold.alive and not hold.portable:
            raise loss
        self._keeper.lose(hold, hold.why_lost() or "")
        # The keeper's thread may have been first, but not have come this far yet.
        hold.backend.forget(hold.lease)
        hold.on_end()
        return None

    def _enter(self, hold: Hold, wish: Wish, gone: str | None) -> bool:
        """Enter a hold, unless it is ``gone``, has ended, or was left meanwhile."""
        if gone:
            self._keeper.lose(hold, gone)
            return False
        return self._held.enter(hold, wish.level)

    def _get(self, entry: Entry, wait: bool, deadline: float | None) -> None:
        """Have the wish fulfilled, unless it is in vain."""
        wish = entry.wish
        try:
            if come(entry, self._held.find, wait, deadline):
                entry.asked = not entry.turn.joined
            elif not wish.named and not self._is_held_here(wish.key):
                # Who is ahead may have no answer either, which is not to have the lock.
                wish.backend.is_held(wish.claim.name, wish.last_answer_due(wait))
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
            if await acome(entry, self._held.find, wait, deadline):
                entry.asked = not entry.turn.joined
            elif not wish.named and not self._is_held_here(wish.key):
                asking = partial(wish.backend.is_held, wish.claim.name)
                await wish.backend.calls.run(asking, wish.last_answer_due(wait))
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

    def _is_held_here(self, key: Key) -> bool:
        """Return whether another thread or task of this process, the first in line, holds it."""
        first = self._turns.first(key)
        hold = None if first is None else self._held.find(key, first)
        return hold is not None and not hold.ended

    def _fail(self, entry: Entry, error: BaseException) -> None:
        """Leave nothing behind of a wish that ended with an error."""
        if entry.turns is not self._turns:
            return  # in the child of a fork: the wish is the parent's
        # Interrupted, cancelled, left without an answer: it may have been granted all the same.
        unknown = entry.asked and not (isinstance(error, LockUnavailable) and not error.sent)
        _undo(error, self._abandon, entry, unknown)

    def _admit(self, wish: Wish, lease: Lease, turn: Turn) -> None:
        hold = wish.fulfilled(lease, lambda: self._turns.leave(turn))
        self._held.add(hold)
        if hold.portable:
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
        return self._held.undo(entry.wish.key, claim.owner, claim.nonce, entry.take_level)

    # The way out

    def release(self, key: Key, owner: Owner, lock: object) -> bool:
        """Leave one level by this Lock object; True if it was the last. See Lock.release()."""
        hold = self._held_or_lost(key, owner)
        try:
            was_last = self._go(hold, lock)
        except LockError:
            raise
        except BaseException as error:
            self._fail_to_go(hold, error)
            raise
        if was_last:
            tell(lock_released, hold.backend, hold.lease)
        return was_last

    async def arelease(self, key: Key, owner: Owner, lock: object) -> bool:
        """See release()."""
        hold = self._held_or_lost(key, owner)
        try:
            was_last = await self._ago(hold, lock)
        except LockError:
            raise
        except BaseException as error:
            self._fail_to_go(hold, error)
            raise
        if was_last:
            await atell(lock_released, hold.backend, hold.lease)
        return was_last

    def _go(self, hold: Hold, lock: object) -> bool:
        """Leave one level, and nothing behind of the last one; True if this was it."""
        try:
            if was_last := self._leave(hold, lock):
                self._freed(hold, hold.free())
            if hold.count == 0:
                hold.on_end()
        except LockError as error:
            self._fail_to_go(hold, error)  # an interrupt may come meanwhile; it is then repeated
            raise
        return was_last

    async def _ago(self, hold: Hold, lock: object) -> bool:
        """See _go()."""
        try:
            if was_last := self._leave(hold, lock):
                self._freed(hold, await hold.backend.calls.run(hold.free, leaves=True))
            if hold.count == 0:
                hold.on_end()
        except LockError as error:
            self._fail_to_go(hold, error)
            raise
        return was_last

    def release_soon(self, key: Key, owner: Owner, lock: object) -> None:
        """Leave one level for someone who is gone, without making the caller wait.

        It may be the garbage collector, in a thread that has a mutex of ours.
        """

        def leave() -> None:
            with suppress(LockError):
                self.release(key, owner, lock)

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
        self._held.discard(hold)
        leave = hold.free if hold.rest else None
        self._withdrawals.add(hold.backend, hold.lease.claim, leave)
        hold.on_end()

    def _leave(self, hold: Hold, lock: object) -> bool:
        """Count one level less; True if that was the last one and the backend is to be told."""
        self._held.leave(hold, lock)
        if hold.count:
            return False
        if not self._keeper.drop(hold) and (loss := hold.loss()):
            raise loss
        return True

    def _freed(self, hold: Hold, gone: str | None) -> None:
        """Note what the backend said to freeing a hold; LockLost if it was ``gone``."""
        if gone:
            self._keeper.lost(hold, gone)
            if loss := hold.loss():
                raise loss

    # Looking

    def hold(self, key: Key, owner: Owner) -> Hold:
        """Return what the owner holds; raises LockNotHeld or LockLost. Asks no backend."""
        return self._held.hold(key, owner)

    def all(self) -> list[Hold]:
        """Return what this process holds, by what it knows."""
        return self._held.all()

    def waiting(self, key: Key) -> tuple[Waiting, ...]:
        """Return who waits for a lock in this process, behind others of it."""
        return self._turns.waiting(key)

    def lose(self, hold: Hold, reason: str) -> None:
        """Note that the backend no longer knows this hold."""
        self._keeper.lose(hold, reason)

    # For tests, see distlock.testing

    def every(self) -> list[Hold]:
        """Return all holds, those included that were lost and have not been left."""
        return self._held.every()

    def free(self, hold: Hold) -> None:
        """Free a hold at once, whoever is in it."""
        self._held.discard(hold)
        try:
            if not hold.ended:
                hold.backend.release(hold.lease)
        finally:
            hold.on_end()

    # Holds that nobody enters

    def watch(self, hold: Hold) -> None:
        """Keep a lease alive that was taken from its backend past this process's owners."""
        self._keeper.keep(hold)

    def unwatch(self, hold: Hold) -> None:
        """Keep it alive no more; it stays taken until it is released, or ends."""
        self._keeper.drop(hold)

    def _held_or_lost(self, key: Key, owner: Owner) -> Hold:
        if (hold := self._held.find(key, owner)) is None:
            raise not_held(key, owner)
        return hold


def _undo(error: BaseException, call: Callable[..., object], *args: object) -> None:
    """Clean up after an error. What is called may be called twice."""
    if isinstance(error, GeneratorExit):
        # A coroutine is being collected as garbage, perhaps while this thread has a mutex of ours.
        start(call, "distlock-undo", *args)
    else:
        call(*args)


holdings = Holdings()


def _after_fork() -> None:
    # The child holds nothing: the locks, and the threads that keep them, are the parent's.
    holdings.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
