"""The records of a queue, and how a put, a take and the like change them.

The directory of a queue has

- ``tail``: the number of the last item. Each put writes it again, on the condition that it is as it
  was read: so the order of the numbers is the order of the commits, and there are never too many.
- ``i/r/NUMBER``: an item that is ready to be delivered.
- ``i/t/again/NUMBER/NONCE``, ``i/t/last/NUMBER/NONCE``: an item that was taken, by the delivery of
  this nonce: it is being delivered, or was put back for later. ``last`` if its last attempt began.
- ``h/NONCE``: a delivery, bound to the consumer's session; its data names the item. One that was
  put back for later has a session of its own, which lasts for the delay.
- ``dead/NUMBER``: an item that was put aside: it was put back after its last attempt, or cannot be
  read.

The keys alone say what an item is. One that was taken is being delivered, or delayed, while the
record of its delivery is there. Once that has gone, whatever the reason, the item is ready if it
is to be delivered again, and dead after its last attempt: nobody has to move it before. So what
was abandoned is taken from where it is. Nothing is counted up or down: how many items there are is
how many records there are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from distlock.backends import reading
from distlock.backends.store import (
    Change,
    Condition,
    Delete,
    Exists,
    Having,
    KeyRange,
    MoveFirst,
    Peek,
    Put,
    Record,
    Snapshot,
)
from distlock.concurrency.clock import backoff_until, clock
from distlock.concurrency.steps import Call
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockUnavailable
from distlock.recipes.log import LAST as LAST_ENTRY
from distlock.recipes.log import Config
from distlock.recipes.queue_items import (
    AGAIN,
    DEAD,
    HELD,
    ITEM,
    LAST,
    MOST_AT_ONCE,
    READY,
    TAIL,
    TAKEN,
    AbandonedItems,
    DeliveryInfo,
    QueueInfo,
    QueueItem,
    TakenKey,
    checked_size,
    key_of,
    number_of,
    put_back,
    taken_key,
    why_unreadable,
)
from distlock.recipes.recipe import ALL_RECORDS, Encoder, Recipe, checked_encoder
from distlock.records.recipe_records import Plan
from distlock.records.seat_requests import FIRST_PAUSE, LONGEST_PAUSE
from distlock.types.lease import Claim, Kind, new_nonce
from distlock.types.values import checked_count, checked_name, checked_seconds

#: Seconds for which a producer relies on what it has read of the bound.
BOUND_LASTS = 1.0


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
    """A queue, as its records. Methods with a deadline block, and are steps; see Recipe._ask()."""

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
        encoder: Encoder | None = None,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe a queue; nothing is asked yet.

        - ``name``, ``using``: as for a Lock, but the name is ten characters shorter.
        - ``maxsize``: how many items there may be, those being delivered included; 0 for no bound.
          None is 0, of a mailbox 10. Once resize() has said a number, that holds for all.
        - ``lease``: seconds after which an item is delivered again if the process that took it is
          gone; None for that of the backend. While the process runs, it is renewed.
        - ``max_deliveries``: an item that was taken so often, and not acknowledged, is put aside.
        - ``encoder``: as for Django's JSONField, a subclass of json.JSONEncoder that writes dates,
          decimals and the like. They are delivered as what it has written: texts.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        checked_name(f"{self.kind}:put:{name}")  # those who wait take seats under such a name
        self._maxsize = checked_size(self._default_maxsize if maxsize is None else maxsize)
        self._lease = None if lease is None else checked_seconds("lease", lease)
        self.max_deliveries = checked_count("max_deliveries", max_deliveries)
        self._encoder = checked_encoder(encoder)
        self._config = Config(f"queue:{name}", using=using)
        self._tail: _Tail | None = None
        self._abandoned = AbandonedItems(self)
        #: the last look for items has found some
        self._flows = False

    # Putting

    def _put_items(
        self, bodies: Sequence[Any], letters: Sequence[str], patient: bool, deadline: float | None
    ) -> tuple[list[int] | None, Snapshot | None]:
        """Put items; None if there is no room, or others were faster and it is not ``patient``.

        They take the place of dead letters that have these keys; none is put if one has gone.
        """
        seen, now = None, datetime.now(UTC)
        for pause in backoff_until(deadline, FIRST_PAUSE, LONGEST_PAUSE):
            tail = self._tail
            if tail is None or tail.room < len(bodies) or clock() > tail.until:
                tail, seen = self._look_for_room(len(bodies), letters, deadline)
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
        self, wanted: int, letters: Sequence[str], deadline: float | None
    ) -> tuple[_Tail, Snapshot]:
        peek, until = Peek(dict.fromkeys([TAIL, *letters], 1), [ITEM]), clock() + BOUND_LASTS
        try:
            seen = self._store.peek(self._directory, peek, deadline)
            # After the tail: resize() sets the value, and then writes the tail again.
            bound = self._store.get(self._config._directory, LAST_ENTRY, deadline)
            most = checked_size(bound.value["value"]) if bound else self._maxsize
            room = most - seen.counts[ITEM] if most else math.inf
            if room < wanted:  # some of them may be dead: they make room
                room = most - self._describe(self._see(deadline), most).size
        except LockUnavailable as error:
            error.maybe_applied = False  # nothing was put
            raise
        record = seen.records.get(TAIL)
        number = record.value["number"] if record else 0
        return _Tail(number, seen.unchanged(TAIL), room, until), seen

    def _touch(self, seen: Snapshot) -> Plan:
        """Plan to write the tail again, so that producers read the bound."""
        record = seen.records.get(TAIL)
        return Plan([Put(TAIL, record.value if record else {"number": 0})], [seen.unchanged(TAIL)])

    # Taking

    def _look_for_items(self, most: int, deadline: float | None) -> Snapshot:
        """Return the first items that can be taken: what is ready, and some that was abandoned.

        It looks for abandoned items if nothing else is ready, and else now and then.
        """
        while True:
            seen = self._look_once(most, deadline)
            if seen is None:
                continue
            if not (wrong := [one for one in seen.records.values() if why_unreadable(one)]):
                return seen
            changes: list[Change] = [Delete(one.key) for one in wrong]
            changes += [QueueItem.of(one).put_back(max_deliveries=0) for one in wrong]
            same = [Exists(one.key, one.revision) for one in wrong]
            self._store.apply(self._directory, changes, same, deadline)
            most = MOST_AT_ONCE

    def _look_once(self, most: int, deadline: float | None) -> Snapshot | None:
        """Return what _look_for_items() looks for; None if others have changed it meanwhile."""
        single, abandoned = self._one_at_a_time, self._abandoned
        taken = KeyRange(TAKEN, ALL_RECORDS)
        listed = taken if single else abandoned.listed()
        peek = Peek({READY: most}, listed=listed)
        seen = self._store.peek(self._directory, peek, deadline)
        if single:
            gone = list(abandoned.among(seen.keys, deadline))
            if len(gone) < len(seen.keys):  # something is being delivered, or is to come first
                return replace(seen, records={})
            if gone and {*seen.keys} != {*self._keys(taken, deadline)}:
                return None  # what was put back, even after its last attempt, comes first again
            gone = [one for one in gone if not one.last]
        elif listed or not seen.records:
            gone = abandoned.find(seen.keys if listed else None, not seen.records, deadline)
        else:
            return seen
        ready = [*map(number_of, seen.records)]
        older = bool(gone) and (len(ready) < most or gone[0].number < ready[-1])
        abandoned.look_again(at_once=older or not ready)
        if not older:
            return seen
        keys = [one.key for one in gone[:most]]
        found = self._store.look(self._directory, keys, deadline).records
        if len(found) < len(keys):
            return None
        return replace(seen, records={**seen.records, **found})

    def _plan(self, most: int, begins: bool, seen: Snapshot) -> Plan:
        """Plan to take the first items; ``begins``: their attempts count from now on."""
        records = sorted(seen.records.values(), key=lambda one: number_of(one.key))[:most]
        before = list(map(QueueItem.of, records))
        items = [replace(item, attempts=item.attempts + begins) for item in before]
        members = [{"item": item.id, "attempts": item.attempts} for item in before]
        rest = iter(items)

        def take(claim: Claim) -> list[Change]:
            item = next(rest)  # each member has one, in their order
            last = begins and item.attempts >= self.max_deliveries
            return [Put(taken_key(item.id, claim.nonce, last=last), item.value)]

        changes = [Delete(one.key) for one in records]
        same = [Exists(one.key, one.revision) for one in records]
        return Plan(changes, same, (items, seen), member_changes=take, members=members)

    @property
    def _may_take_unread(self) -> bool:
        """Whether to try that: items come one after the other, and it is no time to look."""
        usual = self._flows and not self._one_at_a_time
        return usual and self._abandoned.listed() is None and self._store.moves_first

    def _plan_unread(self, seen: Snapshot) -> Plan:
        """Plan to take the first item, if nobody has taken it before; its attempt counts.

        One that cannot be read is taken with no attempt.
        """
        mark, moves = new_nonce(), list[MoveFirst]()

        def take(claim: Claim) -> list[Change]:
            key = f"{AGAIN if self.max_deliveries > 1 else LAST}{mark}/{claim.nonce}"
            moves.append(MoveFirst(key, READY, mark, '{"attempts":0,', '{"attempts":1,'))
            return [*moves]

        def found() -> Iterator[QueueItem]:  # is asked when it is done
            for record in [move.moved for move in moves if move.moved is not None]:
                yield replace(QueueItem.of(record), attempts=0 if why_unreadable(record) else 1)

        members = [{"item": mark, "attempts": 0}]
        return Plan(result=(found(), seen), member_changes=take, members=members)

    # Looking

    def _read(self, deadline: float | None = None, *, keys: Collection[str] | None = None) -> Call:
        """Return the step that looks at what the queue has; see Recipe._read()."""
        return super()._read(deadline, keys=keys) if keys else self._ask(self._see, deadline)

    def _see(self, deadline: float | None) -> Snapshot:
        """Return what _describe() needs: all deliveries, all taken keys, the first ready item."""
        peek = Peek({READY: 1, HELD: ALL_RECORDS}, [READY, DEAD], KeyRange(TAKEN, ALL_RECORDS))
        seen = reading.read(self._store, self._directory, deadline, peek=peek)
        again = [one for one in _left_over(seen) if not one.last]
        ready = [key for key in seen.records if key.startswith(READY)]
        if again and again[0].number < min(map(number_of, ready), default=math.inf):
            found = self._store.look(self._directory, [again[0].key], deadline).records
            return replace(seen, records={**found, **seen.records})
        return seen

    def _describe(self, seen: Snapshot, maxsize: int) -> QueueInfo:
        held = [record for key, record in seen.records.items() if key.startswith(HELD)]
        deliveries = tuple(map(DeliveryInfo.of, held))
        delayed, gone = sum(one.delayed for one in deliveries), _left_over(seen)
        last = sum(one.last for one in gone)
        ready, dead = seen.counts[READY] + len(gone) - last, seen.counts[DEAD] + last
        size, living = ready + len(deliveries), len(deliveries) - delayed
        first = next((one for one in seen.records.values() if one.key.startswith(ITEM)), None)
        oldest = None if first is None else QueueItem.of(first).at
        counts = size, maxsize, ready, living, delayed, dead
        return QueueInfo(self.name, self.using, *counts, oldest, deliveries)

    def _items_with(
        self, keys: Sequence[str], having: Having | None, deadline: float | None
    ) -> Mapping[str, Record]:
        """Return the records of items, without some of those that do not have a text."""
        store, directory = self._store, self._directory
        if having is None:
            return store.look(directory, keys, deadline).records
        found = store.read_many([directory], deadline, keys=keys, having=having)[directory].records
        numbered = [key for key in keys if str(number_of(key)) == having.text]
        return {**found, **store.look(directory, numbered, deadline).records} if numbered else found

    def _keys_of_letters(self, numbers: Sequence[int], deadline: float | None) -> list[str]:
        """Return the keys of dead letters."""
        keys = {number: key_of(DEAD, number) for number in numbers}
        found = self._store.look(self._directory, [*keys.values()], deadline).records
        return [
            key if key in found else self._key_of_abandoned(number, deadline) or key
            for number, key in keys.items()
        ]

    def _key_of_abandoned(self, number: int, deadline: float | None) -> str:
        keys = self._keys(KeyRange(f"{key_of(LAST, number)}/", 1), deadline)
        return next((one.key for one in self._abandoned.among(keys, deadline)), "")

    # Operating

    def _release(self, number: int, token: int, deadline: float | None) -> DeliveryInfo | None:
        """Put an item back whose delivery has this token; return that, None if it is over."""
        while True:
            seen = self._store.peek(self._directory, Peek({HELD: ALL_RECORDS}), deadline)
            these = [one for one in seen.records.values() if one.created == token]
            held = next((one for one in these if DeliveryInfo.of(one).id == number), None)
            if held is None:
                return None
            plan = put_back(self._store, self._directory, held, deadline)
            changes, same = [Delete(held.key), *plan.changes], [Exists(held.key), *plan.conditions]
            if self._store.apply(self._directory, changes, same, deadline) is not None:
                return DeliveryInfo.of(held)

    def _purge(self, keys: Sequence[str], deadline: float | None) -> int:
        """Remove items, at most MOST_KEYS; return how many: others may be faster."""
        if keys and keys[0].startswith(TAKEN):
            keys = [one.key for one in self._abandoned.among(keys, deadline)]
        return self._remove(keys, deadline)

    def _remove(self, keys: Sequence[str], deadline: float | None) -> int:
        changes, there = [*map(Delete, keys)], [*map(Exists, keys)]
        if not keys or self._store.apply(self._directory, changes, there, deadline) is not None:
            return len(keys)
        half = len(keys) // 2
        if not half:
            return 0
        return self._remove(keys[:half], deadline) + self._remove(keys[half:], deadline)


def _left_over(seen: Snapshot) -> list[TakenKey]:
    """Return what was taken by deliveries that have gone, where all deliveries were read."""
    return [one for one in map(TakenKey.of, seen.keys) if one.held not in seen.records]
