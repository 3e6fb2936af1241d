"""What the records of an election say: who stands, who is next, and who has led.

The directory of an election has

- ``h/NONCE``: one who stands, bound to its session; see RecipeRecords.join(). It says nothing of
  who leads: the leader is who holds the lock of the election, see Election.
- ``orders``: what people want: whom they appointed, whom a leader has handed over to, which leader
  is to step down. It is there before the first candidate, so that all of them can watch it.
- ``history``: the last terms. Whoever gets the lock writes down its term before it leads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from distlock.backends.recipe_records import Plan
from distlock.backends.seats import owner_of, since_when
from distlock.backends.store import Absent, Condition, Exists, Put, Record, Snapshot
from distlock.exceptions import LockError, ValueNotAgreed
from distlock.types.lease import Owner

ORDERS, HISTORY = "orders", "history"
_MEMBER = "h/"
#: How the next leader is found; see Election.
Order: TypeAlias = Literal["first", "succession", "appointed"]
FIRST, SUCCESSION, APPOINTED = "first", "succession", "appointed"
#: How many terms are remembered. With the longest names they fit one record.
MOST_TERMS = 50

#: Why a term can have ended.
RESIGNED, STEPPED_DOWN, LOST = "resigned", "stepped down", "lost"
BROKEN, CRASHED = "broken", "crashed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One who stands for election.

    ``token`` grows with each candidate that comes. ``since`` is when it came, by the clock of its
    machine. ``term`` is that of the leader; None for all others.
    """

    name: str
    owner: Owner
    token: int | None = None
    since: datetime | None = None
    priority: int = 0
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    term: int | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One who has led, or leads: since when, until when, and why that ended.

    ``term`` is the fencing token. ``until`` is None for the leader of now. The times are by the
    clocks of the machines that wrote them down. ``why`` is "resigned", "stepped down" (somebody
    wanted that, or another was appointed), "lost" (it lost its lock while its process went on),
    "broken" (by an operator), or "crashed" (its process was killed, stopped or cut off); empty for
    the leader of now.
    """

    term: int
    candidate: str
    owner: Owner
    since: datetime
    until: datetime | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ElectionInfo:
    """What is known of an election: see Election for each of these.

    ``appointed`` is the name of who was appointed by hand. ``history`` is in the order of terms.
    """

    name: str
    using: str
    order: str
    leader: Candidate | None
    candidates: tuple[Candidate, ...]
    appointed: str | None
    history: tuple[Term, ...]


class Candidates:
    """The records of one election, as a snapshot shows them."""

    def __init__(self, snapshot: Snapshot, order: str = FIRST) -> None:
        """``order`` is that of the succession, if nobody has stood who has said it."""
        self.snapshot = snapshot
        records = snapshot.records
        #: in the order in which they came
        self.standing = [record for key, record in records.items() if key.startswith(_MEMBER)]
        self.orders: dict[str, Any] = records[ORDERS].value if ORDERS in records else {}
        self.order = str(self.orders.get("order", order))
        self.terms: list[dict[str, Any]] = (
            records[HISTORY].value["terms"] if HISTORY in records else []
        )

    # Who is next

    @property
    def last_term(self) -> int:
        """The last term that was written down; 0 before the first one."""
        return int(self.terms[-1]["term"]) if self.terms else 0

    @property
    def appointed(self) -> str | None:
        """The name of who was appointed by hand."""
        return self.orders.get("appointed")

    @property
    def succession(self) -> list[Record]:
        """Those who may lead, in the order in which they do."""
        if self.order == APPOINTED:
            return [one for one in self.standing if _name(one) == self.appointed]
        if self.order == SUCCESSION:  # sorting keeps the order of those who are equal
            line = sorted(self.standing, key=lambda one: -int(one.value["data"]["priority"]))
        else:
            line = self.standing
        return sorted(line, key=lambda one: not self._is_next(one))

    def _is_next(self, record: Record) -> bool:
        """Whether the last leader, or somebody during its term, wants this one to follow it."""
        orders = self.orders
        is_named = orders.get("next") == record.value["owner"]
        return is_named and orders.get("after") == self.last_term

    def find(self, owner: Owner) -> Record | None:
        """Return the record of one candidate."""
        return next((one for one in self.standing if one.value["owner"] == owner.key), None)

    def named(self, name: str) -> Record | None:
        """Return the record of the first candidate of a name."""
        return next((one for one in self.standing if _name(one) == name), None)

    def other(self, wanted: Candidate | str, election: object) -> Candidate:
        """Return a candidate that stands; LockError if it does not."""
        one = self.named(wanted) if isinstance(wanted, str) else self.find(wanted.owner)
        if one is None:
            name = wanted if isinstance(wanted, str) else wanted.name
            raise LockError(f"{election!r}: candidate {name!r} does not stand")
        return self.candidate(one)

    def is_first(self, owner: Owner) -> bool:
        """Whether a candidate is the next to lead, or leads and is to go on."""
        line = self.succession
        return bool(line) and line[0].value["owner"] == owner.key

    def watched_by(self, owner: Owner) -> list[str] | None:
        """Return the keys that one who is not first waits for; None for any change.

        Of those who stand that is the one just before it, so that one who leaves wakes one.
        """
        line = self.succession
        owners = [one.value["owner"] for one in line]
        if owner.key in owners:
            return [ORDERS, line[owners.index(owner.key) - 1].key]
        return [ORDERS] if self.find(owner) else None

    def is_recalled(self, owner: Owner, name: str, term: int) -> bool:
        """Whether a leader is to step down."""
        if self.orders.get("step_down") == term:
            return True
        return self.order == APPOINTED and self.appointed != name

    def check_order(self, order: str, election: str) -> None:
        """Raise ValueNotAgreed if those who stand have said another order."""
        if self.standing and self.order != order:
            raise ValueNotAgreed(
                f"order={order!r}: {election} has order={self.order!r} for those who stand now; say"
                " the same everywhere"
            )

    # Changes

    def ordering(self, **orders: Any) -> tuple[Put, Condition]:
        """Return the change of what people want, and its condition."""
        said = {key: value for key, value in {**self.orders, **orders}.items() if value is not None}
        return Put(ORDERS, said), self._same(ORDERS)

    def naming(self, name: str | None, owner: Owner | None, term: int) -> tuple[Put, Condition]:
        """Return the change by which one is appointed, or is to follow the leader of a term."""
        if self.order == APPOINTED:
            return self.ordering(appointed=name)
        return self.ordering(next=None if owner is None else owner.key, after=term)

    def beginning(self, term: int, owner: Owner, name: str) -> Plan:
        """Return the plan for a new term; its result is whether this candidate leads."""
        own = self.find(owner)
        if self.last_term >= term or own is None or not self.is_first(owner):
            return Plan(result=self.last_term == term)
        ended = [self._ended(one, None) for one in self.terms]
        new = {
            "term": term,
            "candidate": name,
            "owner": owner.key,
            "host": owner.host,
            "pid": owner.pid,
            "thread": owner.thread,
            "since": _now(),
        }
        put = Put(HISTORY, {"terms": [*ended, new][-MOST_TERMS:]})
        return Plan([put], [self._same(HISTORY), Exists(own.key)], True)

    def ending(self, term: int, why: str) -> Plan:
        """Return the plan that writes down why a term has ended; without changes if that is so."""
        ended = [self._ended(one, why) if one["term"] == term else one for one in self.terms]
        if ended == self.terms:
            return Plan()
        return Plan([Put(HISTORY, {"terms": ended})], [self._same(HISTORY)])

    def is_open(self, term: int) -> bool:
        """Whether a term is the last one, and has not ended by what was written down."""
        return bool(self.terms) and self.last_term == term and "until" not in self.terms[-1]

    def _ended(self, term: dict[str, Any], why: str | None) -> dict[str, Any]:
        if "until" in term:
            # Who broke it knows better than who lost it.
            return {**term, "why": BROKEN} if why == BROKEN and term["why"] == LOST else term
        if why is None:  # who led has not written it down
            goes_on = any(one.value["owner"] == term["owner"] for one in self.standing)
            why = LOST if goes_on else CRASHED
        return {**term, "until": _now(), "why": why}

    def _same(self, key: str) -> Condition:
        record = self.snapshot.records.get(key)
        return Absent(key) if record is None else Exists(key, record.revision)

    # For people

    def history(self) -> tuple[Term, ...]:
        """Return the last terms, the newest one last."""
        return tuple(
            Term(
                int(one["term"]),
                str(one["candidate"]),
                _owner(one),
                _time(one["since"]),
                _time(one["until"]) if "until" in one else None,
                str(one.get("why", "")),
            )
            for one in self.terms
        )

    def info(self, using: str, leader: Candidate | None) -> ElectionInfo:
        """Return all that is known, for a leader that was found by the lock."""
        line = self.succession
        standing = [*line, *(one for one in self.standing if one not in line)]
        return ElectionInfo(
            self.snapshot.directory.partition(":")[2],
            using,
            self.order,
            leader,
            tuple(
                leader if leader is not None and leader.owner == one.owner else one
                for one in map(self.candidate, standing)
            ),
            self.appointed,
            self.history(),
        )

    def leader(self, owner: Owner, term: int) -> Candidate | None:
        """Return who leads, if it is who holds the lock; None if its term has not begun."""
        if self.last_term != term:
            return None
        if (record := self.find(owner)) is not None:
            return replace(self.candidate(record), term=term)
        # It lost its record in an outage, and puts it again.
        last = self.history()[-1]
        return Candidate(last.candidate, owner, since=last.since, term=term)

    def candidate(self, record: Record) -> Candidate:
        """Return who stands, as its record says."""
        said = record.value["data"]
        return Candidate(
            str(said["candidate"]),
            owner_of(record),
            record.created,
            since_when(record, self.snapshot),
            int(said["priority"]),
            said["data"],
        )


def _name(record: Record) -> str:
    return str(record.value["data"]["candidate"])


def _owner(value: dict[str, Any]) -> Owner:
    return Owner(str(value["owner"]), str(value["host"]), int(value["pid"]), str(value["thread"]))


def _now() -> int:
    return time.time_ns() // 1000


def _time(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)
