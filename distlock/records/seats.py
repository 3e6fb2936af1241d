"""The records of a semaphore or a read/write lock, and the decision who may have a seat.

Each has a directory of its own in the store. In it are

- ``limit``: the number of seats, and who has several of them. Every grant writes it again, on the
  condition that nobody else has since it was read: so grants are made one after the other, and the
  revision is the token. So it tells how many seats are taken, too, by the keys of the holders.
  A sweep removes it where nobody holds or waits, unless resize() has set the number.
- ``h/NONCE``: one who holds seats, bound to the holder's session.
- ``w/REVISION-NONCE``: one who waits, bound to the waiter's session; first come, first served: in
  the order of their keys. A waiter came after this revision. So the keys alone tell whose turn it
  is, and one who was passed over comes back to its place.
- ``x/NONCE``: a claim that was cancelled and must not be granted by a request that comes late.

Holding is a record of its own, and never a place in the queue: the first one in line has nothing
until it is granted. A read/write lock is a semaphore with ALL_SEATS, of which a reader takes one
and a writer takes all.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from distlock.backends.store import Record, Snapshot
from distlock.exceptions import LockError, ValueNotAgreed
from distlock.types.lease import (
    Claim,
    Holder,
    Kind,
    Lease,
    LockInfo,
    LockKey,
    Owner,
    State,
    Waiting,
)

LIMIT = "limit"
#: in the value of LIMIT, the keys of the holders with several seats
SEVERAL = "several"
_HELD, _WAITS, _CANCELLED = "h/", "w/", "x/"
#: The sessions of processes whose first waiter did not come in its turn: all that wait in these
#: are left out.
PassedOver: TypeAlias = frozenset[str | None]
#: Revisions below this are no times in microseconds: it is a moment of the year 2001.
_LEAST_TIME = 10**15
#: the most holders that are named under SEVERAL; if there are more it is None, for all holders
_MOST_NAMED = 100


def held_key(nonce: str) -> str:
    """Return the key of the record of one who holds."""
    return _HELD + nonce


def waiting_key(nonce: str, revision: int) -> str:
    """Return the key of the record of one who waits, and has come after this revision."""
    return f"{_WAITS}{place_after(revision)}{nonce}"


def place_after(revision: int) -> str:
    """Return what the nonce of one who has come after this revision begins with, if that sorts."""
    return f"{revision:020}-"


def cancelled_key(nonce: str) -> str:
    """Return the key of the record that keeps a claim from being granted late."""
    return _CANCELLED + nonce


def value_of(claim: Claim) -> dict[str, Any]:
    """Return what the record of a holder or a waiter says of it. All of it is for people."""
    return {
        "seats": claim.seats,
        **claim.owner.to_fields(),
        "description": claim.label or claim.description,
        "lease": claim.duration,
        "renews": claim.renews,
        "since": time.time_ns() // 1000,
    }


class Overdue(NamedTuple):
    """One who could have its seats and has not taken them: which record, and of which session."""

    key: str
    session: str | None


@dataclass(frozen=True, slots=True)
class Availability:
    """The result of a look at the records, for a request for seats.

    - ``granted``: they are free now.
    - ``behind``: the key of the record to wait for, None for any change of the directory.
    - ``overdue``: the first in line, if it could have its seats now and has not taken them: the key
      of its record, and the session of its process.
    - ``processes``: how many others have to come to nothing before it is this one's turn, see
      processes_of().
    """

    granted: bool
    behind: str | None = None
    overdue: Overdue | None = None
    processes: int = 0


class Seats:
    """The seats of one semaphore or read/write lock, as a snapshot shows them.

    That may have all keys, and only the records that are needed().
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        records = snapshot.records
        self.keys: Collection[str] = snapshot.keys or records.keys()
        self.limit_record = records.get(LIMIT)
        self.holders = [record for key, record in records.items() if key.startswith(_HELD)]
        #: the keys of those who hold seats
        self.held = [key for key in self.keys if key.startswith(_HELD)]
        #: the keys of those who wait, in the order in which they are served
        self.line = sorted(key for key in self.keys if key.startswith(_WAITS))

    @property
    def limit(self) -> int | None:
        """How many seats there are, None if nobody has ever said."""
        return None if self.limit_record is None else int(self.limit_record.value["limit"])

    @property
    def several(self) -> set[str]:
        """The keys of the holders that have more than one seat, or had when that was granted."""
        named = self.limit_record.value.get(SEVERAL, ()) if self.limit_record else ()
        return set(self.held if named is None else named)

    @property
    def taken(self) -> int:
        """How many seats are taken."""
        found = map(self.snapshot.records.get, self.held)
        return sum(1 if record is None else int(record.value["seats"]) for record in found)

    @property
    def forgettable(self) -> bool:
        """Whether it is unused, so that the next user sets the number of seats."""
        record = self.limit_record
        others = len(self.snapshot.records) > 1
        return record is not None and not others and not record.value.get("resized")

    def limit_value(self, limit: int, claim: Claim) -> dict[str, Any]:
        """Return the value for the record of the limit with a grant; a number of resize() stays."""
        record = self.limit_record
        said = record.value if record is not None and self.limit == limit else {"limit": limit}
        own = {held_key(claim.nonce)} if claim.seats > 1 else set()
        several = sorted(own.union(self.several.intersection(self.held)))
        return {**said, SEVERAL: several if len(several) <= _MOST_NAMED else None}

    def limit_for(self, claim: Claim, alias: str) -> int:
        """Return how many seats there are to be for a claim, which may be the first to say so.

        ``alias`` is that of the backend, for the errors.

        ValueNotAgreed if it says another number than those who use it, or none and nobody has said
        any; LockError if it wants more than there are.
        """
        agreed, wanted = self.limit, claim.limit
        if wanted is None:
            if agreed is None:
                raise ValueNotAgreed(
                    f"{claim.kind} {claim.name!r}: value was not given, and the number of seats"
                    f" is not set yet; set it with `manage.py locks resize --create"
                    f" --using={alias} NAME NUMBER`"
                )
            wanted = agreed
        others = any(
            key.startswith((_HELD, _WAITS)) and not key.endswith(claim.nonce) for key in self.keys
        )
        if agreed not in (None, wanted) and others:
            raise ValueNotAgreed(
                f"value={wanted}: {claim.kind} {claim.name!r} has {agreed} seats for its present"
                f" users. Use the same value everywhere, or change it for all with resize() or"
                f" `manage.py locks resize --using={alias} NAME NUMBER`"
            )
        if claim.seats > wanted:
            raise LockError(
                f"n={claim.seats}: {claim.kind} {claim.name!r} has {wanted} seats in all"
            )
        return wanted

    def turn(self, claim: Claim, limit: int, passed_over: PassedOver = frozenset()) -> Availability:
        """Return whether it is a claim's turn: it is served after all who came before."""
        ahead = [one for one in self.ahead_of(claim) if one.session not in passed_over]
        free = limit - self.taken
        # The holder of the only seat of a line may be gone, too; see Claim.
        before = [*self.holders, *ahead] if claim.keeps_place else ahead
        processes = processes_of(before, self.own_place(claim))
        if ahead:
            first = ahead[0]
            is_read = first.value is not None and len(self.holders) == len(self.held)
            is_due = is_read and int(first.value["seats"]) <= free
            overdue = Overdue(first.key, first.session) if is_due else None
            return Availability(False, ahead[-1].key, overdue, processes)
        return Availability(claim.seats <= free, processes=processes)

    def own_place(self, claim: Claim) -> Record | None:
        """Return the record with which a claim waits; None if it does not."""
        own = next((key for key in self.line if key.endswith(claim.nonce)), None)
        return None if own is None else self._record(own)

    def needed(self, claim: Claim) -> list[str]:
        """Return which records beside LIMIT decide whether it is a claim's turn.

        Each holder that LIMIT does not name has one seat.
        """
        several = () if self.ahead_of(claim) else self.several
        return [key for key in self.held if key == held_key(claim.nonce) or key in several]

    def tells_whom_to_await(self, turn: Availability, place: str) -> bool:
        """Return whether one who has just come to a place need not look once more.

        That is so where names alone were read, and the record to wait for is one of these: a watch
        tells what has changed since. If it came back to an earlier place it may be behind that.
        """
        behind = turn.behind
        return behind is not None and behind not in self.snapshot.records and behind < place

    def passed_by(self, claim: Claim, passed_over: PassedOver) -> list[str]:
        """Return the keys of those who came before a claim and are passed over by it."""
        return [one.key for one in self.ahead_of(claim) if one.session in passed_over]

    def ahead_of(self, claim: Claim) -> list[Record]:
        """Return the records of those who wait and came before a claim; of all if it does not."""
        return [
            self._record(key)
            for key in takewhile(lambda key: not key.endswith(claim.nonce), self.line)
        ]

    def _record(self, key: str) -> Record:
        """Return a record; what was not read has no value, and counts as of another process."""
        return self.snapshot.records.get(key) or Record(key, None, 0, 0, session=key)

    def lease_of(self, record: Record) -> Lease:
        """Return the lease that a holder's record stands for; its local deadline means nothing."""
        _, kind, name = LockKey.of_directory("", self.snapshot.directory)
        value = record.value
        claim = Claim(
            name,
            owner_of(record),
            float(value["lease"]),
            str(value["description"]),
            record.key.removeprefix(_HELD),
            bool(value["renews"]),
            kind=kind,
            seats=int(value["seats"]),
            limit=self.limit,
        )
        return Lease(claim, record.created, 0.0)

    # For people

    def info(self, alias: str) -> LockInfo:
        """Return who holds seats, by since when, and who waits, in the order of being served."""
        _, kind, name = LockKey.of_directory(alias, self.snapshot.directory)
        slots = (self.limit or 0) if kind is Kind.SEMAPHORE else 1
        waiters = tuple(self._waiting(self.snapshot.records[key]) for key in self.line)
        token = None if self.limit_record is None else self.limit_record.revision  # the last one
        info = LockInfo(name, alias, token=token, waiters=waiters, kind=kind, slots=slots)
        if not self.holders:
            return info
        first, *others = map(self.holder, self.holders)
        return replace(info.of(first), state=State.HELD, other_holders=tuple(others))

    def holder(self, record: Record) -> Holder:
        """Return what a record says of one who holds seats."""
        value, rest = record.value, record.remaining
        now, since = time_of(self.snapshot), since_when(record, self.snapshot)
        lease = float(value["lease"])
        until = None if rest is None else now + timedelta(seconds=rest)
        return Holder(
            owner_of(record),
            record.created,
            since=since,
            until=until,
            held_for=max((now - since).total_seconds(), 0.0),
            remaining=rest,
            description=str(value["description"]),
            lease=lease,
            renews=bool(value["renews"]),
            renewed_at=None if until is None else max(until - timedelta(seconds=lease), since),
            seats=int(value["seats"]),
        )

    def _waiting(self, record: Record) -> Waiting:
        waited = time_of(self.snapshot) - since_when(record, self.snapshot)
        return Waiting.of(owner_of(record), waited.total_seconds())


def processes_of(before: Iterable[Record], own: Record | None) -> int:
    """Return of how many processes the records are that come before one's own.

    0 if one's own process has one of them: that one notices if those before it are gone.
    """
    sessions = {record.session for record in before}
    return 0 if own is not None and own.session in sessions else len(sessions)


def owner_of(record: Record) -> Owner:
    """Return whose record it is, by what value_of() has put there."""
    return Owner.from_fields(record.value)


def time_of(snapshot: Snapshot) -> datetime:
    """Return the store's time; where it tells none, that of this machine, which is for people."""
    return datetime.now(UTC) if snapshot.now is None else as_datetime(snapshot.now)


def since_when(record: Record, snapshot: Snapshot) -> datetime:
    """Return when a record was created, for people, if it has what value_of() says."""
    by_store = snapshot.now is not None and record.created > _LEAST_TIME
    return as_datetime(record.created if by_store else int(record.value["since"]))


def put_when(record: Record, snapshot: Snapshot) -> datetime:
    """Return when a record was put last; its value has that, for people, under "at" or "since"."""
    by_store = snapshot.now is not None and record.revision > _LEAST_TIME
    said = record.value.get("at") or record.value["since"]
    return as_datetime(record.revision if by_store else int(said))


def as_datetime(microseconds: int) -> datetime:
    """Return the moment so long after the beginning of 1970."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC)
