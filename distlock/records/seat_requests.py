"""The way to seats: a look at the records, the queue, a grant."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from distlock.backends.store import (
    Absent,
    Change,
    Condition,
    Delete,
    Exists,
    Put,
    Record,
    RecordStore,
    Session,
    SessionEnded,
    Snapshot,
    Unchanged,
)
from distlock.concurrency.clock import backoff_until, clock
from distlock.exceptions import LockUnavailable, NotPermitted
from distlock.records.process_session import ProcessSession
from distlock.records.seats import (
    LIMIT,
    Availability,
    PassedOver,
    Seats,
    cancelled_key,
    held_key,
    value_of,
    waiting_key,
)
from distlock.types.lease import Claim, Lease

logger = logging.getLogger("distlock")

#: Seconds between two attempts to change a directory that others change at the same time.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
#: Attempts to take free seats before it stands in the queue.
_MOST_ATTEMPTS = 3
_OVERTAKEN = "others changed it before each attempt to take it"
#: A session that was opened for an attempt is used for the next one, if this part of it is left.
_FRESH = 9 / 10


@dataclass(frozen=True, slots=True)
class Look:
    """What one look has come to: a lease, or what to wait for after this revision."""

    lease: Lease | None
    revision: int = 0
    turn: Availability = Availability(False)


@dataclass(eq=False)
class SeatRequests:
    """Asks for seats in the store of one backend.

    Seats with the backend's own lease that are renewed, and all who wait, are bound to the session
    of the process. Other leases have sessions of their own.
    """

    _store: RecordStore
    #: that of the process, for many records
    session: ProcessSession
    _alias: str
    #: the length of the leases that share the session; None for all
    _shared_lease: float | None
    #: whether a request may be carried out after its claim was cancelled
    _late_requests: bool
    #: by the nonce of each lease, the session that its seats are bound to, as it was then
    sessions: dict[str, Session] = field(default_factory=dict)
    #: by the nonce of each claim that may wait, the key of its record
    places: dict[str, str] = field(default_factory=dict)

    def look(
        self,
        claim: Claim,
        wait: bool,
        passed_over: PassedOver,
        deadline: float | None,
        *,
        waits: bool = False,
        whole: bool = True,
    ) -> Look:
        """Take the seats if it is their turn; else, with ``wait``, stand in the queue.

        ``waits``: whether it has a place in the queue already, as far as is known. Without
        ``whole`` it reads no more than it needs for that; who is ``overdue`` is not told then.
        """
        directory, look, left_behind = claim.key(self._alias).directory, Look(None), None
        read = self._store.read if whole else partial(self._read_needed, claim)
        for attempt, pause in enumerate(backoff_until(deadline, FIRST_PAUSE, LONGEST_PAUSE), 1):
            try:
                if attempt == 1 and not waits and (lease := self._take_unread(claim, deadline)):
                    return Look(lease)
                seats, left_behind = left_behind or Seats(read(directory, deadline)), None
                waits = (place := seats.own_place(claim)) is not None
                look = self._taken(seats, claim, passed_over, deadline)
                if look.lease is not None:
                    self.places.pop(claim.nonce, None)  # it was given up with the grant
                    return look
                if place is None and not wait and not look.turn.granted:
                    return look
                # In the queue it comes before those who come later and might be faster each time.
                tries = look.turn.granted and (place or not wait or attempt < _MOST_ATTEMPTS)
                if not tries and (key := self._join_queue(claim, deadline, place, look.revision)):
                    if place is not None or seats.tells_whom_to_await(look.turn, key):
                        return look
                    waits, left_behind = True, None if whole else self._recalled(claim, key)
                    continue
            except LockUnavailable as error:
                # A waiter keeps its place in the queue over an outage that ends in time.
                if isinstance(error, NotPermitted) or not waits or pause <= 0:
                    error.maybe_applied = error.maybe_applied or waits
                    if not error.maybe_applied:
                        self._drop(claim)  # nobody will have to cancel it
                    raise
            time.sleep(pause)
        if wait:
            return look
        raise LockUnavailable(f"{claim.kind} {claim.name!r} on {self._alias!r}: {_OVERTAKEN}")

    def _taken(
        self, seats: Seats, claim: Claim, passed_over: PassedOver, deadline: float | None
    ) -> Look:
        """Take the seats if it is their turn; without a lease others were faster, or come first."""
        if lease := self._granted_before(seats, claim):
            return Look(lease)
        limit = seats.limit_for(claim, self._alias)
        turn = seats.turn(claim, limit, passed_over)
        if turn.granted:
            lease = self._grant(seats, claim, limit, passed_over, deadline)
        elif seats.holders:
            claim.refused_by = seats.holder(seats.holders[0])
        return Look(lease, seats.snapshot.revision, turn)

    def _read_needed(self, claim: Claim, directory: str, deadline: float | None) -> Snapshot:
        """Read which records there are, and those that decide whether it is a claim's turn."""
        return self._store.read_some(
            directory, [LIMIT], lambda found: Seats(found).needed(claim), deadline
        )

    def _take_unread(self, claim: Claim, deadline: float | None) -> Lease | None:
        """Take the seats if they are free by what was seen last, and nothing has changed since."""
        seats = self._recalled(claim, LIMIT)
        if seats is None or held_key(claim.nonce) in seats.keys:
            return None
        if (limit := seats.limit) is None or claim.limit not in (None, limit):
            return None
        is_free = seats.turn(claim, limit).granted
        return self._grant(seats, claim, limit, frozenset(), deadline) if is_free else None

    def _recalled(self, claim: Claim, key: str) -> Seats | None:
        """Return the seats as this process has seen them last, if that tells whose turn it is.

        It may be out of date, but there was a record of this ``key``. With that of the claim itself
        it is what its own change has left behind, or later.
        """
        found = self._store.recall(claim.key(self._alias).directory)
        seats = None if found is None else Seats(found)
        if seats is None or key not in seats.keys:
            return None
        return seats if seats.snapshot.records.keys() >= {LIMIT, *seats.needed(claim)} else None

    def _granted_before(self, seats: Seats, claim: Claim) -> Lease | None:
        """Return the lease whose grant was answered, but the answer was lost.

        LockUnavailable if the claim was cancelled.
        """
        if cancelled_key(claim.nonce) in seats.keys:
            raise LockUnavailable(f"{claim.kind} {claim.name!r}: the claim was cancelled")
        record = seats.snapshot.records.get(held_key(claim.nonce))
        if record is None:
            return None
        session = self.sessions.get(claim.nonce)
        if session is None or session.id != record.session:
            # It was an earlier request that was granted, on another session. How long that goes on
            # is not known here, so the lease is renewed before anyone relies on it.
            session = Session(record.session or "", claim.reserved, clock())
            self.sessions[claim.nonce] = session
        return lease_on(self.session.latest(session), Lease(claim, record.created, math.inf))

    def _grant(
        self,
        seats: Seats,
        claim: Claim,
        limit: int,
        passed_over: PassedOver,
        deadline: float | None,
    ) -> Lease | None:
        """Write down that a claim has its seats; None if others were faster, or did not agree."""
        snapshot = seats.snapshot
        sent_at = clock()
        session = self.session_for(claim, deadline)
        changes: list[Change] = [
            Put(LIMIT, seats.limit_value(limit, claim)),
            Put(held_key(claim.nonce), value_of(claim), session.id),
        ]
        conditions = self.not_cancelled(claim)
        if (place := seats.own_place(claim)) is not None:
            # A waiter that did not come loses its place, or the next one would have to wait for it,
            # too.
            changes.extend(map(Delete, [place.key, *seats.passed_by(claim, passed_over)]))
            conditions.append(Exists(place.key))
            # Each grant writes it: if it is as it was read, no holder has come since. A sweep
            # removes it only where nobody waits.
            conditions.append(snapshot.unchanged(LIMIT, lasting=True))
        else:
            conditions.append(Unchanged(snapshot.revision))  # also: nobody has come to wait
        self.sessions[claim.nonce] = session
        try:
            token = self._store.apply(snapshot.directory, changes, conditions, deadline)
        except SessionEnded:
            token = None
            self.drop_session(claim, session)
        if token is None:
            return None
        if seats.limit not in (None, limit):
            logger.warning(
                "%s %r on %r has %d seats from now on, it had %d",
                claim.kind, claim.name, self._alias, limit, seats.limit,
            )  # fmt: skip
        return lease_on(session, claim.granted(token, sent_at))

    def _join_queue(
        self, claim: Claim, deadline: float | None, place: Record | None, seen: int
    ) -> str | None:
        """Take a place in the queue behind all that were ``seen`` by then, a revision.

        Returns its key, None if that has to be tried again. With ``place``: keep that one, on the
        session that the process has now. A place lasts as long as its session. A claim that has
        lost it comes back to where it was, with its old key: so a request that comes late takes no
        second place.
        """
        session = self.session.get(deadline)
        if place is not None and (place.value is None or place.session == session.id):
            return place.key  # if it was not read, the next whole look tells
        directory = claim.key(self._alias).directory
        new = waiting_key(claim.nonce, seen) if place is None else place.key
        waiting = self.places.setdefault(claim.nonce, new)
        conditions = [*self.not_cancelled(claim), Absent(held_key(claim.nonce))]
        if place is not None:
            conditions.append(Exists(waiting))
        change = Put(waiting, place.value if place else value_of(claim), session.id)
        try:
            if self._store.apply(directory, [change], conditions, deadline) is not None:
                return waiting
        except SessionEnded:
            self.session.drop(session)
        finally:  # a cancel may have come meanwhile: the next one, after this call, finds it
            self.places[claim.nonce] = waiting
        return None

    def drop_session(self, claim: Claim, session: Session) -> None:
        """Note that the session that a claim was to be bound to has ended."""
        self.session.drop(session)
        self.sessions.pop(claim.nonce, None)

    def not_cancelled(self, claim: Claim) -> list[Condition]:
        """Return the condition that a claim is not cancelled, if its requests may come late."""
        return [Absent(cancelled_key(claim.nonce))] if self._late_requests else []

    def shares_session(self, claim: Claim) -> bool:
        """Return whether the seats of a claim are bound to the session of the process."""
        shared = self._shared_lease
        return shared is None or (claim.renews and claim.duration == shared)

    def forget(self, claim: Claim, deadline: float | None) -> None:
        """Forget a claim that has no seats, or has left them. A session of its own is ended."""
        session = self.sessions.pop(claim.nonce, None)
        if session is not None and not self.shares_session(claim):
            with suppress(LockUnavailable):  # it ends by itself
                self._store.end_session(session.id, deadline)

    def _drop(self, claim: Claim) -> None:
        self.sessions.pop(claim.nonce, None)
        self.places.pop(claim.nonce, None)

    def leave_queue(self, claim: Claim, deadline: float | None) -> None:
        """Give the place in the queue up."""
        # A request whose answer was lost may have come late, and have granted the seat.
        directory = claim.key(self._alias).directory
        self.leave(claim, lambda changes: self._store.apply(directory, changes, (), deadline))
        self.forget(claim, deadline)

    def leave(self, claim: Claim, apply: Callable[[list[Change]], object]) -> None:
        """Let ``apply(changes)`` see to it that a claim holds no seats, and waits for none.

        No context manager: an interrupt between its begin and the body would lose the place.
        """
        place = self.places.get(claim.nonce)
        changes: list[Change] = [Delete(held_key(claim.nonce))]
        changes += [] if place is None else [Delete(place)]
        try:
            self.places.pop(claim.nonce, None)
            apply(changes)
            place = None
        finally:
            if place is not None:  # it was not left yet
                self.places[claim.nonce] = place

    def session_for(self, claim: Claim, deadline: float | None) -> Session:
        """Return the session that what a claim is granted is to be bound to, with time left."""
        if self.shares_session(claim):
            return self.session.get(deadline)
        session = self.sessions.get(claim.nonce)  # of an attempt for which others were too fast
        if session is None or session.deadline - clock() < claim.relied_on * _FRESH:
            session = self._store.open_session(claim.reserved, deadline)
        return session


def lease_on(session: Session, lease: Lease) -> Lease:
    """Return a lease as far as its session bears it, which may be shorter than was asked for."""
    lease = lease.until(min(lease.deadline, session.deadline))
    return lease if lease.duration <= session.seconds else lease.lasting(session.seconds)
