"""The records of an election: its candidates, the next leader, and the former ones.

The directory of an election has

- ``h/REVISION-NONCE``: one who stands, bound to its session; see RecipeRecords.change(). It came
  after this revision: so the keys alone tell in which order they came. It says nothing of who
  leads: the leader is who holds the lock of the election, see Election.
- ``orders``: what people want: the order, who is appointed (by its name with the order
  "appointed", else by the token of its record), and which term is to end. It is there before the
  first candidate, so that all of them can watch it.
- ``history``: the last terms, and the key of the leader's record. A new holder of the lock writes
  its term here before it leads.
- ``ended``: why and when the last one has ended. A leader that leaves writes it without having read
  the others. The next change of the history takes it in. It counts only for a term that is in the
  history and has not ended there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, TypeAlias

from distlock.backends.store import (
    Absent,
    Change,
    Condition,
    Delete,
    Exists,
    Put,
    Record,
    Snapshot,
    Unchanged,
)
from distlock.exceptions import LockError, ValueNotAgreed
from distlock.recipes.following import Follower
from distlock.recipes.recipe import Recipe
from distlock.records.recipe_records import Decide, Plan
from distlock.records.seats import Seats, owner_of, processes_of, since_when
from distlock.types.lease import Kind, Owner

ORDERS, HISTORY, ENDED = "orders", "history", "ended"
#: How the next leader is found; see Election.
Order: TypeAlias = Literal["first", "succession", "appointed"]
#: How many terms are remembered. With the longest names they fit one record.
MOST_TERMS = 50
#: How many candidates are removed in one change: a server may take no more than 128 parts.
_MOST_GONE = 50


@dataclass(frozen=True, slots=True)
class Candidate:
    """One who stands for election.

    ``token`` grows with each candidate that comes. ``since`` is when it came, by the clock of its
    machine. ``term`` is that of the leader; None for all others. ``owner`` is the host, the process
    and the thread or task that stands; ``priority`` and ``data`` are as Election was given them.
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

    - ``term``: the fencing token.
    - ``candidate``, ``owner``: its name; its host, process and thread or task.
    - ``since``, ``until``: from when to when, by the clocks of the machines that wrote them down;
      ``until`` is None for the present leader.
    - ``why``: empty for the present leader. Else "resigned"; "stepped down", by a request, or when
      another was appointed; "lost", if it lost its lock while its process went on; "broken", by a
      force release; "crashed", if its process was killed, stopped or cut off.
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

    ``leader`` is who leads. ``candidates`` are all who stand, in the order in which they lead.
    ``order`` is who is next: "first", "succession" or "appointed". ``appointed`` is the name of who
    was appointed by hand. ``history`` has the newest term first.
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

    def __init__(self, snapshot: Snapshot) -> None:
        """``snapshot`` has all keys; the one who came first needs no records of candidates."""
        self._found = snapshot
        self._orders = self._said(ORDERS)
        self.order: str = self._orders.get("order", "first")
        #: the last terms as they were written; the newest one last
        self._written: list[list[Any]] = self._said(HISTORY).get("terms", [])
        #: the keys of the records of all who stand, in the order in which they came
        self.present = sorted(Seats(snapshot).held)

    @cached_property
    def line(self) -> list[str]:
        """The same keys in the order in which they lead."""
        if self.newcomers_are_last:
            return self.present  # without the records, which may not have been read
        return sorted((key for key in self.present if key in self._found.records), key=self._rank)

    @cached_property
    def standing(self) -> dict[Owner, Candidate]:
        """The candidates that stand, in the order in which they lead."""
        return {one.owner: one for one in map(self._candidate, self.line)}

    def _candidate(self, key: str) -> Candidate:
        record = self._found.records[key]
        owner, since = owner_of(record), since_when(record, self._found)
        return Candidate(owner=owner, token=record.created, since=since, **record.value["data"])

    @cached_property
    def _rows(self) -> list[list[Any]]:
        return [self._row_as_ended(row) for row in self._written]

    def _row_as_ended(self, row: list[Any]) -> list[Any]:
        ended = self._said(ENDED)
        return _ended(row, ended["why"], ended["term"], ended["until"]) if ended else row

    @property
    def terms(self) -> list[Term]:
        """The last terms, the newest one last."""
        return [_term(*row) for row in self._rows]

    @cached_property
    def last(self) -> Term | None:
        """The newest term, alone: reading all takes as long as the rest of an election."""
        return _term(*self._row_as_ended(self._written[-1])) if self._written else None

    # Who is next

    def _rank(self, key: str) -> tuple[bool, int]:
        one = self._candidate(key)
        return not self._is_appointed(one), -one.priority if self.order == "succession" else 0

    def _is_appointed(self, one: Candidate) -> bool:
        who = one.name if self.order == "appointed" else one.token
        return bool(self._orders.get("appointed") == who)

    @property
    def newcomers_are_last(self) -> bool:
        """Whether a candidate that comes now leads after all who stand."""
        return self.order == "first" and self._orders.get("appointed") is None

    def awaited_by(self, own: str, passed_over: Collection[str | None] = ()) -> list[str]:
        """Return the keys of the records that one who stands waits for; none if it is the next.

        Of those who stand that is the one just before it, so that one who leaves wakes one.
        ``own`` is the key of its record. ``passed_over``: see before().
        """
        before = self.before(own, passed_over)
        if self.may_lead(own) and not before:
            return []
        return [ORDERS, *(record.key for record in before[-1:])]

    def may_lead(self, own: str) -> bool:
        """Return whether one stands, and nobody else was appointed in its place."""
        stands = own in self.line
        return stands and (self.order != "appointed" or self._is_appointed(self._candidate(own)))

    def before(self, own: str, passed_over: Collection[str | None] = ()) -> list[Record]:
        """Return the records of those who stand before another one, the next leader first.

        ``passed_over`` are the sessions of processes whose candidate did not lead in its turn: the
        candidates of these are left out. So are records that this one has had before.
        """
        if own not in self.line:
            return []
        ahead = takewhile(lambda key: key != own, self.line)
        records = self._found.records
        found = [records[key] for key in ahead if key in records]  # others went while it was read
        mine = owner_of(records[own]) if own in records else None
        return [one for one in found if one.session not in passed_over and owner_of(one) != mine]

    def processes_before(self, own: str, passed_over: Collection[str | None]) -> int:
        """Return of how many processes those are who are to lead before one who stands.

        0 if its own is one of them.
        """
        before, leader = self.before(own, passed_over), self.leader_beside(own)
        others = [record for record in before if record.key != leader]
        return processes_of(others, self._found.records.get(own))

    def leader_beside(self, own: str) -> str | None:
        """Return the key of the record of another one who leads.

        None if it has none, or nobody is known to lead.
        """
        leader: str = self._said(HISTORY).get("leader", "")
        leads = leader in self.line and leader != own and self.last and not self.last.why
        return leader if leads else None

    def is_recalled(self, name: str, term: int) -> bool:
        """Whether a leader is to step down."""
        replaced = self.order == "appointed" and self._orders.get("appointed") != name
        return replaced or self._orders.get("step_down") == term

    def is_open(self, term: int | None) -> bool:
        """Whether a term is the last one, and has not ended by what was written down."""
        return self.last is not None and self.last.term == term and not self.last.why

    # Changes

    @staticmethod
    def plan(step: Callable[..., Plan], *arguments: Any) -> Decide:
        """Return what makes a plan of a snapshot, by one of the methods below."""
        return lambda snapshot: step(Candidates(snapshot), *arguments)

    def joining(self, order: str, said: Mapping[str, Any], election: str) -> Plan:
        """Return the plan for one who comes; ValueNotAgreed if others have another order."""
        if self._orders.get("order") == order:
            return Plan([], [self._found.unchanged(ORDERS)], members=[said])
        if self.present:
            raise ValueNotAgreed(
                f"order={order!r}: {election} has order={self.order!r} for its present"
                f" candidates; use the same everywhere"
            )
        return Plan([_put(ORDERS, order=order)], [Unchanged(self._found.revision)], members=[said])

    def ordering(self, **orders: Any) -> Plan:
        """Return the plan that changes what people want."""
        put = _put(ORDERS, **{"order": self.order, **self._orders, **orders})
        return Plan([put], [self._found.unchanged(ORDERS)], True)

    def appointing(self, wanted: Candidate | str | None, election: object) -> Plan:
        """Return the plan that appoints a candidate, or nobody; LockError if it does not stand."""
        if wanted is None:
            return self.ordering(appointed=None)
        name, who = (wanted, wanted) if isinstance(wanted, str) else (wanted.name, wanted.owner)
        for one in self.standing.values():
            if who in (one.name, one.owner):
                by_name = self.order == "appointed"
                return self.ordering(appointed=one.name if by_name else one.token)
        raise LockError(f"{election!r}: candidate {name!r} does not stand")

    def recalling(self, term: int) -> Plan:
        """Return the plan that asks a leader to step down; its result is its term, or None."""
        if not self.is_open(term):
            return Plan()
        return replace(self.ordering(step_down=term), result=self.last)

    def beginning(self, new: Term, own: str, passed_over: Collection[str | None] = ()) -> Plan:
        """Return the plan for a new term; its result is whether the candidate leads.

        ``own`` is the key of its record. Those that are passed over stand no more, see before():
        they have to stand again.
        """
        last = self.last.term if self.last else 0
        if last >= new.term or self.awaited_by(own, passed_over):
            return Plan(result=last == new.term)
        ended = [_ended(row, "crashed") for row in self._rows]
        gone = [Delete(record.key) for record in self.before(own)]
        # While one stands a sweep removes nothing; and ENDED goes only with a change of HISTORY.
        changes, conditions = self._writing([*ended, _row(new)], leader=own)
        conditions += [self._found.unchanged(ORDERS, lasting=True), Exists(own)]
        return Plan([*changes, *gone[:_MOST_GONE]], conditions, True)

    def ending(self, term: int, why: str) -> Plan:
        """Return the plan that writes down why a term has ended; without changes if that is so."""
        rows = [_ended(row, why, term) for row in self._rows]
        return Plan() if rows == self._rows else Plan(*self._writing(rows))

    @staticmethod
    def ending_unread(term: int, why: str) -> Plan:
        """Return the plan that does the same whatever the history says, if nobody else has."""
        if not term:
            return Plan()
        said = {"term": term, "why": why, "until": str(datetime.now(UTC))}
        return Plan([_put(ENDED, **said)], [Absent(ENDED)])

    def _writing(
        self, rows: list[list[Any]], *, leader: str = ""
    ) -> tuple[list[Change], list[Condition]]:
        """Return the changes that write the history, and the conditions of that.

        ``leader`` is the key of the record of one whose term begins.
        """
        last = self._said(HISTORY).get("leader", "")
        changes: list[Change] = [_put(HISTORY, terms=rows[-MOST_TERMS:], leader=leader or last)]
        if ENDED in self._found.records:
            changes.append(Delete(ENDED))
        lasting = bool(leader)  # see Exists, and beginning()
        return changes, [self._found.unchanged(key, lasting=lasting) for key in (HISTORY, ENDED)]

    def _said(self, key: str) -> dict[str, Any]:
        return self._found.records[key].value if key in self._found.records else {}

    # For people

    def info(self, name: str, using: str, token: int | None) -> ElectionInfo:
        """Return all that is known; ``token`` is that of the lock, None if nobody holds it."""
        standing, leader = dict(self.standing), None
        last = self.last
        if last and self.is_open(token):  # a leader may have lost its record in an outage
            known = standing.get(last.owner, Candidate(last.candidate, last.owner))
            leader = standing[last.owner] = replace(known, term=token)
        appointed = self._orders.get("appointed") if self.order == "appointed" else None
        candidates, history = tuple(standing.values()), tuple(self.terms[::-1])
        return ElectionInfo(name, using, self.order, leader, candidates, appointed, history)


def _ended(row: list[Any], why: str, term: int | None = None, until: str = "") -> list[Any]:
    """Return a row as it is after a term has ended; by default its own, and now."""
    # The operator who broke it knows better than the leader who lost it.
    if term not in (None, row[0]) or (row[-1] and why != "broken"):
        return row
    return [*row[:-2], until or str(datetime.now(UTC)), why]


def _row(one: Term) -> list[Any]:
    """Return a term as it is written, for _term() to read."""
    times = str(one.since), str(one.until or "")
    return [one.term, one.candidate, *one.owner.to_fields().values(), *times, one.why]


def _term(term: int, candidate: str, *rest: Any) -> Term:
    *owner, since, until, why = rest
    ended = datetime.fromisoformat(until) if until else None
    return Term(term, candidate, Owner(*owner), datetime.fromisoformat(since), ended, why)


def _put(key: str, **said: Any) -> Put:
    return Put(key, {**said, "at": time.time_ns() // 1000})  # for put_when()


class Directory(Recipe):
    """The records of an election, for a thread that must not keep the candidate alive."""

    kind = Kind.ELECTION


class Orders(Follower[Snapshot]):
    """An observer of the requests to a leader."""

    keys = (ORDERS,)

    def _news(self, snapshot: Snapshot) -> list[Snapshot]:
        return [snapshot]


class Terms(Follower[Term]):
    """An observer of the terms of leaders."""

    keys, watched = (HISTORY, ENDED), 2
    #: by the number of each term, why it had ended when it was seen
    _known: dict[int, str] | None = None

    def _news(self, snapshot: Snapshot) -> list[Term]:
        """Return the terms that have begun or ended since the last look."""
        terms, news = Candidates(snapshot).terms, []
        known, self._known = self._known, {one.term: one.why for one in terms}
        if known is None:  # what has ended by now is no news
            known = {one.term: one.why for one in terms if one.why}
        for one in terms:
            if one.term not in known:
                news.append(replace(one, until=None, why=""))
            if one.why and not known.get(one.term):
                news.append(one)
        return news
