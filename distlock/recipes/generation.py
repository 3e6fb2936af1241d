"""The state of a barrier in its records, and the changes that can be made of it.

In the directory of a barrier are

- ``h/NONCE``: a party, from when it comes until it has read the outcome. Its token is the revision
  at which it came. It is never written again, so each party reads that of each other once.
- ``r/NONCE``: when all have come, each says so that it is still there. So one that was killed while
  it waited, and was started again, is not counted twice. The last one to say so lets all pass.
- ``generation``: ``parties``, how many it is for; ``since``: who came after this revision is of the
  present generation, all others are of earlier ones; ``full``: the keys and tokens of the parties,
  once so many have come; ``broken``: why it is broken; ``passed``: by key the places of those who
  have passed, for as long as their own records are there; ``open``: the key of the next one.
- ``o/REVISION``: there while parties may come, for so many and unbroken. A party that comes
  relies on it alone, so that many that come at once do not refuse each other.

Each change of ``generation`` is made on the revision at which it was read. For example, if the last
party arrives just as another one times out, only one of the two changes succeeds. It decides for
all, and the other party reads that outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from distlock.backends.store import Change, Condition, Delete, Exists, Put, Snapshot, Unchanged
from distlock.exceptions import ValueNotAgreed
from distlock.records.recipe_records import GENERATION, Decide, Plan
from distlock.records.seats import held_key
from distlock.types.owners import current_owner

#: The beginnings of keys, see above.
_PARTY, _READY, _OPEN = held_key(""), "r/", "o/"
#: The tokens of all parties are in one record.
MOST_PARTIES = 500
#: The value of a generation that has no record yet.
_NONE: dict[str, Any] = {
    "parties": None,
    "since": 0,
    "full": {},
    "broken": None,
    "passed": {},
    "open": None,
}


def ready_key(party: str) -> str:
    """Return the key by which the party of a key says that it is still there."""
    return _READY + party.removeprefix(_PARTY)


def said_in(snapshot: Snapshot) -> dict[str, Any]:
    """Return what a snapshot says of the generation."""
    record = snapshot.records.get(GENERATION)
    return _NONE | record.value if record else _NONE


def tokens_in(snapshot: Snapshot) -> dict[str, int]:
    """Return the tokens of the parties whose records are in a snapshot, by their keys."""
    records = snapshot.records.items()
    return {key: record.created for key, record in records if key.startswith(_PARTY)}


def unknown_in(found: Snapshot, own: str, known: Mapping[str, int]) -> Collection[str]:
    """Return the keys of parties whose tokens are needed: none if the own outcome is known.

    Once all have come, their tokens are in the record of the generation.
    """
    said = said_in(found)
    if own in said["full"] or own in said["passed"]:
        return ()
    return [key for key in found.keys if key.startswith(_PARTY) and key not in known]


def breaking(why: str, token: int | None = None) -> Decide:
    """Return the plan to break a generation; with a token only if a party with that is of it.

    Others may have come and not have seen yet that it was there: they must not wait for it.
    """

    def decide(found: Snapshot) -> Plan:
        now = Generation(found)
        if token is None or token in (now.full or now.arrived):
            return now.say(broken=now.broken or why)
        return Plan()

    return decide


class Generation:
    """The state of a barrier in a snapshot, and the plans that can be made of that."""

    def __init__(self, snapshot: Snapshot, tokens: Mapping[str, int] | None = None) -> None:
        """``tokens``: by key those of the parties, if their records are not in the snapshot."""
        self.snapshot = snapshot
        self.said = said_in(snapshot)
        self.parties: int | None = self.said["parties"]
        if tokens is None:
            tokens = tokens_in(snapshot)
        self._keys = {*(snapshot.keys or snapshot.records)}
        there = sorted((token, key) for key, token in tokens.items() if key in self._keys)
        #: the keys of the parties that are there, by their tokens
        self.present = dict(there)
        #: the tokens of those who are of the present generation, in the order in which they came
        self.since: int = self.said["since"]
        self.arrived = [token for token in self.present if token > self.since]
        #: Why it is broken. When all who know of that are gone, the next one begins again.
        self.broken: str | None = self.said["broken"] if self.arrived else None
        full: list[int] = [*self.said["full"].values()]
        #: The tokens of the parties. If all of them are gone nobody waits for them any more.
        self.full = full if self.present.keys() & full else []
        said = {one: ready_key(key) for one, key in there if ready_key(key) in self._keys}
        #: by token, the parties that have confirmed after all had come; None for what was not read
        self.ready = {one: snapshot.records.get(key) for one, key in said.items()}

    # Plans

    def come(self, wanted: int | None, barrier: object) -> Plan:
        """Come, if all say the same number of parties; the result is why it is broken, if it is."""
        if self.broken:
            return Plan(result=self.broken)
        parties = wanted or self.parties
        if parties is None:
            raise ValueNotAgreed(
                f"{barrier}: parties was not given, and no other party has given it"
            )
        if self.arrived and parties != self.parties:
            raise ValueNotAgreed(
                f"parties={parties}: {barrier} is for {self.parties}, for the parties that wait"
                f" now. Use the same number everywhere"
            )
        # A party relies on what is agreed, and changes it only to begin again.
        if self.parties == parties and (is_open := self.said["open"]):
            return Plan((), [Exists(is_open)], members=[{}])
        return self.begin(parties=parties)

    def next(self, token: int, seen: set[int], *, is_over: bool) -> Plan | None:
        """Return what a party has to change, None if it has to wait; ``seen``: who was there."""
        if gone := self.gone(seen):
            return self.say(broken=f"{len(gone)} of its parties had gone")
        if self.may_pass(token, is_over=is_over):
            return self.let_pass()
        if not self.full and self.arrived.index(token) + 1 == self.parties:
            return self.say(full={self.present[one]: one for one in self.arrived[: self.parties]})
        return self.say(broken=f"{current_owner()} waited for too long") if is_over else None

    def gone(self, seen: set[int]) -> set[int]:
        """Return those who were seen in the present generation, and are not there any more."""
        return {one for one in seen - self.present.keys() if one > self.since}

    def awaited(self, token: int) -> list[str] | None:
        """Return the records whose changes one who waits has to see; None for any change.

        The first one sees if another one goes, the second one if that one does.
        """
        first, *others = self.arrived
        if token == first:
            return None
        return [GENERATION, self.present[first]] if token == others[0] else [GENERATION]

    def may_pass(self, token: int, *, is_over: bool) -> bool:
        """Return whether this party lets all pass: all others have said that they are there.

        The last one to say so does it, and the first one, which sees each of them. Where the order
        was not read, and at the end of its time, each party does.
        """
        if token not in self.full or not {*self.full} - {token} <= self.ready.keys():
            return False
        own, others = self.ready.get(token), filter(None, self.ready.values())
        if own is None or is_over or token == self.full[0]:
            return True
        return own.revision == max(other.revision for other in others)

    def begin(self, **said: Any) -> Plan:
        """Begin a generation, of those who come from now on, if nobody has come meanwhile."""
        now = self.snapshot.revision
        said |= {"since": now, "full": {}, "broken": None, "open": f"{_OPEN}{now}"}
        return self.say(Unchanged(now), **said)

    def let_pass(self) -> Plan:
        """Let all parties pass. A party that comes too late belongs to the next generation."""
        passed = self.said["passed"] | {key: place for place, key in enumerate(self.said["full"])}
        return self.say(since=self.full[-1], full={}, passed=passed)

    def say(self, *conditions: Condition, **said: Any) -> Plan:
        """Say something else of the generation, if nobody else has since it was read."""
        value = self.said | said
        passed = value["passed"].items()
        value["passed"] = {key: place for key, place in passed if key in self._keys}
        if value["broken"]:
            value["open"] = None
        before, after = self.said["open"], value["open"]
        # A party that was lost may have left its word behind.
        here = {ready_key(key) for key in self._keys if key.startswith(_PARTY)}
        left = {key for key in self._keys - here if key.startswith(_READY)}
        gone = {*left, before} - {None, after}
        changes: list[Change] = [Put(GENERATION, value), *map(Delete, sorted(gone))]
        changes += [Put(after, {})] if after and after != before else []
        return Plan(changes, [self.snapshot.unchanged(GENERATION), *conditions], members=[{}])
