"""How the records of a queue are changed: a put, a take, and what was abandoned goes back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from distlock.backends.recipe_records import Plan
from distlock.backends.store import (
    Absent,
    Change,
    Condition,
    Delete,
    Exists,
    Put,
    Record,
    RecordStore,
    Snapshot,
)
from distlock.concurrency.backoff import backoff_until
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import run
from distlock.exceptions import LockUnavailable
from distlock.recipes.log import Config, Value
from distlock.recipes.queue_items import (
    HELD,
    ITEM,
    READY,
    TAIL,
    TAKEN,
    Item,
    key_of,
    number_of,
    records_of,
)
from distlock.recipes.semaphore import checked_count

#: more records of one kind than anybody reads at once
ALL = 10_000
#: Items that are put, taken, moved or removed in one change. etcd takes 128 operations at once.
MOST_AT_ONCE = 20
#: Characters of JSON, at the most, of the items that are moved in one change.
MOST_BYTES = 128 * 1024
#: Seconds between two attempts to change a directory that others change at the same time.
_FIRST_RETRY, _LONGEST_RETRY = 0.001, 0.05
#: Seconds for which a producer relies on what Config has said of the bound.
_BOUND_LASTS = 1.0


class _Tail(NamedTuple):
    """The record of the tail as it was read or written last, and how much room there is."""

    number: int
    revision: int | None
    #: how many there may be, None if only the constructor has said so; and the version of Config
    bound: int | None
    version: int
    #: how many may be put before the queue can be full: consumers only make more room
    room: float

    @property
    def value(self) -> dict[str, Any]:
        said = {} if self.bound is None else {"maxsize": self.bound, "version": self.version}
        return {"number": self.number, **said}


class QueueRecords:
    """The records of one queue. Every method may raise LockUnavailable, see RecordStore."""

    def __init__(
        self,
        store: Callable[[], RecordStore],
        directory: str,
        config: Config,
        maxsize: int,
        max_deliveries: int,
        *,
        one_at_a_time: bool,
    ) -> None:
        """``one_at_a_time``: nothing is taken while something is being delivered."""
        self._store = store
        self._directory = directory
        self._config = config
        self._maxsize = maxsize
        self._max_deliveries = max_deliveries
        self._one_at_a_time = one_at_a_time
        self._tail: _Tail | None = None
        #: what Config has said of the bound, and when it was asked
        self._said: tuple[Value, float] | None = None

    def put(
        self, items: Sequence[Item], letter: str | None, patient: bool, deadline: float | None
    ) -> tuple[list[int] | None, Snapshot | None]:
        """Put items; None if there is no room, or others were faster and it is not ``patient``.

        With ``letter`` they take the place of the dead letter that has this key.
        """
        tail, seen = self._tail, None
        if letter or self._said is None or clock() - self._said[1] > _BOUND_LASTS:
            tail = None
        for pause in backoff_until(deadline, _FIRST_RETRY, _LONGEST_RETRY):
            if tail is None or tail.room < len(items):
                tail, seen = self._look_for_room(letter, deadline)
                if letter and letter not in seen.records:
                    return [], seen
                if tail.room < len(items):
                    return None, seen
            numbers = [*range(tail.number + 1, tail.number + 1 + len(items))]
            new = tail._replace(number=numbers[-1], room=tail.room - len(items))
            changes: list[Change] = [Put(TAIL, new.value)]
            pairs = zip(numbers, items, strict=True)
            changes += [Put(key_of(READY, number), item.value) for number, item in pairs]
            same = Exists(TAIL, tail.revision) if tail.revision else Absent(TAIL)
            conditions: list[Condition] = [same]
            if letter:
                changes.append(Delete(letter))
                conditions.append(Exists(letter))
            revision = self._store().apply(self._directory, changes, conditions, deadline)
            if revision is not None:
                self._tail = new._replace(revision=revision)
                return numbers, seen
            if seen is not None and not patient:
                return None, seen
            tail = None
            time.sleep(pause)
        busy = LockUnavailable(f"{self!r}: others put items each time that one was to be put")
        busy.maybe_applied = False
        raise busy

    def _look_for_room(self, letter: str | None, deadline: float | None) -> tuple[_Tail, Snapshot]:
        first = {TAIL: 1, letter: 1} if letter else {TAIL: 1}
        seen = self.peek(first, [ITEM], deadline)
        record, said = seen.records.get(TAIL), self._configured(deadline)
        value = record.value if record else {"number": 0}
        bound, version = value.get("maxsize"), value.get("version", 0)
        if said.version > version:
            bound, version = checked_size(said.value), said.version
        most = self._maxsize if bound is None else bound
        room = most - seen.counts[ITEM] if most else math.inf
        revision = record.revision if record else None
        return _Tail(value["number"], revision, bound, version, room), seen

    def _configured(self, deadline: float | None) -> Value:
        """Return what Config says of the bound, if it was ever set."""
        try:
            said: Value = run(self._config.getting(0))
        except LockUnavailable as error:
            error.maybe_applied = False
            raise
        self._said = said, clock()
        return said

    def look_for_items(self, most: int, deadline: float | None) -> Snapshot:
        """Return the first items that are ready; before that, put back what was abandoned."""
        while True:
            seen = self.peek({READY: most}, [TAKEN, HELD], deadline)
            # A delivery comes and goes with what it has taken. But a session takes it alone.
            if seen.counts[TAKEN] <= seen.counts[HELD] or not self._put_back(deadline):
                return seen

    def _put_back(self, deadline: float | None) -> bool:
        """Put back what was taken by deliveries that have gone; whether there was any."""
        seen = self.peek({TAKEN: ALL, HELD: ALL}, (), deadline)
        held = {record.value["data"]["item"] for record in records_of(seen, HELD)}
        gone = [one for one in records_of(seen, TAKEN) if number_of(one.key) not in held]
        changes, same = list[Change](), list[Condition]()
        for record in _some(gone):
            changes += Item.of(record).put_back(number_of(record.key), self._max_deliveries)
            same.append(Exists(record.key, record.revision))
        if changes:
            self._store().apply(self._directory, changes, same, deadline)
        return bool(changes)

    def release(self, number: int, token: int, deadline: float | None) -> bool:
        """Delete the delivery of an item that has this token; False if it is over."""
        for record in records_of(self.peek({HELD: ALL}, (), deadline), HELD):
            if (record.value["data"]["item"], record.created) == (number, token):
                delete, same = [Delete(record.key)], [Exists(record.key)]
                return self._store().apply(self._directory, delete, same, deadline) is not None
        return False

    def plan(self, most: int, seen: Snapshot) -> Plan:
        """Plan to take the first items."""
        ready = _some(records_of(seen, READY)[:most])
        if self._one_at_a_time and seen.counts[TAKEN]:
            ready = []
        items = [(number_of(one.key), Item.of(one).taken()) for one in ready]
        changes: list[Change] = [Delete(one.key) for one in ready]
        changes += [Put(key_of(TAKEN, number), item.value) for number, item in items]
        same = [Exists(one.key, one.revision) for one in ready]
        members = [{"item": number} for number, _ in items]
        return Plan(changes, same, (items, seen), members=members)

    def peek(
        self, first: Mapping[str, int], count: Collection[str], deadline: float | None
    ) -> Snapshot:
        try:
            return self._store().peek(self._directory, first, count, deadline)
        except LockUnavailable as error:
            error.maybe_applied = False  # nothing was to be changed
            raise

    def purge(self, prefix: str, deadline: float | None) -> int:
        removed = 0
        while found := records_of(self.peek({prefix: MOST_AT_ONCE}, (), deadline), prefix):
            same = [Exists(one.key, one.revision) for one in found]
            changes = [Delete(one.key) for one in found]
            if self._store().apply(self._directory, changes, same, deadline) is not None:
                removed += len(found)
        return removed


def checked_size(maxsize: object) -> int:
    """Return how many items there may be; TypeError or ValueError for what is no number of them."""
    return 0 if maxsize == 0 and maxsize is not False else checked_count("maxsize", maxsize)


def _some(records: Sequence[Record]) -> list[Record]:
    """Return the first records, as many as one change can move: ZooKeeper takes 1 MiB at once."""
    sizes = accumulate(len(json.dumps(record.value)) for record in records[:MOST_AT_ONCE])
    return [one for one, size in zip(records, sizes, strict=False) if size < MOST_BYTES] or [
        *records[:1]
    ]
