"""Semaphores and read/write locks of a backend, as records in its store.

It is a lock backend itself, so all that is made for locks works for these, too: waiting, renewal,
news of a loss, reports. How the records stand for seats is said in seats.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from distlock.backends.base import BaseBackend, Capabilities, PendingLease
from distlock.backends.cleanup import Cleanup
from distlock.backends.seats import (
    LIMIT,
    Seats,
    cancelled_key,
    directory_of,
    held_key,
    kind_and_name,
    value_of,
    waiting_key,
)
from distlock.backends.store import (
    Absent,
    Change,
    Condition,
    Delete,
    Exists,
    Put,
    Session,
    SessionEnded,
    Unchanged,
)
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff_until
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Wait
from distlock.exceptions import LockUnavailable, NotSupported
from distlock.types.lease import Claim, Kind, Lease, LockInfo, State, SweepResult

logger = logging.getLogger("distlock")

#: Seconds between two looks of one who waits, though nothing has woken it: hints may be lost.
_LONGEST_WAIT = 5.0
#: Seconds after which the first in line is passed over, if it could have its seats and has not
#: taken them: its process may have been stopped, or be dying.
_PATIENCE = 1.0
#: Seconds that leaving the queue may take, beyond the caller's time limit.
_LAST_ANSWER = 1.0
#: A session is renewed before seats are bound to it, if less than this part of it is left.
_FRESH = 2 / 3
#: Seconds for which a cancelled claim is remembered, so that a request that comes late finds that.
_REMEMBERED = 300.0
#: Seconds between two attempts to change a directory that others change at the same time.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look of a waiter has come to."""

    lease: Lease | None
    revision: int
    behind: str | None = None
    overdue: str | None = None


class SharedBackend(BaseBackend):
    """The semaphores and read/write locks beside the locks of one backend.

    Names are what directory_of() returns: a kind and a name.

    Seats with the backend's own lease that are renewed, and all who wait, are bound to one session
    of the process: it is renewed with the leases, and by those who wait. Other leases have sessions
    of their own.
    """

    def __init__(self, backend: BaseBackend) -> None:
        # Not that of BaseBackend, which reads settings: those are the backend's.
        self.alias = backend.alias
        self.settings = backend.settings
        self.listener = None
        self.calls, self.release_calls = backend.calls, backend.release_calls
        self.cleanup = Cleanup(self)
        self._backend = backend
        self._records = backend.store
        self.capabilities = Capabilities(
            lease_lengths=backend.capabilities.lease_lengths,
            outlives_process=backend.capabilities.outlives_process,
            waiters=True,
            fair=True,
        )
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Have no session: it is the parent's."""
        self.listener = None
        self._session: Session | None = None
        #: by the nonce of each lease, the session that its seats are bound to, as it was then
        self._sessions: dict[str, Session] = {}

    # Taking

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        """See BaseBackend.try_acquire()."""
        return self._look(claim, False, frozenset(), deadline).lease

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        """See BaseBackend.enqueue(). Those who wait are served first come, first served.

        Each waits for a change of the record of the one before it, and only the first in line for
        any change. So one who leaves wakes one, however many wait.
        """
        directory = directory_of(claim.kind, claim.name)
        passed_over: frozenset[str] = frozenset()
        look: _Look = yield self._asking(partial(self._look, claim, True, passed_over), deadline)
        overdue, since = look.overdue, clock()
        while look.lease is None:
            if deadline is not None and clock() >= deadline:
                yield self._asking(partial(self._leave_queue, claim), clock() + _LAST_ANSWER)
                return None
            pause = _LONGEST_WAIT if overdue is None else _PATIENCE
            until = clock() + min(pause, self.settings.interval(self.settings.lease))
            hint = self._records.watch(directory, look.revision, look.behind)
            try:
                yield Wait(hint, until if deadline is None else min(until, deadline))
            finally:
                hint.abandon()
            if overdue is not None and clock() - since >= _PATIENCE:
                passed_over |= {overdue}
            look = yield self._asking(partial(self._look, claim, True, passed_over), deadline)
            if look.overdue != overdue:
                overdue, since = look.overdue, clock()
        return look.lease

    def _asking(self, question: Callable[[float | None], object], deadline: float | None) -> Call:
        # Who asked, and is interrupted, has the claim cancelled.
        return Call(question, self.calls.due(deadline), executor=self.calls)

    def _look(
        self, claim: Claim, wait: bool, passed_over: frozenset[str], deadline: float | None
    ) -> _Look:
        """Take the seats if it is their turn; else, with ``wait``, stand in the queue."""
        directory, waits = directory_of(claim.kind, claim.name), False
        look = _Look(None, 0)
        for pause in backoff_until(deadline, _FIRST_PAUSE, _LONGEST_PAUSE):
            try:
                seats = Seats(self._records.read(directory, deadline))
                records = seats.snapshot.records
                waits = waiting_key(claim.nonce) in records
                if cancelled_key(claim.nonce) in records:
                    raise LockUnavailable(f"{claim.kind} {claim.name!r}: the claim was cancelled")
                if lease := self._granted_before(seats, claim):
                    return _Look(lease, 0)
                limit = seats.limit_for(claim)
                turn = seats.turn(claim, limit, passed_over)
                look = _Look(None, seats.snapshot.revision, turn.behind, turn.overdue)
                if turn.granted:
                    if lease := self._grant(seats, claim, limit, deadline):
                        return _Look(lease, 0)
                elif waits:
                    self._shared_session(deadline)  # the place in the queue lasts as long as this
                    return look
                elif not wait:
                    return look
                else:
                    self._join_queue(claim, deadline)
                    continue
            except LockUnavailable as error:
                # Who has a place in the queue keeps it over an outage that ends in time.
                if not waits or pause <= 0:
                    error.maybe_applied = error.maybe_applied or waits
                    raise
            time.sleep(pause)
        if wait:
            return look
        raise LockUnavailable(
            f"{claim.kind} {claim.name!r} on {self.alias!r}: others changed it each time that it"
            " was to be taken"
        )

    def _granted_before(self, seats: Seats, claim: Claim) -> Lease | None:
        """Return the lease whose grant was answered, but the answer was lost."""
        record = seats.snapshot.records.get(held_key(claim.nonce))
        session = self._sessions.get(claim.nonce)
        if record is None or session is None:
            return None
        return Lease(claim, record.created, self._latest(session).deadline)

    def _grant(
        self, seats: Seats, claim: Claim, limit: int, deadline: float | None
    ) -> Lease | None:
        """Write down that a claim has its seats; None if others were faster, or did not agree."""
        snapshot = seats.snapshot
        sent_at = clock()
        session = self._session_for(claim, deadline)
        changes: list[Change] = [
            Put(LIMIT, {"limit": limit}),
            Put(held_key(claim.nonce), value_of(claim), session.id),
        ]
        conditions: list[Condition] = [Absent(cancelled_key(claim.nonce))]
        if waiting_key(claim.nonce) in snapshot.records:
            changes.append(Delete(waiting_key(claim.nonce)))
            conditions.append(Exists(waiting_key(claim.nonce)))
            record = seats.limit_record
            conditions.append(Exists(LIMIT, record.revision) if record else Absent(LIMIT))
        else:
            conditions.append(Unchanged(snapshot.revision))  # also: nobody has come to wait
        self._sessions[claim.nonce] = session
        try:
            token = self._records.apply(snapshot.directory, changes, conditions, deadline)
        except SessionEnded:
            token = self._session = None
        if token is None:
            self._sessions.pop(claim.nonce, None)
            return None
        if seats.limit not in (None, limit):
            logger.warning(
                "%s %r on %r has %d seats from now on, it had %d",
                claim.kind, claim.name, self.alias, limit, seats.limit,
            )  # fmt: skip
        granted = claim.granted(token, sent_at)
        return granted.until(min(granted.deadline, session.deadline))

    def _join_queue(self, claim: Claim, deadline: float | None) -> None:
        session = self._shared_session(deadline)
        joined = None
        with suppress(SessionEnded):
            joined = self._records.apply(
                directory_of(claim.kind, claim.name),
                [Put(waiting_key(claim.nonce), value_of(claim), session.id)],
                [Absent(cancelled_key(claim.nonce)), Absent(held_key(claim.nonce))],
                deadline,
            )
        if joined is None:
            self._session = None

    def _leave_queue(self, claim: Claim, deadline: float | None) -> None:
        directory = directory_of(claim.kind, claim.name)
        try:
            self._records.apply(directory, [Delete(waiting_key(claim.nonce))], (), deadline)
        except LockUnavailable:
            self.cleanup.add(claim)

    # Sessions

    def _session_for(self, claim: Claim, deadline: float | None) -> Session:
        shared = claim.renews and claim.duration == self.settings.lease
        if shared or not self.capabilities.lease_lengths:
            return self._shared_session(deadline)
        return self._records.open_session(claim.reserved, deadline)

    def _shared_session(self, deadline: float | None) -> Session:
        """Return the session of this process, with most of its time left."""
        session = self._session
        if session is not None:
            now = clock()
            if session.deadline - now > session.seconds * _FRESH:
                return session
            running = now < session.deadline
            if running and session.id in self._records.renew([session.id], (), deadline).alive:
                return self._renewed(session, now)
        # Two threads may do this at once: then each has a session, and the last one stays.
        session = self._records.open_session(self.settings.lease, deadline)
        self._session = session
        return session

    def _renewed(self, session: Session, sent_at: float) -> Session:
        renewed = session.renewed(sent_at)
        if (current := self._session) is not None and current.id == session.id:
            self._session = renewed
        return renewed

    def _latest(self, session: Session) -> Session:
        """Return a session as it was renewed last."""
        current = self._session
        return current if current is not None and current.id == session.id else session

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        """See BaseBackend.renew(). The session of many leases is renewed once for all of them."""
        asked = {}
        for lease in leases:
            if session := self._sessions.get(lease.nonce):
                record = directory_of(lease.claim.kind, lease.name), held_key(lease.nonce)
                asked[lease.nonce] = session.id, record
        sent_at = clock()
        renewal = self._records.renew(
            {session for session, _ in asked.values()},
            [record for _, record in asked.values()],
            deadline,
        )
        if (shared := self._session) is not None and shared.id in renewal.alive:
            self._renewed(shared, sent_at)
        answers = {}
        for nonce, (name, record) in asked.items():
            if name in renewal.ended or record in renewal.missing:
                answers[nonce] = False
            elif name in renewal.alive and record in renewal.present:
                answers[nonce] = True
        return answers

    # Leaving

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.release()."""
        directory, key = directory_of(lease.claim.kind, lease.name), held_key(lease.nonce)
        freed = self._records.apply(directory, [Delete(key)], [Exists(key)], deadline)
        self._sessions.pop(lease.nonce, None)
        return freed is not None

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """Refuse: nobody can ask for it, see Semaphore and RWLock."""
        raise NotSupported(f"{lease.claim.kind} {lease.name!r}: at_least is for locks only")

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        """See BaseBackend.cancel(). A request that comes later finds the claim cancelled."""
        changes: list[Change] = [
            Delete(held_key(claim.nonce)),
            Delete(waiting_key(claim.nonce)),
        ]
        if self._backend.capabilities.late_requests:
            session = self._records.open_session(_REMEMBERED, deadline)
            changes.append(Put(cancelled_key(claim.nonce), {}, session.id))
        self._records.apply(directory_of(claim.kind, claim.name), changes, (), deadline)
        self._sessions.pop(claim.nonce, None)

    def discard_local(self, lease: Lease) -> None:
        """See BaseBackend.discard_local()."""
        self._sessions.pop(lease.nonce, None)

    def become_reader(self, lease: Lease, deadline: float | None = None) -> bool:
        """Turn the seats of a writer into that of a reader; False if it no longer had them.

        Doing it twice does no harm.
        """
        claim, key = replace(lease.claim, seats=1), held_key(lease.nonce)
        session = self._sessions.get(lease.nonce)
        if session is None:
            return False
        changes = [Put(key, value_of(claim), session.id)]
        directory = directory_of(claim.kind, claim.name)
        try:
            return self._records.apply(directory, changes, [Exists(key)], deadline) is not None
        except SessionEnded:
            return False

    # Looking

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.verify()."""
        directory = directory_of(lease.claim.kind, lease.name)
        return self._records.get(directory, held_key(lease.nonce), deadline) is not None

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        """See BaseBackend.inspect()."""
        return Seats(self._records.read(name, deadline)).info(self.alias)

    def list(self, prefix: str = "", deadline: float | None = None) -> Iterator[LockInfo]:
        """Return, by kind and name, what is held or waited for under names that begin so."""
        for kind in (Kind.RWLOCK, Kind.SEMAPHORE):
            for directory in self._records.directories(directory_of(kind, prefix), deadline):
                info = self.inspect(directory, deadline)
                if info.state is not State.FREE or info.waiters:
                    yield info

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        """See BaseBackend.force_release(). The seats that have this token become free."""
        seats = Seats(self._records.read(name, deadline))
        record = next((record for record in seats.holders if record.created == token), None)
        if record is None:
            return None
        broken = self._records.apply(name, [Delete(record.key)], [Exists(record.key)], deadline)
        if broken is None:
            return None
        lease = seats.lease_of(record)
        if self.listener:
            self.listener.lease_lost(lease, "it was broken")
        return lease

    def resize(self, name: str, limit: int, deadline: float | None = None) -> int | None:
        """Change for all how many seats there are; return how many there were, None if unknown.

        Nobody is evicted: if more seats are taken than there are now, new ones are granted when
        enough of them have been left.
        """
        for pause in backoff_until(deadline, _FIRST_PAUSE, _LONGEST_PAUSE):
            seats = Seats(self._records.read(name, deadline))
            record, before = seats.limit_record, seats.limit
            same = Exists(LIMIT, record.revision) if record else Absent(LIMIT)
            if self._records.apply(name, [Put(LIMIT, {"limit": limit})], [same], deadline):
                if before != limit:
                    kind, plain = kind_and_name(name)
                    logger.warning(
                        "%s %r on %r was resized: it had %s seats, and has %d now",
                        kind, plain, self.alias, before or "no", limit,
                    )  # fmt: skip
                return before
            time.sleep(pause)
        raise LockUnavailable(f"{name!r} on {self.alias!r}: others changed it all the time")

    def sweep(self) -> SweepResult:
        """Do nothing: the sweep of the backend clears the records of its store."""
        return SweepResult()


def shared_locks(backend: BaseBackend) -> SharedBackend:
    """Return the semaphores and read/write locks of a backend.

    NotSupported if it keeps no records.
    """
    if backend.shared is None:
        backend.shared = SharedBackend(backend)
    return cast(SharedBackend, backend.shared)
