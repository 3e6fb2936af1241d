"""What this process holds: who entered which lock how often, and the way in and out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from distlock.backends.cleanup import Cleanup
from distlock.concurrency.steps import arun, run
from distlock.core.asking import ask
from distlock.core.attempt import AcquireAttempt, AcquireRequest
from distlock.core.events import asend_event, send_event
from distlock.core.following import acome, come
from distlock.core.held import HeldLease
from distlock.core.local_queue import Key, LocalQueue, Ticket
from distlock.core.reentry import confirm, must_ask
from distlock.core.registry import HeldLeases, not_held
from distlock.core.renewal import LeaseRenewer
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.signals import lock_acquired, lock_released
from distlock.threads import start
from distlock.types.lease import Lease, Owner, Waiting


class LockManager:
    """All holds of a process. Re-entrance goes by owner: the same owner enters again, counted."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Hold nothing, whatever was held before."""
        self._queue = LocalQueue()
        self._renewer = LeaseRenewer()
        self._held = HeldLeases(self._renewer)
        self._cleanup = Cleanup()

    # The way in

    # An interrupt within contextlib would leave a generator behind, and with it what that is to
    # clean up, for as long as anybody knows the error: the ways in and out do without.

    def acquire(self, request: AcquireRequest, *, wait: bool, deadline: float | None) -> bool:
        """Enter the lock; False if someone else has it (until ``deadline``, if ``wait``)."""
        while not self._reenter(request, deadline):
            attempt = AcquireAttempt(request, self._queue)
            try:
                self._get(attempt, wait, deadline)
            except LockError:
                raise
            except BaseException as error:
                self._fail(attempt, error)
                raise
            if not attempt.ticket.joined:
                return attempt.lease is not None
        return True

    async def aacquire(
        self, request: AcquireRequest, *, wait: bool, deadline: float | None
    ) -> bool:
        """See acquire()."""
        while not await self._areenter(request, deadline):
            attempt = AcquireAttempt(request, self._queue)
            try:
                await self._aget(attempt, wait, deadline)
            except LockError:
                raise
            except BaseException as error:
                self._fail(attempt, error)
                raise
            if not attempt.ticket.joined:
                return attempt.lease is not None
        return True

    def _reenter(self, request: AcquireRequest, deadline: float | None) -> bool:
        """Enter what this process holds already; False if the lock has to be taken."""
        while (hold := self._entered(request)) is not None:
            gone = None
            if must_ask(hold, request):
                gone = confirm(hold, request, self._renewer, hold.backend.calls.due(deadline))
            if self._enter(hold, request, gone):
                return True
        return False

    async def _areenter(self, request: AcquireRequest, deadline: float | None) -> bool:
        """See _reenter()."""
        while (hold := self._entered(request)) is not None:
            gone = None
            if must_ask(hold, request):
                asking = partial(confirm, hold, request, self._renewer)
                gone = await hold.backend.calls.run(asking, deadline)
            if self._enter(hold, request, gone):
                return True
        return False

    def _entered(self, request: AcquireRequest) -> HeldLease | None:
        """Return what the owner holds here, None if nothing; LockLost if it has to be left first.

        A named owner may come in from anywhere, and takes the lock anew.
        """
        hold = self._held.find(request.key, request.claim.owner)
        if hold is None or (loss := hold.loss()) is None:
            return hold
        if hold.renews and hold.alive and not hold.portable:
            raise loss
        self._renewer.lose(hold, hold.why_lost() or "")
        # The renewer's thread may have been first, but not have come this far yet.
        hold.backend.discard_local(hold.lease)
        hold.on_end()
        return None

    def _enter(self, hold: HeldLease, request: AcquireRequest, gone: str | None) -> bool:
        """Enter a hold, unless it is ``gone``, has ended, or was left meanwhile."""
        if gone:
            self._renewer.lose(hold, gone)
            return False
        return self._held.enter(hold, request.level)

    def _get(self, attempt: AcquireAttempt, wait: bool, deadline: float | None) -> None:
        """Have the request fulfilled, unless it is in vain."""
        request = attempt.request
        try:
            if come(attempt, self._held.find, wait, deadline):
                attempt.asked = not attempt.ticket.joined
            elif not request.named and not self._is_held_here(request.key):
                # Who is ahead may have no answer either, which is not to have the lock.
                request.backend.is_held(request.claim.name, request.last_answer_due(wait))
            if attempt.asked:
                attempt.lease = run(
                    ask(request.backend, request.claim, wait=wait, deadline=deadline)
                )
            if attempt.lease is not None:
                self._admit(request, attempt.lease, attempt.ticket)
                send_event(lock_acquired, request.backend, attempt.lease)
            else:
                attempt.queue.leave(attempt.ticket)
        except LockError as error:
            self._fail(attempt, error)  # an interrupt may come meanwhile; it is then repeated
            raise

    async def _aget(self, attempt: AcquireAttempt, wait: bool, deadline: float | None) -> None:
        """See _get()."""
        request = attempt.request
        try:
            if await acome(attempt, self._held.find, wait, deadline):
                attempt.asked = not attempt.ticket.joined
            elif not request.named and not self._is_held_here(request.key):
                asking = partial(request.backend.is_held, request.claim.name)
                await request.backend.calls.run(asking, request.last_answer_due(wait))
            if attempt.asked:
                attempt.lease = await arun(
                    ask(request.backend, request.claim, wait=wait, deadline=deadline)
                )
            if attempt.lease is not None:
                self._admit(request, attempt.lease, attempt.ticket)
                await asend_event(lock_acquired, request.backend, attempt.lease)
            else:
                attempt.queue.leave(attempt.ticket)
        except LockError as error:
            self._fail(attempt, error)
            raise

    def _is_held_here(self, key: Key) -> bool:
        """Return whether another thread or task of this process, the first in line, holds it."""
        first = self._queue.first(key)
        hold = None if first is None else self._held.find(key, first)
        return hold is not None and not hold.ended

    def _fail(self, attempt: AcquireAttempt, error: BaseException) -> None:
        """Leave nothing behind of a request that ended with an error."""
        if attempt.queue is not self._queue:
            return  # in the child of a fork: the request is the parent's
        # Interrupted, cancelled, left without an answer: it may have been granted all the same.
        unknown = attempt.asked and not (
            isinstance(error, LockUnavailable) and not error.maybe_applied
        )
        _undo(error, self._abandon, attempt, unknown)

    def _admit(self, request: AcquireRequest, lease: Lease, ticket: Ticket) -> None:
        hold = request.fulfilled(lease, lambda: self._queue.leave(ticket))
        self._held.add(hold)
        if hold.portable:
            self._queue.wake_same_owner(ticket)

    def _abandon(self, attempt: AcquireAttempt, unknown: bool) -> None:
        """Take back what has come of a request, or may have, and let the next one come."""
        if self._dismiss(attempt):
            if unknown:
                self._cleanup.add(attempt.request.backend, attempt.request.claim)
            self._queue.leave(attempt.ticket)

    def _dismiss(self, attempt: AcquireAttempt) -> bool:
        """Leave the hold, if there is one yet; False if others entered it by the owner's name."""
        claim = attempt.request.claim
        return self._held.undo(attempt.request.key, claim.owner, claim.nonce, attempt.take_level)

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
            send_event(lock_released, hold.backend, hold.lease)
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
            await asend_event(lock_released, hold.backend, hold.lease)
        return was_last

    def _go(self, hold: HeldLease, lock: object) -> bool:
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

    async def _ago(self, hold: HeldLease, lock: object) -> bool:
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

    def _fail_to_go(self, hold: HeldLease, error: BaseException) -> None:
        """Leave nothing behind of a hold whose last level was left with an error."""
        if hold.count:
            return
        if isinstance(error, (LockNotHeld, LockLost)):
            hold.on_end()
        else:
            _undo(error, self._give_up, hold)

    def _give_up(self, hold: HeldLease) -> None:
        self._held.discard(hold)
        leave = hold.free if hold.rest else None
        self._cleanup.add(hold.backend, hold.lease.claim, leave)
        hold.on_end()

    def _leave(self, hold: HeldLease, lock: object) -> bool:
        """Count one level less; True if that was the last one and the backend is to be told."""
        self._held.leave(hold, lock)
        if hold.count:
            return False
        if not self._renewer.drop(hold) and (loss := hold.loss()):
            raise loss
        return True

    def _freed(self, hold: HeldLease, gone: str | None) -> None:
        """Note what the backend said to freeing a hold; LockLost if it was ``gone``."""
        if gone:
            self._renewer.lost(hold, gone)
            if loss := hold.loss():
                raise loss

    # Looking

    def hold(self, key: Key, owner: Owner) -> HeldLease:
        """Return what the owner holds; raises LockNotHeld or LockLost. Asks no backend."""
        return self._held.hold(key, owner)

    def all(self) -> list[HeldLease]:
        """Return what this process holds, by what it knows."""
        return self._held.all()

    def waiting(self, key: Key) -> tuple[Waiting, ...]:
        """Return who waits for a lock in this process, behind others of it."""
        return self._queue.waiting(key)

    def lose(self, hold: HeldLease, reason: str) -> None:
        """Note that the backend no longer knows this hold."""
        self._renewer.lose(hold, reason)

    # For tests, see distlock.testing

    def every(self) -> list[HeldLease]:
        """Return all holds, those included that were lost and have not been left."""
        return self._held.every()

    def free(self, hold: HeldLease) -> None:
        """Free a hold at once, whoever is in it."""
        self._held.discard(hold)
        try:
            if not hold.ended:
                hold.backend.release(hold.lease)
        finally:
            hold.on_end()

    # Holds that nobody enters

    def watch(self, hold: HeldLease) -> None:
        """Keep a lease alive that was taken from its backend past this process's owners."""
        self._renewer.keep(hold)

    def unwatch(self, hold: HeldLease) -> None:
        """Keep it alive no more; it stays taken until it is released, or ends."""
        self._renewer.drop(hold)

    def _held_or_lost(self, key: Key, owner: Owner) -> HeldLease:
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


manager = LockManager()


def _after_fork() -> None:
    # The child holds nothing: the locks, and the threads that keep them, are the parent's.
    manager.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
