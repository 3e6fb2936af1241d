"""The waits of a process for the locks of one database."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from distlock.backends.blocking_calls import BlockingCalls
from distlock.backends.database import errors
from distlock.backends.database.pool import Pool
from distlock.backends.database.queue.advisory_locks import AdvisoryLocks
from distlock.backends.database.queue.holder_evidence import MOMENT, HolderEvidence
from distlock.backends.database.queue.lock_rows import LockRows
from distlock.backends.database.queue.sql_comment import FIRST, MARK, read
from distlock.backends.database.queue.stall_monitor import StallMonitor
from distlock.backends.database.queue.wait_session import WaitSession
from distlock.backends.database.queue.wait_session_pool import WaitSessionPool
from distlock.backends.database.queue.wait_threads import WaitThreads
from distlock.backends.database.queue.waiter import Waiter
from distlock.backends.database.statements import Result
from distlock.clock import clock, left
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Lease, Waiting
from distlock.types.owners import is_named

#: Seconds within which a lock is had also where whoever has its native lock does not take it.
_PATIENT = 5.0

Pauses = Callable[[float | None], Iterator[float]]


class WaitManager:
    """Where a process waits, with ``size`` sessions at the most; more waits look now and then."""

    def __init__(
        self, pool: Pool, native: AdvisoryLocks, size: int, pauses: Pauses, calls: BlockingCalls
    ) -> None:
        """``pauses`` yields the seconds between two looks, until a deadline; the last one is 0.

        ``calls`` runs for tasks what blocks.
        """
        self.pool = pool
        self.native = native
        self.size = size
        self.rows = LockRows(pool, native)
        self._pauses = pauses
        self._calls = calls
        self.reset()
        _rooms.add(self)

    def reset(self) -> None:
        """Have no waits; those of before a fork are the parent's."""
        self._mutex = threading.Lock()
        self._waiters: set[Waiter] = set()
        self.threads = WaitThreads()
        self._sessions = WaitSessionPool(self.pool, self.threads)
        self.monitor = StallMonitor(self)

    # The backend's side

    def acquire(self, claim: Claim, deadline: float | None) -> Lease | None:
        """See BaseBackend.acquire()."""
        proof = HolderEvidence(self.rows, claim)
        for pause in self._pauses(deadline):
            if lease := self._try(claim, deadline, proof):
                return lease
            if pause and (waiter := self._enter(claim, proof)):
                with waiter:
                    if lease := waiter.result(deadline):
                        return lease
                break
            time.sleep(pause)
        self._check(proof)
        return None

    async def aacquire(self, claim: Claim, deadline: float | None) -> Lease | None:
        """See acquire()."""
        proof = HolderEvidence(self.rows, claim)
        for pause in self._pauses(deadline):
            lease = await self._calls.run(
                lambda _: self._try(claim, deadline, proof),
                deadline,
                undo=partial(self.rows.undo, claim),
            )
            if lease:
                return lease
            if pause and (waiter := self._enter(claim, proof)):
                with waiter:
                    if lease := await waiter.aresult(deadline):
                        return lease
                break
            await asyncio.sleep(pause)
        await self._calls.run(lambda _: self._check(proof), clock() + MOMENT)
        return None

    def release(self, lease: Lease, limit: float | None = None) -> Result | None:
        """Free the lock and wake the next one; None if nothing is kept for this lease.

        ``limit`` is the seconds that the server gets for it. Raises a StatementFailed, and keeps
        nothing any more.
        """
        place = self._sessions.pop(lease.nonce)
        if place is None:
            return None
        try:
            return place.leave(self.rows.free_lease(place.session, lease), limit)
        finally:
            self._put_away(place)

    def cancel(self, claim: Claim) -> None:
        """Stop waiting for a claim, and drop its native lock; the row is the caller's to free."""
        for waiter in self.waiters:
            if waiter.claim.nonce == claim.nonce:
                waiter.abandon()
        self.forget(claim.nonce)

    def forget(self, nonce: str) -> None:
        """Drop the native lock of a lease that is gone. Nothing that could block, no errors."""
        if place := self._sessions.pop(nonce):
            self._sessions.drop(place)

    def close(self) -> None:
        """Close the sessions in which nobody waits."""
        self._sessions.close()

    def key(self, name: str) -> str:
        """Return the native lock of the lock ``name``, as waiting() calls it."""
        return self.rows.key(name)

    def waiting(self) -> dict[str, tuple[Waiting, ...]] | None:
        """Return who waits for which native lock, in order, in all processes; None if unknown."""
        if self.pool.pooled:
            return None
        try:
            answer = self.pool.run(self.native.signed(MARK, FIRST))
        except errors.StatementFailed:  # what is shown to whom is the administrator's business
            return None
        signs = [read(str(text), float(age)) for text, age, *_ in answer.rows]
        seen = [sign for sign in signs if sign is not None]
        if len(seen) < len(signs):
            return None
        # Of one lock several are first where they stand aside; who has waited longest is the next.
        seen.sort(key=lambda sign: -(sign.who.waited or 0) if sign.first else 1.0)
        found: dict[str, tuple[Waiting, ...]] = {}
        for sign in seen:
            found[sign.key] = (*found.get(sign.key, ()), sign.who)
        return found

    # The way in

    def _try(self, claim: Claim, deadline: float | None, proof: HolderEvidence) -> Lease | None:
        """Take the lock if it is free and nobody waits for it."""
        rest = left(deadline, math.inf)
        if rest > _PATIENT and not is_named(claim.owner) and self._sessions.had(claim.name):
            return None  # the queue itself will tell, in one round trip less
        brief = rest < errors.BRIEF
        try:
            if brief and proof.is_held(deadline):
                return None
            sent_at = clock()
            token = self.rows.take_if_no_waiters(claim, deadline)
        except errors.RowLocked as failed:
            proof.refused = failed
            return None
        except errors.StatementFailed as failed:
            failed = errors.seems_locked(failed) if brief else failed
            raise self.unavailable(failed) from failed.__cause__
        return None if token is None else claim.granted(token, sent_at)

    def _check(self, proof: HolderEvidence) -> None:
        """Raise LockUnavailable unless it is proven that someone else had the lock."""
        try:
            proof.check()
        except errors.StatementFailed as failed:
            raise self.unavailable(failed) from failed.__cause__

    def _enter(self, claim: Claim, proof: HolderEvidence) -> Waiter | None:
        """Begin to wait; None if there is no session left to wait in, or none that could."""
        if self.pool.pooled:
            return None
        place = self._sessions.ready()
        with self._mutex:
            full = place is None and len(self._waiters) + self._sessions.kept >= self.size
            # Who holds a lock may do without its native one: it is the row that holds it.
            if full and not self._sessions.give_up_one():
                return None
            waiter = Waiter(self, claim, place, proof)
            self._waiters.add(waiter)
        try:
            self.threads.run(waiter.run)
            self.monitor.watch()
        except BaseException as error:
            if waiter.begin():
                self.left(waiter, place)  # it will never run
            else:
                waiter.abandon()
            if isinstance(error, RuntimeError):  # no more threads
                return None
            raise
        return waiter

    # The waiters' side

    @property
    def waiters(self) -> list[Waiter]:
        with self._mutex:
            return list(self._waiters)

    def open_place(self) -> WaitSession:
        """Open a session to wait in; raises NoSession, also if a pooler would lend it to others."""
        session = self.pool.open(blocking=True)
        if session.pooled:
            session.close()
            raise errors.NoSession("a connection pooler lends its sessions to others")
        try:
            return WaitSession(session, self.native, self.pool.timeout)
        except errors.StatementFailed as failed:
            session.close()
            raise errors.NoSession(str(failed)) from failed.__cause__

    def keep(self, lease: Lease, place: WaitSession | None) -> None:
        """Keep the native lock of a lease for as long as that is held."""
        if place is not None and place.key is not None:
            if is_named(lease.owner):
                # Another process may take and leave it, where nobody could wake the next one.
                self._sessions.drop(place)
            else:
                self._sessions.keep(lease.nonce, place)
        elif place is not None:
            self._put_away(place)

    def give_back(self, lease: Lease) -> None:
        """Free a lock that nobody asks for any more, without making the caller wait for it."""
        self.threads.run(lambda: self.undo(lease))

    def withdraw_soon(self, claim: Claim) -> None:
        """Free a lock if this claim, which nobody waits for any more, has got it after all."""
        self.threads.run(lambda: self.rows.undo(claim))

    def undo(self, lease: Lease) -> None:
        """Free a lock, and its native one; try for as long as the lease could last."""
        with suppress(errors.StatementFailed):
            if self.release(lease):
                return
        self.rows.undo(lease.claim)

    def left(self, waiter: Waiter, place: WaitSession | None) -> None:
        """Note that a wait has ended, in a place that nobody needs any more."""
        with self._mutex:
            self._waiters.discard(waiter)
        if place is not None:
            self._put_away(place)

    def unavailable(self, failed: errors.StatementFailed) -> LockUnavailable:
        """Return what callers are told of a failure."""
        return errors.unavailable(failed, self.pool.database)

    def _put_away(self, place: WaitSession) -> None:
        with self._mutex:
            room = len(self._waiters) + self._sessions.total < self.size
        self._sessions.put_away(place, room=room)


_rooms: weakref.WeakSet[WaitManager] = weakref.WeakSet()


def _after_fork() -> None:
    for room in list(_rooms):
        room.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
