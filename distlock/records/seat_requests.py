"""The way to seats: the session of the process, a look at the records, the queue, a grant."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from distlock.backends.store import (
    Absent,
    Address,
    Change,
    Condition,
    Delete,
    Exists,
    Put,
    Record,
    RecordStore,
    Renewal,
    Session,
    SessionEnded,
    Snapshot,
    Unchanged,
)
from distlock.concurrency.clock import backoff_until, clock
from distlock.exceptions import LockUnavailable, NotPermitted
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
#: The session of the process is renewed before records are bound to it, if less than this part of
#: it is left. One that was opened for an attempt is used for the next one, if so much is left.
_FRESH_SHARED, _FRESH_OWN = 2 / 3, 9 / 10


class ProcessSession:
    """One session for many records: it is renewed once for all of them.

    It is opened when it is needed, and renewed by what uses it. Unused it ends by itself.
    """

    def __init__(self, store: RecordStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        #: protects the choice of the session; nothing is asked while it is taken
        self._mutex = threading.Lock()
        self._session: Session | None = None

    def get(self, deadline: float | None) -> Session:
        """Return the session, with most of its time left. See RecordStore for the errors."""
        session = self._session
        if session is not None:
            now = clock()
            if session.deadline - now > session.seconds * _FRESH_SHARED:
                return session
            if now < session.deadline:
                if session.id in self._store.renew([session.id], (), deadline).alive:
                    return self._renewed(session, now)
                self.drop(session)
        new = self._store.open_session(self._seconds, deadline)
        with self._mutex:
            # Another thread may have been faster. Records on two sessions would be renewed by no
            # one rule; the one that is not used ends by itself.
            if (current := self._session) is None or clock() >= current.deadline:
                current = self._session = new
        return current

    def latest(self, session: Session) -> Session:
        """Return a session as it was renewed last, if it is this one."""
        current = self._session
        return current if current is not None and current.id == session.id else session

    @property
    def lasts_until(self) -> float:
        """Until when, by the local clock, the records of the session may be there at most."""
        session = self._session
        return 0.0 if session is None else session.deadline + session.seconds

    def drop(self, session: Session) -> None:
        """Use another one from now on: this one has ended."""
        with self._mutex:
            if self._session is not None and self._session.id == session.id:
                self._session = None

    def renew(
        self, sessions: Collection[str], records: Collection[Address], deadline: float | None
    ) -> Renewal:
        """See RecordStore.renew(); notes it if this session is among those renewed."""
        sent_at = clock()
        renewal = self._store.renew(sessions, records, deadline)
        if (session := self._session) is not None:
            if session.id in renewal.alive:
                self._renewed(session, sent_at)
            elif session.id in renewal.ended:
                self.drop(session)
        return renewal

    def _renewed(self, session: Session, sent_at: float) -> Session:
        renewed = session.renewed(sent_at)
        with self._mutex:
            current = self._session
            # An answer may come after that to a later request.
            if current is not None and current.id == renewed.id:
                renewed = max(current, renewed, key=lambda one: one.deadline)
                self._session = renewed
        return renewed


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
        """Read which records there are, and those that decide whether it is a claim's turn.

        A grant to one who waits relies on LIMIT alone, because each grant writes that again. So if
        LIMIT is as it was read, no holder has come since.
        """

        def needed(found: Snapshot) -> list[str]:
            return Seats(found).needed(claim)

        return self._store.read_some(directory, [LIMIT], needed, deadline)

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
            # A sweep removes it only where nobody waits.
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
            joined = self._store.apply(directory, [change], conditions, deadline) is not None
        except SessionEnded:
            self.session.drop(session)
            return None
        return waiting if joined else None

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
        session = self._drop(claim)
        if session is not None and not self.shares_session(claim):
            with suppress(LockUnavailable):  # it ends by itself
                self._store.end_session(session.id, deadline)

    def _drop(self, claim: Claim) -> Session | None:
        self.places.pop(claim.nonce, None)
        return self.sessions.pop(claim.nonce, None)

    def leave_queue(self, claim: Claim, deadline: float | None) -> None:
        """Give the place in the queue up."""
        # A request whose answer was lost may have come late, and have granted the seat.
        self._store.apply(claim.key(self._alias).directory, self.leaving(claim), (), deadline)
        self.forget(claim, deadline)

    def leaving(self, claim: Claim) -> list[Change]:
        """Return the changes with which a claim holds no seats, and waits for none."""
        place = self.places.get(claim.nonce)
        return [Delete(key) for key in (held_key(claim.nonce), place) if key is not None]

    def session_for(self, claim: Claim, deadline: float | None) -> Session:
        """Return the session that what a claim is granted is to be bound to, with time left."""
        if self.shares_session(claim):
            return self.session.get(deadline)
        session = self.sessions.get(claim.nonce)  # of an attempt for which others were too fast
        if session is None or session.deadline - clock() < claim.relied_on * _FRESH_OWN:
            session = self._store.open_session(claim.reserved, deadline)
        return session


def lease_on(session: Session, lease: Lease) -> Lease:
    """Return a lease as far as its session bears it, which may be shorter than was asked for."""
    lease = lease.until(min(lease.deadline, session.deadline))
    return lease if lease.duration <= session.seconds else lease.lasting(session.seconds)
