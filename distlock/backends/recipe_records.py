"""What recipes do with the records of a directory: change them by a plan, and be a member.

A member of a group, or a candidate of an election, has a claim and a lease, as one who has a seat:
its record is renewed together with all others of the process, its loss is told in time, and what
an answer that was lost has left behind is taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from distlock.backends.seat_requests import FIRST_PAUSE, LONGEST_PAUSE, SeatRequests, lease_on
from distlock.backends.seats import (
    cancelled_key,
    directory_of,
    held_key,
    put_when,
    since_when,
    time_of,
    value_of,
)
from distlock.backends.store import (
    Absent,
    Change,
    Condition,
    Delete,
    Exists,
    Put,
    RecordStore,
    SessionEnded,
    Snapshot,
    Unchanged,
)
from distlock.concurrency.backoff import backoff_until
from distlock.concurrency.clock import clock
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Kind, Lease

#: The record of how far a piece of work is; and for how long that of one that has ended is kept.
REPORT, REPORT_KEPT = "report", timedelta(days=1)
#: For how long it is known who was in a group that nobody is in.
DEPARTED_KEPT = timedelta(days=1)
#: The record that says how things stand among those who are at a barrier.
GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with the records of a directory, as they were found.

    - ``changes``, ``conditions``: see RecordStore.apply(); without changes nothing is asked.
    - ``result``: what the caller is told when it is done.
    - ``data``: for join(), what the new member's record says; None refuses the member.
    - ``members``: for join_all(), the same of each new member.
    - ``beside``: for join(), returns further changes that name the claim of the new member.
    - ``bound``: for join(), values by key of other records that are to vanish with its session.
    """

    changes: Sequence[Change] = ()
    conditions: Collection[Condition] = ()
    result: Any = None
    data: Mapping[str, Any] | None = None
    beside: Callable[[Claim], Sequence[Change]] | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)
    members: Sequence[Mapping[str, Any]] = ()


#: Makes a plan of what was found. It is called again if others were faster, and may raise.
Decide: TypeAlias = Callable[[Snapshot], Plan]


class Done(NamedTuple):
    """What came of a plan: the revision of the change, None if there was none; and its result."""

    revision: int | None
    result: Any


class Joined(NamedTuple):
    """What came of joining: the lease of the member, None if it was refused; and the result."""

    lease: Lease | None
    result: Any


class RecipeRecords:
    """The records of all recipes of one backend. See RecordStore for deadlines and errors."""

    def __init__(self, store: RecordStore, requests: SeatRequests, alias: str) -> None:
        self._store = store
        self._requests = requests
        self._alias = alias

    def change(
        self,
        directory: str,
        decide: Decide,
        deadline: float | None = None,
        *,
        keys: Collection[str] | None = None,
    ) -> Done:
        """Read a directory, and do what ``decide`` makes of it, until nobody was faster.

        With ``keys`` only these records are read, and the plan must depend on no others.
        LockUnavailable if others were faster each time, until the deadline.
        """
        for pause in backoff_until(deadline, FIRST_PAUSE, LONGEST_PAUSE):
            if keys is None:
                plan = decide(self._store.read(directory, deadline))
            else:
                plan = decide(self._store.look(directory, keys, deadline))
            if not plan.changes:
                return Done(None, plan.result)
            revision = self._store.apply(directory, plan.changes, plan.conditions, deadline)
            if revision is not None:
                return Done(revision, plan.result)
            time.sleep(pause)
        raise self._too_busy(directory)

    def join(self, claim: Claim, decide: Decide, deadline: float | None = None) -> Joined:
        """Put the record of a new member, with what else ``decide`` plans, until nobody was faster.

        Its key is held_key() of the claim's nonce. It has what value_of() says of the claim, and
        under "data" the plan's data. It is there until it is left or lost, see SharedBackend.renew.
        After an error the claim has to be cancelled, unless nothing can have been applied.
        """

        def decide_all(found: Snapshot) -> Plan:
            plan = decide(found)
            if plan.data is None:
                return plan
            beside = () if plan.beside is None else plan.beside(claim)
            return replace(plan, members=[plan.data], changes=[*beside, *plan.changes])

        leases, result = self.join_all([claim], decide_all, deadline)
        return Joined(leases[0] if leases else None, result)

    def join_all(
        self,
        claims: Sequence[Claim],
        decide: Decide,
        deadline: float | None = None,
        *,
        read: Callable[[float | None], Snapshot] | None = None,
        once: bool = False,
    ) -> tuple[list[Lease], Any]:
        """Put the records of several members in one change; see join().

        All claims are for one directory. The plan's ``members`` are the data of the first ones of
        them; the others get nothing. ``read``: in place of reading the directory.
        ``once``: if others were faster nobody joins, and it is not tried again.
        """
        (directory,) = {directory_of(claim.kind, claim.name) for claim in claims}
        read = read or partial(self._store.read, directory)
        for pause in backoff_until(deadline, FIRST_PAUSE, LONGEST_PAUSE):
            plan = decide(read(deadline))
            members = [*zip(claims, plan.members, strict=False)]
            if not members:
                return [], plan.result
            sent_at = clock()
            puts, absent = list[Change](), list[Condition]()
            sessions = []  # a claim that is cancelled meanwhile is bound to none any more
            for claim, data in members:
                session = self._requests.session_for(claim, deadline)
                sessions.append(session)
                self._requests.bound[claim.nonce] = session
                value = {**value_of(claim), "data": dict(data)}
                puts.append(Put(held_key(claim.nonce), value, session.id))
                puts += [Put(key, value, session.id) for key, value in plan.bound.items()]
                absent.append(Absent(cancelled_key(claim.nonce)))
            try:
                token = self._store.apply(
                    directory, [*puts, *plan.changes], [*absent, *plan.conditions], deadline
                )
            except SessionEnded:
                token = None
                for (claim, _), session in zip(members, sessions, strict=True):
                    self._requests.drop_session(claim, session)
            except LockUnavailable as error:
                if not error.maybe_applied:
                    self._forget(claims)  # nobody will have to cancel them
                raise
            if token is not None:
                return [
                    lease_on(session, claim.granted(token, sent_at))
                    for (claim, _), session in zip(members, sessions, strict=True)
                ], plan.result
            self._forget(claims)
            if once:
                return [], plan.result
            time.sleep(pause)
        raise self._too_busy(directory)

    def update(
        self,
        lease: Lease,
        data: Mapping[str, Any],
        changes: Sequence[Change] = (),
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
        *,
        since: float,
        revision: int | None = None,
    ) -> int | None:
        """Change what a member's record says; the revision, None if it is gone or one fails.

        ``revision`` is that of the record, None if it is not known: then it is read first. So an
        earlier update, whose answer was lost and which comes late, changes nothing any more.

        ``since`` is when it joined, in seconds since 1970 by the clock of this machine: for people.
        """
        session = self._requests.bound.get(lease.nonce)
        if session is None:
            return None
        key = held_key(lease.nonce)
        value = {**value_of(lease.claim), "since": int(since * 1e6), "data": dict(data)}
        put = Put(key, value, session.id)
        directory, tried = directory_of(lease.claim.kind, lease.name), None
        while tried is None or tried != revision:
            if revision is not None:
                own = Exists(key, revision)
                try:
                    new = self._store.apply(
                        directory, [put, *changes], [own, *conditions], deadline
                    )
                except SessionEnded:
                    return None
                if new is not None:
                    return new
            tried = revision
            record = self._store.get(directory, key, deadline)
            if record is None:
                return None
            revision = record.revision
        return None

    def leave(
        self,
        lease: Lease,
        changes: Sequence[Change] | Decide = (),
        deadline: float | None = None,
    ) -> int | None:
        """Remove a member's record, and change others with it; None if it was gone already."""
        directory, key = directory_of(lease.claim.kind, lease.name), held_key(lease.nonce)
        revision = None
        for pause in backoff_until(deadline, FIRST_PAUSE, LONGEST_PAUSE):
            plan = Plan(() if callable(changes) else changes)
            if callable(changes):
                snapshot = self._store.read(directory, deadline)
                if key not in snapshot.records:
                    break
                plan = changes(snapshot)
            revision = self._store.apply(
                directory, [Delete(key), *plan.changes], [Exists(key), *plan.conditions], deadline
            )
            if revision is not None or not plan.conditions:
                break
            time.sleep(pause)
        else:
            raise self._too_busy(directory)
        self._requests.forget(lease.claim, deadline)
        return revision

    def sweep(self) -> None:
        """Forget barriers where nobody is, and what nobody has been part of for long."""
        for kind in (Kind.BARRIER, Kind.DOUBLE_BARRIER):
            for directory in self._store.directories(directory_of(kind, "")):
                snapshot = self._store.read(directory)
                if snapshot.records.keys() == {GENERATION}:
                    unused = Unchanged(snapshot.revision)
                    self._store.apply(directory, [Delete(GENERATION)], [unused])
        for directory in self._store.directories(directory_of(Kind.PROGRESS, "")):
            snapshot = self._store.read(directory)
            report = snapshot.records.get(REPORT)
            if report is None or len(snapshot.records) > 1:
                continue  # its worker lives
            if time_of(snapshot) - put_when(report, snapshot) > REPORT_KEPT:
                same = Exists(REPORT, report.revision)
                self._store.apply(directory, [Delete(REPORT)], [same])

        for directory in self._store.directories(directory_of(Kind.GROUP, "")):
            snapshot = self._store.read(directory)
            records, now = snapshot.records.values(), time_of(snapshot)
            if any(record.session for record in records):
                continue  # somebody is there
            if all(now - since_when(record, snapshot) > DEPARTED_KEPT for record in records):
                unused = Unchanged(snapshot.revision)
                self._store.apply(directory, [*map(Delete, snapshot.records)], [unused])

    def leave_all(
        self, leases: Sequence[Lease], changes: Sequence[Change], deadline: float | None = None
    ) -> int | None:
        """Remove the records of several members of one directory; None if one was gone already."""
        (directory,) = {directory_of(lease.claim.kind, lease.name) for lease in leases}
        keys = [held_key(lease.nonce) for lease in leases]
        conditions = [Exists(key) for key in keys]
        revision = self._store.apply(
            directory, [*map(Delete, keys), *changes], conditions, deadline
        )
        for lease in leases if revision is not None else ():
            self._requests.forget(lease.claim, deadline)
        return revision

    def forget(self, lease: Lease) -> None:
        """Note that the record of a member was removed in another way."""
        self._requests.forget(lease.claim, None)

    def _forget(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._requests.bound.pop(claim.nonce, None)

    def _too_busy(self, directory: str) -> LockUnavailable:
        return LockUnavailable(
            f"{directory!r} on {self._alias!r}: others changed it each time that it was to be"
            " changed"
        )
