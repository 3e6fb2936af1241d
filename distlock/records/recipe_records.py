"""Changes by a plan, and membership, with the records of a recipe's directory.

A member of a group, or a candidate of an election, has a claim and a lease, as one who has a seat:
its record is renewed together with all others of the process, its loss is reported in time, and the
effects of a lost answer are taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from distlock.backends.store import (
    MOST_KEYS,
    Absent,
    Change,
    Condition,
    Delete,
    Exists,
    Overtaken,
    Put,
    Record,
    RecordStore,
    SessionEnded,
    Snapshot,
    Unchanged,
)
from distlock.concurrency.clock import backoff_until, clock
from distlock.exceptions import LockUnavailable
from distlock.records.seat_requests import FIRST_PAUSE, LONGEST_PAUSE, SeatRequests, lease_on
from distlock.records.seats import (
    held_key,
    put_when,
    time_of,
    value_of,
)
from distlock.registry import KEPT
from distlock.types.lease import Claim, Kind, Lease, LockKey

#: The record of how far a piece of work is.
REPORT = "report"
#: The record that says how things stand among those who are at a barrier.
GENERATION = "generation"
#: The prefix of the keys of records that name the last change of a process, see
#: Recipe._change_once(). They keep nothing from being forgotten.
ANSWER = "a/"


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes to make in the records of a directory, as they were found.

    - ``changes``, ``conditions``: see RecordStore.apply(); without changes nothing is asked.
    - ``result``: the value for the caller when it is done.
    - ``members``: the value of the record of each new member; without any they are refused.
    - ``member_changes``: returns further changes that name the claim of a member that joins or
      leaves.
    - ``member_records``: values by key of other records that are to vanish with its session;
      without new members, with that of the process.
    """

    changes: Sequence[Change] = ()
    conditions: Collection[Condition] = ()
    result: Any = None
    member_changes: Callable[[Claim], Sequence[Change]] = lambda claim: ()
    member_records: Mapping[str, Any] = field(default_factory=dict)
    members: Sequence[Mapping[str, Any]] = ()

    def records(self, claim: Claim, data: Mapping[str, Any], session: str) -> list[Change]:
        """Return the changes that make a claim a member."""
        value = {**value_of(claim), "data": dict(data)}
        bound = [Put(key, said, session) for key, said in self.member_records.items()]
        return [Put(held_key(claim.nonce), value, session), *bound, *self.member_changes(claim)]


#: Changes nothing but what is asked for.
NOTHING = Plan()

#: By kind, what makes the plan that goes with the removal of a member whose claim is cancelled; it
#: is called with the store, the directory, the member's record and a deadline.
CANCELLED: dict[Kind, Callable[[RecordStore, str, Record, float | None], Plan]] = {}

#: Makes a plan of what was found. It is called again if others were faster, and may raise.
Decide: TypeAlias = Callable[[Snapshot], Plan]


class Done(NamedTuple):
    """What came of a plan.

    - ``revision``: that of the change; None if there was none.
    - ``result``: that of the plan.
    - ``leases``: those of the new members; none if they were refused.
    """

    revision: int | None = None
    result: Any = None
    leases: Sequence[Lease] = ()

    @property
    def lease(self) -> Lease | None:
        """The lease of the new member; None if it was refused."""
        return self.leases[0] if self.leases else None


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
        read: Callable[[float | None], Snapshot] | None = None,
        claims: Sequence[Claim] = (),
        once: bool = False,
    ) -> Done:
        """Read a directory, and do what ``decide`` makes of it, until nobody was faster.

        - ``read``: in place of reading the directory; the plan must depend on nothing else.
        - ``claims``: of those who are to be members. The first ones get what the plan has for new
          members, the others nothing; without any, nothing is changed. The key of a member is
          held_key() of its claim's nonce; its record has what value_of() says of the claim, and
          under "data" the plan's data. It is there until it is left or lost, see
          SharedBackend.renew. After an error the claims have to be cancelled, unless nothing can
          have been applied.
        - ``once``: if others were faster nothing is done, and it is not tried again.

        Overtaken if others were faster each time, until the deadline.
        """
        if read is None:
            read = partial(self._store.read, directory)
        for pause in backoff_until(deadline, FIRST_PAUSE, LONGEST_PAUSE):
            try:
                plan = decide(read(deadline))
            except Exception as error:
                if isinstance(error, LockUnavailable):
                    error.maybe_applied = False
                self._forget(claims)
                raise
            is_empty = not (plan.members if claims else plan.changes or plan.member_records)
            done = None if is_empty else self._carry_out(plan, directory, claims, deadline)
            if done is not None or is_empty or once:
                done = done or Done(None, plan.result)
                # An earlier attempt may have had something for those that get nothing.
                self._give_back(claims[len(done.leases) :], deadline)
                return done
            time.sleep(pause)
        self._give_back(claims, deadline)
        raise Overtaken(
            f"{directory!r} on {self._alias!r}: others changed it before each attempt to change it"
        )

    def _carry_out(
        self, plan: Plan, directory: str, claims: Sequence[Claim], deadline: float | None
    ) -> Done | None:
        """Make the changes of a plan; None if others were faster."""
        changes, conditions, sent_at = [*plan.changes], [*plan.conditions], clock()
        sessions, own = [], None
        try:
            for claim, data in zip(claims, plan.members, strict=False):
                session = self._requests.session_for(claim, deadline)
                sessions.append((claim, session))
                self._requests.sessions[claim.nonce] = session
                changes += plan.records(claim, data, session.id)
                # A claim that is cancelled meanwhile is bound to no session any more.
                conditions += self._requests.not_cancelled(claim)
            if plan.member_records and not claims:
                own = self._requests.session.get(deadline)
                changes += [Put(key, said, own.id) for key, said in plan.member_records.items()]
            revision = self._store.apply(directory, changes, conditions, deadline)
        except SessionEnded:
            if own is not None:
                self._requests.session.drop(own)
            elif not sessions:
                raise
            for claim, session in sessions:
                self._requests.drop_session(claim, session)
            return None
        except LockUnavailable as error:
            if not error.maybe_applied:
                self._forget(claims)  # nobody will have to cancel them
            raise
        if revision is None:
            return None
        leases = [
            lease_on(session, claim.granted(revision, sent_at)) for claim, session in sessions
        ]
        return Done(revision, plan.result, leases)

    def leave(
        self,
        leases: Sequence[Lease],
        plan: Plan | Decide,
        deadline: float | None = None,
        *,
        read: Callable[[float | None], Snapshot] | None = None,
        unread: Plan | None = None,
    ) -> int | None:
        """Remove the records of members of one directory, and do what is planned with it.

        None, and nothing is changed, if one was gone already. ``read``: see change(). ``unread``:
        tried before, without reading anything; if its conditions hold the ``plan`` is not needed.
        """
        (directory,) = {lease.claim.key(self._alias).directory for lease in leases}
        keys = [held_key(lease.nonce) for lease in leases]

        def removing(more: Plan) -> Plan:
            changes = [*map(Delete, keys), *more.changes]
            for lease in leases:
                changes += more.member_changes(lease.claim)
            return Plan(changes, [*map(Exists, keys), *more.conditions])

        def remove(by: Plan | Decide) -> int | None:
            def decide(found: Snapshot) -> Plan:
                if not callable(by):
                    return removing(by)
                return removing(by(found)) if found.records.keys() >= {*keys} else Plan()

            how = read if callable(by) else read_nothing
            change = partial(self.change, directory, decide, deadline, read=how)
            return change(once=not callable(by)).revision

        revision = None if unread is None else remove(unread)
        if revision is None:
            revision = remove(plan)
        # Of several those that are there still are members.
        for lease in leases if revision is not None or len(leases) == 1 else ():
            self.forget(lease, deadline)
        return revision

    def cancel(
        self, claim: Claim, changes: Sequence[Change], deadline: float | None = None
    ) -> None:
        """Make the changes that take a claim back, with those that its kind adds to them.

        See CANCELLED.
        """
        directory, applied = claim.key(self._alias).directory, None
        while applied is None:
            more = self._cancelling(directory, claim, deadline)
            every = [*changes, *more.changes]
            applied = self._store.apply(directory, every, more.conditions, deadline)

    def _cancelling(self, directory: str, claim: Claim, deadline: float | None) -> Plan:
        if (undo := CANCELLED.get(claim.kind)) is None:
            return NOTHING
        key = held_key(claim.nonce)
        record = self._store.get(directory, key, deadline)
        if record is None:  # it may be granted in between
            return Plan(conditions=[Absent(key)])
        return undo(self._store, directory, record, deadline)

    def forget(self, lease: Lease, deadline: float | None = None) -> None:
        """Note that the record of a member was removed."""
        self._requests.forget(lease.claim, deadline)

    def sweep(self) -> None:
        """Forget what nobody has been part of for long."""
        for kind, kept in KEPT.items():
            for directory in self._store.directories(LockKey(self._alias, kind, "").directory):
                found = self._store.read(directory)
                now, every = time_of(found), found.records.items()
                records = [record for key, record in every if not key.startswith(ANSWER)]
                if any(record.session or record.value.get("in_use") for record in records):
                    continue  # somebody is there, or will come
                if not kept or all(now - put_when(record, found) > kept for record in records):
                    self._clear(found)

    def _clear(self, found: Snapshot) -> None:
        """Delete the records of a directory, as many as a change can have at once, if unused."""
        revision, keys = found.revision, iter(found.records)
        while some := [*islice(keys, MOST_KEYS)]:
            unused = Unchanged(revision)
            cleared = self._store.apply(found.directory, [*map(Delete, some)], [unused])
            if cleared is None:
                break
            revision = cleared

    def _give_back(self, claims: Sequence[Claim], deadline: float | None) -> None:
        """End the sessions that were opened for claims which have got nothing."""
        for claim in claims:
            self._requests.forget(claim, deadline)

    def _forget(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._requests.sessions.pop(claim.nonce, None)


def read_nothing(deadline: float | None) -> Snapshot:
    """Read nothing, for a plan that depends on nothing but its conditions."""
    return Snapshot("", 0, {})
