"""The records of a queue and their keys; and the items whose deliveries have gone.

See queue_records.py.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from distlock.backends.store import (
    MAX_VALUE,
    MOST_KEYS,
    Change,
    Delete,
    Exists,
    Having,
    KeyRange,
    Peek,
    Put,
    Record,
    RecordStore,
)
from distlock.concurrency.clock import clock
from distlock.recipes.cells import json_line
from distlock.recipes.recipe import Recipe, checked_json
from distlock.records.recipe_records import CANCELLED, NOTHING, Plan
from distlock.records.seats import as_datetime, held_key, owner_of
from distlock.types.lease import Kind, Owner
from distlock.types.owners import shortened
from distlock.types.values import Unreadable, checked_count, encoded, escaped, is_flat, text_of

#: The prefixes of the keys of records.
TAIL = "tail"
ITEM, READY, TAKEN, HELD, DEAD = "i/", "i/r/", "i/t/", "h/", "dead/"
#: Of those that were taken: what is delivered again unless it is acknowledged, and what is not.
AGAIN, LAST = "i/t/again/", "i/t/last/"
#: Seconds between two looks for what was abandoned, while other items are ready.
LOOKS_EVERY = 0.25
#: Items that are put, taken or moved in one change. Of the largest ones ZooKeeper takes no more:
#: its requests have 1 MiB at most.
MOST_AT_ONCE = 12
#: Characters that are kept of the reason why an item was put back.
MOST_REASON = 300
#: Of the reason of a failure: characters of the error itself, and how many innermost frames follow.
_MOST_ERROR, _MOST_FRAMES = 200, 3
#: Bytes that an item has beside its body, at most: four for each character of its reason.
_MOST_BESIDE = 4 * MOST_REASON + 300
#: Characters that are kept of the text of an item that cannot be read.
_MOST_TEXT = 10_000
_FIELDS = {"body", "attempts", "at", "reason"}
#: what a record of JSON has in it as it is
_PLAIN = re.compile(r"[a-z0-9.@+-]+")
_NUMBER = re.compile(r"/([0-9]{20})(?:/|$)")


@dataclass(frozen=True, slots=True)
class QueueItem:
    """An item of a queue.

    - ``id``: its number, which grows from item to item.
    - ``body``: what was put.
    - ``attempts``: how many were begun.
    - ``at``: when it was put, by the clock of the machine that did.
    - ``reason``: why it was put back last.
    """

    id: int
    body: Any
    attempts: int
    at: datetime
    reason: str = ""

    @classmethod
    def of(cls, record: Record) -> QueueItem:
        """Return what a record says; of one that cannot be read the text, with the reason."""
        value, number = record.value, number_of(record.key)
        if wrong := why_unreadable(record):
            text = value.text if isinstance(value, Unreadable) else encoded(value)
            return cls(number, text[:_MOST_TEXT], 0, datetime.now(UTC), wrong[:MOST_REASON])
        return cls(number, **{**value, "at": datetime.fromisoformat(value["at"])})

    @property
    def value(self) -> dict[str, Any]:
        at = self.at.isoformat()
        # The attempts come first, see MoveFirst.
        return {"attempts": self.attempts, "body": self.body, "at": at, "reason": self.reason}

    def matches(self, text: str) -> bool:
        """Return whether ``text`` is in the body or the reason, ignoring case, or is the number."""
        body = self.body if isinstance(self.body, str) else json_line(self.body)
        return text.casefold() in f"{body}\n{self.reason}".casefold() or text == str(self.id)

    @staticmethod
    def having(text: str) -> Having | None:
        """Return what finds, among other records, those of items that match a text.

        None if it is empty, or JSON may write it in several ways. A record that begins like an
        item, and cannot be read, is found by its own text only.
        """
        text = text.casefold()
        return Having(text, '{"attempts":') if _PLAIN.fullmatch(text) else None

    def put_back(self, max_deliveries: int) -> Put:
        """Return what puts it to its place, or to the dead letters."""
        kind = DEAD if self.attempts >= max_deliveries else READY
        return Put(key_of(kind, self.id), self.value)


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A delivery that goes on.

    - ``id``: the number of the item.
    - ``token``: the fencing token of the delivery.
    - ``owner``: who has it.
    - ``since``: since when, by the clock of that machine.
    - ``delayed``: nobody has it; it was put back for later.
    """

    id: int
    token: int
    owner: Owner
    since: datetime
    delayed: bool

    @classmethod
    def of(cls, record: Record) -> DeliveryInfo:
        since, data = as_datetime(record.value["since"]), record.value["data"]
        return cls(int(data["item"]), record.created, owner_of(record), since, "delayed" in data)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The items of a queue at one moment.

    ``size`` items are not acknowledged: they are ``ready``, being ``delivered``, or put back for
    later (``delayed``); ``dead`` ones do not count. ``maxsize`` is 0 if there is no bound.
    ``oldest`` is when the first one that is ready was put, by the clock of the machine that did.
    ``deliveries`` are those that go on, and the delayed ones.
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


class TakenKey(NamedTuple):
    """The key of an item that was taken, and what it says."""

    key: str
    number: int
    #: that of the record of its delivery
    held: str
    #: it was the last attempt
    last: bool

    @classmethod
    def of(cls, key: str) -> TakenKey:
        nonce = key.rpartition("/")[2]
        return cls(key, number_of(key), held_key(nonce), key.startswith(LAST))


def key_of(kind: str, number: int) -> str:
    """Return the key of an item; keys are in the order of the numbers."""
    return f"{kind}{number:020d}"


def taken_key(number: int, nonce: str, *, last: bool) -> str:
    """Return the key of an item that is being delivered, or was put back for later."""
    return f"{key_of(LAST if last else AGAIN, number)}/{nonce}"


def number_of(key: str) -> int:
    """Return the number of the item that has a key."""
    found = _NUMBER.search(key)
    assert found is not None, key
    return int(found[1])


def why_unreadable(record: Record) -> str:
    """Return why the record of an item cannot be read; "" if it can."""
    value = record.value
    if isinstance(value, Unreadable):
        return f"it cannot be read: {value.reason}"
    if isinstance(value, dict) and value.keys() == _FIELDS:
        return ""
    return "it cannot be read: it is not an item of a queue"


def put_back(
    store: RecordStore,
    directory: str,
    held: Record,
    deadline: float | None,
    *,
    unseen: bool = False,
) -> Plan:
    """Return what puts an item back to its place, or to the dead letters after its last attempt.

    ``held`` is the record of its delivery. ``unseen``: its consumer had given up before the answer,
    so this was no attempt.
    """
    data, nonce = held.value["data"], held.key.rpartition("/")[2]
    keys = [taken_key(int(data["item"]), nonce, last=last) for last in (False, True)]
    for record in store.look(directory, keys, deadline).records.values():
        item, kind = QueueItem.of(record), DEAD if record.key.startswith(LAST) else READY
        if unseen:
            item, kind = replace(item, attempts=data["attempts"]), READY
        changes: list[Change] = [Delete(record.key), Put(key_of(kind, item.id), item.value)]
        return Plan(changes, [Exists(record.key)])
    return NOTHING


CANCELLED[Kind.QUEUE] = partial(put_back, unseen=True)


class AbandonedItems:
    """Items of one queue whose deliveries have gone, and that are to be delivered again.

    One look lists the first keys, and asks for the deliveries of these. If all of these go on, it
    looks at some keys behind them. The next look goes on from there, round and round: so many
    deliveries that go on do not hide what was abandoned.
    """

    #: What one look lists first: so whatever is among these comes back in the order of its numbers.
    FIRST = KeyRange(AGAIN, MOST_KEYS)

    def __init__(self, queue: Recipe) -> None:
        self._queue = queue
        self._after = ""
        self._looks_at = 0.0

    def listed(self) -> KeyRange | None:
        """Return what the next look lists; None if it is not due, unless nothing is ready."""
        return self.FIRST if clock() >= self._looks_at else None

    def look_again(self, *, at_once: bool) -> None:
        """Say when the next look is due."""
        self._looks_at = 0.0 if at_once else clock() + LOOKS_EVERY

    def find(
        self, keys: Sequence[str] | None, exact: bool, deadline: float | None
    ) -> list[TakenKey]:
        """Return some items that were abandoned, in their order.

        This is one look; ``keys`` are the first ones, if they were listed already. With ``exact``
        it goes on until it finds one, if there is any.
        """
        if keys is None:
            keys = self._queue._keys(self.FIRST, deadline)
        gone = list(self.among(keys, deadline))
        if gone or len(keys) < MOST_KEYS or (exact and not self._are_any_gone(deadline)):
            return gone
        first = keys[-1]
        after = start = max(self._after, first)
        while True:
            keys = self._queue._keys(KeyRange(AGAIN, MOST_KEYS, after), deadline)
            if gone := list(self.among(keys, deadline)):
                # Those that others deliver before it are not looked at again in this round.
                place = list(keys).index(gone[0].key)
                self._after = keys[place - 1] if place else after
                return gone
            ended = len(keys) < MOST_KEYS
            self._after = after = first if ended else keys[-1]
            if not exact or (ended and start == first):
                return []
            if ended:  # the round began in the middle: the second one looks at what is before that
                start = first

    def among(self, keys: Sequence[str], deadline: float | None) -> Iterator[TakenKey]:
        """Yield those of the taken items whose deliveries have gone."""
        rest, queue = map(TakenKey.of, keys), self._queue
        while some := list(islice(rest, MOST_KEYS)):
            held = [one.held for one in some]
            missing = queue._store.missing(queue._directory, held, deadline)
            yield from (one for one in some if one.held in missing)

    def _are_any_gone(self, deadline: float | None) -> bool:
        """Return whether there are fewer deliveries than items that were taken."""
        queue = self._queue
        counts = queue._store.peek(queue._directory, Peek(count=[TAKEN, HELD]), deadline).counts
        return counts[TAKEN] > counts[HELD]


def reason_of(error: BaseException) -> str:
    """Return an error and the last lines of its traceback as a reason, in one line.

    ``ValueError: no address; in send (shop/mail.py:12): raise ValueError("no address"); in …``
    """
    frames = reversed(traceback.extract_tb(error.__traceback__, limit=-_MOST_FRAMES))
    lines = [f"in {at.name} ({shortened(at.filename)}:{at.lineno}): {at.line}" for at in frames]
    what = text_of(error).strip()[:_MOST_ERROR]
    said = " ".join("; ".join([what, *lines]).split())
    return escaped(said)[:MOST_REASON].strip()


def check_body(body: object) -> None:
    """Raise TypeError or ValueError unless it can be stored, with its later texts."""
    with suppress(TypeError, ValueError, RecursionError):  # which tell of the body by itself
        text = encoded(body)
        if len(text.encode()) < MAX_VALUE - _MOST_BESIDE and is_flat(text, body):
            return
    largest = QueueItem(0, body, 10**9, datetime.now(UTC), "\N{OPEN LOCK}" * MOST_REASON)
    checked_json("body", body, largest.value)


def check_number(argument: str, several: Sequence[object]) -> None:
    """Raise TypeError or ValueError unless these can be moved in one change."""
    if not isinstance(several, Sized):
        raise TypeError(f"{argument} must be a sequence, not {several!r}")
    if not 1 <= len(several) <= MOST_AT_ONCE:
        raise ValueError(f"{argument} must be 1 to {MOST_AT_ONCE} items, got {len(several)}")


def checked_letters(letters: Sequence[object]) -> list[QueueItem]:
    """Return items, each of them once; TypeError for what is none."""
    if not isinstance(letters, Sequence):
        raise TypeError(f"letters must be a sequence, not {letters!r}")
    found = dict[int, QueueItem]()
    for one in letters:
        if not isinstance(one, QueueItem):
            raise TypeError(f"letters must be items from dead(), got {one!r}")
        found[one.id] = one
    return [*found.values()]


def checked_size(maxsize: object) -> int:
    """Return how many items there may be; TypeError or ValueError for what is no number of them."""
    if isinstance(maxsize, int) and maxsize < 0:
        raise ValueError(f"maxsize must be 0 (no bound) or more, got {maxsize!r}")
    return 0 if maxsize == 0 and maxsize is not False else checked_count("maxsize", maxsize)
