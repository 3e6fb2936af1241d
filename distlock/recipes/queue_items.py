"""What the records of a queue say of its items, and what is told of them.

The directory of a queue has

- ``tail``: the number of the last item, and how many there may be, if resize() has said so. Each
  put writes it anew, on the condition that it is as it was read: so the order of the numbers is the
  order of the commits, and there are never too many.
- ``i/r/NUMBER``: an item that is ready to be delivered.
- ``i/t/NUMBER``: an item that was taken: it is being delivered, or was put back for later.
- ``h/NONCE``: a delivery, bound to the consumer's session; its data names the item. One that was
  put back for later has a session of its own, which lasts for the delay.
- ``dead/NUMBER``: an item that was delivered ``max_deliveries`` times, and never acknowledged.

What was taken goes back to its place when the record of its delivery has gone, whatever the reason.
Nothing is counted up or down: how many items there are is how many records there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from distlock.backends.store import Change, Delete, Put, Record, Snapshot
from distlock.recipes.recipe import checked_json

#: Characters that are kept of the reason why an item was put back.
MOST_REASON = 200
#: What the keys of records begin with.
TAIL = "tail"
ITEM, READY, TAKEN, HELD, DEAD = "i/", "i/r/", "i/t/", "h/", "dead/"


def key_of(kind: str, number: int) -> str:
    """Return the key of an item; keys are in the order of the numbers."""
    return f"{kind}{number:020d}"


def number_of(key: str) -> int:
    """Return what key_of() was given."""
    return int(key.rpartition("/")[2])


def records_of(seen: Snapshot, kind: str) -> list[Record]:
    """Return the records of a kind, in their order."""
    return [record for key, record in seen.records.items() if key.startswith(kind)]


@dataclass(frozen=True, slots=True)
class Item:
    """What the record of an item says: when it was put (microseconds), how often it was taken."""

    body: Any
    attempts: int
    at: int
    #: why it was put back last
    reason: str = ""

    @classmethod
    def of(cls, record: Record) -> Item:
        said: Mapping[str, Any] = record.value
        return cls(said["body"], said["attempts"], said["at"], said.get("reason", ""))

    @property
    def value(self) -> dict[str, Any]:
        said = {"body": self.body, "attempts": self.attempts, "at": self.at}
        return {**said, "reason": self.reason} if self.reason else said

    def check(self) -> None:
        """Raise TypeError or ValueError unless it can be kept, with what is said of it later."""
        largest = replace(self, attempts=10**9, reason="\N{OPEN LOCK}" * MOST_REASON)
        checked_json("body", self.body, largest.value)

    @property
    def put_at(self) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.at)

    def taken(self) -> Item:
        """Return what the record says when the item is taken once more."""
        return replace(self, attempts=self.attempts + 1)

    def untaken(self) -> Item:
        """Return what the record says when nobody has seen the item after all."""
        return replace(self, attempts=self.attempts - 1)

    def put_back(self, number: int, max_deliveries: int) -> list[Change]:
        """Return what moves it from the taken ones back to its place, or to the dead letters."""
        kind = DEAD if self.attempts >= max_deliveries else READY
        return [Delete(key_of(TAKEN, number)), Put(key_of(kind, number), self.value)]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that was delivered too often; ``reason`` says why the last one had put it back."""

    id: int
    body: Any
    attempts: int
    at: datetime
    reason: str

    @classmethod
    def of(cls, record: Record) -> DeadLetter:
        item = Item.of(record)
        return cls(number_of(record.key), item.body, item.attempts, item.put_at, item.reason)


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A delivery that goes on: of which item, to whom, and since when by the clock of its machine.

    ``delayed``: nobody has it; it was put back for later.
    """

    id: int
    token: int
    host: str
    pid: int
    thread: str
    since: datetime
    delayed: bool

    @classmethod
    def of(cls, record: Record) -> DeliveryInfo:
        said, data = record.value, record.value["data"]
        since = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=said["since"])
        return cls(
            data["item"],
            record.created,
            said["host"],
            said["pid"],
            said["thread"],
            since,
            bool(data.get("delayed")),
        )


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
