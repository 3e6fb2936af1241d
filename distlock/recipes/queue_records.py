"""The records of a queue: what they say, and how a put, a take and the like change them.

The directory of a queue has

- ``tail``: the number of the last item. Each put writes it anew, on the condition that it is as it
  was read: so the order of the numbers is the order of the commits, and there are never too many.
- ``i/r/NUMBER``: an item that is ready to be delivered.
- ``i/t/NUMBER``: an item that was taken: it is being delivered, or was put back for later.
- ``h/NONCE``: a delivery, bound to the consumer's session; its data names the item. One that was
  put back for later has a session of its own, which lasts for the delay.
- ``dead/NUMBER``: an item that was delivered ``max_deliveries`` times, and never acknowledged.

What was taken goes back to its place when the record of its delivery has gone, whatever the reason.
Nothing is counted up or down: how many items there are is how many records there are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from distlock.backends.recipe_records import Plan
from distlock.backends.seats import owner_of
from distlock.backends.store import Change, Condition, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.backoff import backoff_until
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockUnavailable
from distlock.recipes.log import LAST, Config
from distlock.recipes.recipe import Recipe, checked_json
from distlock.recipes.semaphore import checked_count
from distlock.types.arguments import checked_name, checked_seconds
from distlock.types.lease import Kind, Owner

#: What the keys of records begin with.
TAIL = "tail"
ITEM, READY, TAKEN, HELD, DEAD = "i/", "i/r/", "i/t/", "h/", "dead/"
#: More records of one kind than there can be: what is not read would look abandoned.
_ALL = 2**31 - 1
#: Items that are put, taken, moved or removed in one change. Of the largest ones ZooKeeper takes
#: no more: its requests have 1 MiB at the most.
MOST_AT_ONCE = 12
#: Characters that are kept of the reason why an item was put back.
MOST_REASON = 200
#: Seconds between two attempts to change a directory that others change at the same time.
_FIRST_RETRY, _LONGEST_RETRY = 0.001, 0.05
#: Seconds for which a producer relies on what it has read of the bound.
_BOUND_LASTS = 1.0


@dataclass(frozen=True, slots=True)
class QueueItem:
    """An item: what was put, how often it was taken, and when it was put.

    ``at`` is of the clock of the machine that has put it. ``reason`` is why it was put back last.
    """

    id: int
    body: Any
    attempts: int
    at: datetime
    reason: str = ""

    @classmethod
    def of(cls, record: Record) -> QueueItem:
        at = datetime.fromisoformat(record.value["at"])
        return cls(number_of(record), **{**record.value, "at": at})

    @property
    def value(self) -> dict[str, Any]:
        at = self.at.isoformat()
        return {"body": self.body, "attempts": self.attempts, "at": at, "reason": self.reason}

    def put_back(self, max_deliveries: int) -> list[Change]:
        """Return what moves it from the taken ones back to its place, or to the dead letters."""
        kind = DEAD if self.attempts >= max_deliveries else READY
        return [Delete(key_of(TAKEN, self.id)), Put(key_of(kind, self.id), self.value)]


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A delivery that goes on: of which item, to whom, and since when by the clock of its machine.

    ``delayed``: nobody has it; it was put back for later.
    """

    id: int
    token: int
    owner: Owner
    since: datetime
    delayed: bool

    @classmethod
    def of(cls, record: Record) -> DeliveryInfo:
        since, data = datetime.fromtimestamp(record.value["since"] / 1e6, UTC), record.value["data"]
        return cls(data["item"], record.created, owner_of(record), since, "delayed" in data)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What is in a queue at one moment.

    ``size`` items are not acknowledged: they are ``ready``, being ``delivered``, or put back for
    later (``delayed``); ``dead`` ones do not count. ``maxsize`` is 0 if there is no bound.
    ``oldest`` is when the first one that is ready was put, by the clock of the machine that did.
    """

    name: str
    using: str
    size: int
    maxsize: int
    ready: int
    delivered: int
    delayed: int
    dead: int
    oldest: datetime | None
    deliveries: tuple[DeliveryInfo, ...]


class _Tail(NamedTuple):
    """The record of the tail as it was read or written last."""

    number: int
    #: that it is as it was then
    same: Condition
    #: how many may be put before the queue can be full: consumers only make more room
    room: float
    #: when the bound has to be read again, by the local clock
    until: float


class QueueRecords(Recipe):
    """A queue, as its records. What takes a deadline blocks, and is a step; see Recipe._ask()."""

    kind = Kind.QUEUE
    _default_maxsize = 0
    #: nothing is taken while something is being delivered
    _one_at_a_time = False

    def __init__(
        self,
        name: str,
        maxsize: int | None = None,
        *,
        lease: float | None = None,
        max_deliveries: int = 5,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe a queue; nothing is asked yet.

        - ``name``, ``using``: as of a Lock, but the name is ten characters shorter.
        - ``maxsize``: how many items there may be, those being delivered included; 0 for no bound.
          None is 0, of a mailbox 10. Once resize() has said a number, that holds for all.
        - ``lease``: seconds after which an item is delivered again if the process that took it is
          gone; None for that of the backend. While the process runs, it is renewed.
        - ``max_deliveries``: an item that was taken so often, and not acknowledged, is put aside.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        checked_name(f"{self.kind}:put:{name}")  # those who wait take seats under such a name
        self._maxsize = checked_size(self._default_maxsize if maxsize is None else maxsize)
        self._lease = None if lease is None else checked_seconds("lease", lease)
        self.max_deliveries = checked_count("max_deliveries", max_deliveries)
        self._config = Config(f"queue:{name}", using=using)
        self._tail: _Tail | None = None

    # Putting

    def _put_items(
        self, bodies: Sequence[Any], letters: Sequence[str], patient: bool, deadline: float | None
    ) -> tuple[list[int] | None, Snapshot | None]:
        """Put items; None if there is no room, or others were faster and it is not ``patient``.

        They take the place of dead letters that have these keys; none is put if one has gone.
        """
        seen, now = None, datetime.now(UTC)
        for pause in backoff_until(deadline, _FIRST_RETRY, _LONGEST_RETRY):
            tail = self._tail
            if letters or tail is None or tail.room < len(bodies) or clock() > tail.until:
                tail, seen = self._look_for_room(letters, deadline)
                if not seen.records.keys() >= {*letters}:
                    return [], seen
                if tail.room < len(bodies):
                    break
            numbers = range(tail.number + 1, tail.number + 1 + len(bodies))
            items = [QueueItem(*each, 0, now) for each in zip(numbers, bodies, strict=True)]
            changes: list[Change] = [Put(TAIL, {"number": numbers[-1]}), *map(Delete, letters)]
            changes += [Put(key_of(READY, item.id), item.value) for item in items]
            conditions = [tail.same, *map(Exists, letters)]
            revision = self._store.apply(self._directory, changes, conditions, deadline)
            if revision is not None:
                same, room = Exists(TAIL, revision), tail.room - len(bodies)
                self._tail = _Tail(numbers[-1], same, room, tail.until)
                return [*numbers], seen
            self._tail = None
            if seen is not None and not patient:
                break
            time.sleep(pause)
        return None, seen

    def _look_for_room(
        self, letters: Sequence[str], deadline: float | None
    ) -> tuple[_Tail, Snapshot]:
        first, until = dict.fromkeys([TAIL, *letters], 1), clock() + _BOUND_LASTS
        try:
            seen = self._store.peek(self._directory, first, [ITEM], deadline)
            # After the tail: resize() sets the value, and then writes the tail anew.
            bounds = self._store.look(self._config._directory, [LAST], deadline).records
        except LockUnavailable as error:
            error.maybe_applied = False  # nothing was put
            raise
        most = checked_size(bounds[LAST].value["value"]) if bounds else self._maxsize
        record, room = seen.records.get(TAIL), most - seen.counts[ITEM] if most else math.inf
        number = record.value["number"] if record else 0
        return _Tail(number, seen.as_found(TAIL), room, until), seen

    def _touch(self, seen: Snapshot) -> Plan:
        """Plan to write the tail anew, so that producers look what the bound is."""
        record = seen.records.get(TAIL)
        return Plan([Put(TAIL, record.value if record else {"number": 0})], [seen.as_found(TAIL)])

    # Taking

    def _look_for_items(self, most: int, deadline: float | None) -> Snapshot:
        """Return the first items that are ready; before that, put back what was abandoned."""
        while True:
            seen = self._store.peek(self._directory, {READY: most}, [TAKEN, HELD], deadline)
            # A delivery comes and goes with what it has taken. But a session takes it alone.
            if seen.counts[TAKEN] <= seen.counts[HELD] or not self._put_back(deadline):
                return seen

    def _put_back(self, deadline: float | None) -> bool:
        """Put back what was taken by deliveries that have gone; whether there was any."""
        seen = self._store.peek(self._directory, {TAKEN: _ALL, HELD: _ALL}, (), deadline)
        held = set(map(_delivered, _records_of(seen, HELD)))
        gone = [one for one in _records_of(seen, TAKEN) if number_of(one) not in held]
        items = map(QueueItem.of, gone[:MOST_AT_ONCE])
        changes = [change for item in items for change in item.put_back(self.max_deliveries)]
        same = [Exists(one.key, one.revision) for one in gone[:MOST_AT_ONCE]]
        if changes:
            self._store.apply(self._directory, changes, same, deadline)
        return bool(changes)

    def _plan(self, most: int, seen: Snapshot) -> Plan:
        """Plan to take the first items."""
        if self._one_at_a_time:
            most = int(not seen.counts[TAKEN])
        ready = _records_of(seen, READY)[:most]
        taken = [QueueItem.of(record) for record in ready]
        items = [replace(item, attempts=item.attempts + 1) for item in taken]
        changes: list[Change] = [Delete(one.key) for one in ready]
        changes += [Put(key_of(TAKEN, item.id), item.value) for item in items]
        same = [Exists(one.key, one.revision) for one in ready]
        return Plan(changes, same, (items, seen), members=[{"item": item.id} for item in items])

    # Looking

    def _read(self, deadline: float | None = None, *, keys: Collection[str] | None = None) -> Call:
        """Return the step that looks at what the queue has; see Recipe._read()."""
        first, count = {READY: 1, HELD: _ALL}, [ITEM, TAKEN, DEAD]
        peek = partial(self._store.peek, self._directory, first, count)
        return super()._read(deadline, keys=keys) if keys else self._ask(peek, deadline)

    def _describe(self, seen: Snapshot, maxsize: int) -> QueueInfo:
        ready, deliveries = _records_of(seen, READY), map(DeliveryInfo.of, _records_of(seen, HELD))
        held, size = tuple(deliveries), seen.counts[ITEM]
        delayed = sum(one.delayed for one in held)
        # What was abandoned is ready, though it has not been put back yet.
        free = size - min(seen.counts[TAKEN], len(held))
        counts = size, maxsize, free, len(held) - delayed, delayed, seen.counts[DEAD]
        oldest = QueueItem.of(ready[0]).at if ready else None
        return QueueInfo(self.name, self.using, *counts, oldest, held)

    def _find(self, kind: str, most: int, deadline: float | None) -> list[Record]:
        """Return the first records of a kind."""
        return [*self._store.peek(self._directory, {kind: most}, (), deadline).records.values()]

    # Operating

    def _release(self, number: int, token: int, deadline: float | None) -> bool:
        """Delete the delivery of an item that has this token; False if it is over."""
        for record in self._find(HELD, _ALL, deadline):
            if (_delivered(record), record.created) == (number, token):
                delete, same = [Delete(record.key)], [Exists(record.key)]
                return self._store.apply(self._directory, delete, same, deadline) is not None
        return False

    def _purge(self, kind: str, deadline: float | None) -> int | None:
        """Remove some; return how many, None if there are none left."""
        if not (found := self._find(kind, MOST_AT_ONCE, deadline)):
            return None
        same = [Exists(one.key, one.revision) for one in found]
        changes = [Delete(one.key) for one in found]
        done = self._store.apply(self._directory, changes, same, deadline) is not None
        return len(found) if done else 0


def key_of(kind: str, number: int) -> str:
    """Return the key of an item; keys are in the order of the numbers."""
    return f"{kind}{number:020d}"


def number_of(record: Record) -> int:
    """Return the number of the item that a record is of."""
    return int(record.key.rpartition("/")[2])


def _delivered(record: Record) -> int:
    return int(record.value["data"]["item"])


def _records_of(seen: Snapshot, kind: str) -> list[Record]:
    return [record for key, record in seen.records.items() if key.startswith(kind)]


def check_body(body: object) -> None:
    """Raise TypeError or ValueError unless it can be kept, with what is said of it later."""
    largest = QueueItem(0, body, 10**9, datetime.now(UTC), "\N{OPEN LOCK}" * MOST_REASON)
    checked_json("body", body, largest.value)


def check_number(argument: str, several: Sequence[object]) -> None:
    """Raise TypeError or ValueError unless these can be moved in one change."""
    if not isinstance(several, Sized):
        raise TypeError(f"{argument} must be a sequence, not {several!r}")
    if not 1 <= len(several) <= MOST_AT_ONCE:
        raise ValueError(f"{argument} must be 1 to {MOST_AT_ONCE} items, got {len(several)}")


def checked_size(maxsize: object) -> int:
    """Return how many items there may be; TypeError or ValueError for what is no number of them."""
    if isinstance(maxsize, int) and maxsize < 0:
        raise ValueError(f"maxsize must be 0 (no bound) or more, got {maxsize!r}")
    return 0 if maxsize == 0 and maxsize is not False else checked_count("maxsize", maxsize)
