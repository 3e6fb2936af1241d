"""Messages that every subscriber gets, in the order in which they were published.

The directory of a Topic has

- ``head``: the number of the last message, and of the first one that is kept. Each publication
  writes it on the condition that nobody else has: so numbers come one after the other.
- ``m/NUMBER``: a message, put in the same change.

A subscriber looks at ``head`` and at the next few messages by their keys: what else is kept costs
nothing.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django.utils.asyncio import async_unsafe

from distlock.backends.recipe_records import Done, Plan
from distlock.backends.store import (
    MOST_KEYS,
    Absent,
    Change,
    Delete,
    Exists,
    Put,
    Record,
    Snapshot,
)
from distlock.concurrency.steps import Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.recipes.config import MOST_BUSY, moment, outdated, signed
from distlock.recipes.following import Follower, aeach, each
from distlock.recipes.recipe import Recipe, checked_json, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.lease import Kind

_HEAD, _MESSAGE = "head", "m/"
#: Messages that a subscriber reads at once.
_BATCH = 16


@dataclass(frozen=True, slots=True)
class Message:
    """What was published.

    - ``number``: 1, 2, 3 …
    - ``author``, ``at``: who published it, and when, by the clock of that machine.
    - ``missed``: how many messages before this one were removed before the subscriber read them.
    """

    message: Any
    number: int
    author: str
    at: datetime
    missed: int = 0


class Topic(Recipe):
    """Messages for all who subscribe: ``Topic("prices").publish({"gold": 61.4})``.

    Every subscriber gets each message once and in order, however many processes publish. The newest
    ones are kept for those who are slow or away.
    """

    kind = Kind.TOPIC

    def __init__(self, name: str, *, keep: int = 100, using: str = DEFAULT_ALIAS) -> None:
        """Describe a topic; nothing is asked yet.

        - ``name``, ``using``: as of a Lock.
        - ``keep``: how many messages are kept; publish() removes the older ones.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._keep = checked_count("keep", keep)

    def _publish(self, message: Any, *, author: str | None = None) -> Steps[int]:
        """Publish what JSON can say, in 64 KiB at the most; return its number.

        ``author``: as for Config.set(). Raises TypeError or ValueError if it is no JSON, or too
        large. After LockUnavailable with ``maybe_applied`` it may have been published, once, or may
        be yet.
        """
        said = {"message": message, **signed("", author)}
        checked_json("message", message, said)
        plan = partial(self._plan, said)
        done: Done = yield self._change(plan, deadline_of(MOST_BUSY), keys=[_HEAD])
        return int(done.result)

    publish, apublish = twins("publish", _publish)

    @async_unsafe("subscribe() would block the event loop; use `await topic.asubscribe()`.")
    def subscribe(
        self, since: int | None = None, *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Return an iterator of the messages that are published from this call on.

        - ``since``: begin after the message of this number; 0 begins with the oldest that is kept.
        - ``timeout``: end after so many seconds; None goes on for ever, also through outages.

        A subscriber who was slower than ``keep`` messages gets those that are kept, and is told in
        ``Message.missed``. Raises ValueError if ``since`` is no number of a message,
        LockUnavailable if the backend cannot be asked now.
        """
        subscriber = _Subscriber(self, deadline_of(timeout))
        run(subscriber.begin(since))
        return each(subscriber)

    async def asubscribe(
        self, since: int | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Message]:
        """See subscribe(): ``async for message in await topic.asubscribe():``."""
        subscriber = _Subscriber(self, deadline_of(timeout))
        await arun(subscriber.begin(since))
        return aeach(subscriber)

    def _recent(self, count: int = 20) -> Steps[tuple[Message, ...]]:
        """Return the last messages that are kept, the newest first: ``count``, or 100 at most."""
        head: Snapshot = yield self._read(keys=[_HEAD])
        last, first = _numbers(head.records.get(_HEAD))
        until = max(first, last - min(checked_count("count", count), MOST_KEYS) + 1)
        keys = [_key(number) for number in range(last, until - 1, -1)]
        if not keys:
            return ()
        found: Snapshot = yield self._read(keys=keys)
        return tuple(_message_of(found.records[key]) for key in keys if key in found.records)

    recent, arecent = twins("recent", _recent)

    # Inside

    def _plan(self, said: dict[str, Any], found: Snapshot) -> Plan:
        head = found.records.get(_HEAD)
        last, first = _numbers(head)
        number = last + 1
        first, removed = outdated(first, number, self._keep)
        changes: list[Change] = [
            Put(_HEAD, {"number": number, "first": first}),
            Put(_key(number), said),
            *(Delete(_key(one)) for one in removed),
        ]
        return Plan(changes, [Exists(_HEAD, head.revision) if head else Absent(_HEAD)], number)


class _Place(NamedTuple):
    """How far a subscriber has come; replaced as a whole, so no interrupt leaves half of it.

    - ``number``, ``revision``: of the last message that was read. Revisions also grow if the
      servers have lost messages, and numbers are given again; None where it is not known.
    - ``missed``: how many were removed since, before they were read.
    - ``ready``: those that were read, and are still to be delivered.
    - ``seen``: what was read last; None if more can be read at once.
    """

    number: int
    revision: int | None
    missed: int = 0
    ready: tuple[Message, ...] = ()
    seen: Snapshot | None = None


class _Subscriber(Follower[Topic, Message]):
    """What one subscriber has read."""

    def __init__(self, topic: Topic, deadline: float | None) -> None:
        super().__init__(topic, deadline)
        self._place = _Place(0, None)

    def begin(self, since: int | None) -> Steps[None]:
        """Find the place to begin at."""
        if since is not None and (not isinstance(since, int) or isinstance(since, bool)):
            raise TypeError(f"since must be the number of a message, or None, not {since!r}")
        found: Snapshot = yield self.recipe._read(keys=[_HEAD, _key(since or 0)])
        last = found.records.get(_HEAD)
        number, _ = _numbers(last)
        if since is not None:
            if not 0 <= since <= number:
                raise ValueError(f"since must be from 0 to {number}, the last message, got {since}")
            number, last = since, found.records.get(_key(since))
        self._place = _Place(number, last.revision if last else None)

    def next(self) -> Steps[Message | None]:
        """Return the next message; None at the deadline."""
        while not (place := self._place).ready:
            number = place.number
            keys = [_HEAD, *map(_key, range(number, number + _BATCH + 1))]
            found = yield from self._looked(place.seen, keys, watched=_HEAD)
            if found is None:
                return None
            if self._differs(found):
                whole = yield from self.recipe._read_patiently(None, patience=math.inf)
                self._place = self._after_loss(whole)
            else:
                self._place = self._after(found)
        self._place = place._replace(ready=place.ready[1:])
        return place.ready[0]

    def _differs(self, found: Snapshot) -> bool:
        """Return whether the servers show less than before, or another message in its place.

        One that is behind does the former for a moment; in a failover messages may be lost.
        """
        number, revision, *_ = self._place
        last = found.records.get(_key(number))
        other = last is not None and revision is not None and last.revision != revision
        return other or _numbers(found.records.get(_HEAD))[0] < number

    def _after(self, found: Snapshot) -> _Place:
        number, _, missed, *_ = self._place
        last, first = _numbers(found.records.get(_HEAD))
        if first > number + 1:
            return _Place(first - 1, None, missed + first - 1 - number)
        until = min(last, number + _BATCH)
        new = [found.records[_key(one)] for one in range(number + 1, until + 1)]
        return self._read(new, found if until == last else None)

    def _after_loss(self, found: Snapshot) -> _Place:
        """Take what was published since the last message that was read, by the revisions."""
        since = self._place.revision or 0
        new = [
            record
            for key, record in found.records.items()
            if key.startswith(_MESSAGE) and record.revision > since
        ]
        return self._read(sorted(new, key=lambda record: record.key), found)

    def _read(self, new: list[Record], seen: Snapshot | None) -> _Place:
        place = self._place._replace(seen=seen and replace(seen, records={}))
        if not new:
            return place
        first, *others = map(_message_of, new)
        last = new[-1]
        return place._replace(
            number=int(last.key.removeprefix(_MESSAGE)),
            revision=last.revision,
            missed=0,
            ready=(replace(first, missed=place.missed), *others),
        )


def _numbers(head: Record | None) -> tuple[int, int]:
    """Return the number of the last message, and of the first that is kept."""
    return (0, 1) if head is None else (head.value["number"], head.value["first"])


def _key(number: int) -> str:
    return f"{_MESSAGE}{number:020d}"


def _message_of(record: Record) -> Message:
    said, number = record.value, int(record.key.removeprefix(_MESSAGE))
    return Message(said["message"], number, said["author"], moment(said["at"]))
