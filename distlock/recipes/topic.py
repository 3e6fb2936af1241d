"""A log of numbered entries; and messages that every subscriber gets in order, which are such.

The directory of a log, which is that of a Topic or of a Config, has

- ``last``: the last entry: its number, what it says, who put it, when and why; and the number of
  the first entry that is kept. It is put on the condition that nobody else has put another one: so
  numbers come one after the other.
- ``e/NUMBER``: the same of each entry that is kept, put in the same change.

A subscriber looks at the last entry, and at the next few by their keys: what else is kept costs
nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from distlock.activity import current_activity
from distlock.backends.recipe_records import Done, Plan
from distlock.backends.seats import moment
from distlock.backends.store import Change, Delete, Put, Record, Snapshot
from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import StaleToken
from distlock.recipes.following import Follower
from distlock.recipes.recipe import Recipe, checked_json, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_int, checked_text
from distlock.types.lease import Kind
from distlock.types.owners import current_owner

LAST = "last"
#: Records that one change removes at the most: ``keep`` may have become much smaller.
_MOST_REMOVED = 50
#: Seconds that others may be faster each time, until one who puts without a limit gives up.
MOST_BUSY = 30.0
#: Messages that a subscriber reads at once.
_BATCH = 16


class Log(Recipe):
    """Numbered entries, of which the last ones are kept."""

    def __init__(self, name: str, *, keep: int = 100, using: str = DEFAULT_ALIAS) -> None:
        """Describe it; nothing is asked yet.

        - ``name``, ``using``: as of a Lock.
        - ``keep``: how many versions or messages are kept; each new one removes the older ones.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._keep = checked_count("keep", keep)

    def _append(
        self, said: dict[str, Any], author: str, *, if_version: int | None = None, above: int = 0
    ) -> Steps[Record]:
        """Put an entry; return its record.

        - ``said``: what it says, by argument; if that is too large, errors name the first one.
        - ``author``: if it is empty, what goes on here, see distlock.activity, or host and process.
        - ``if_version``: raise StaleToken unless this is the number of the last entry.
        - ``above``: the entry gets a greater number than this.

        Raises TypeError or ValueError if it is no JSON, or too large. After LockUnavailable with
        ``maybe_applied`` it was put once or not at all, or may be yet.
        """
        owner, argument = current_owner(), next(iter(said))
        author = checked_text("author", author) or current_activity() or f"{owner.host}:{owner.pid}"
        said = {**said, "author": author, "at": time.time_ns() // 1000}
        checked_json(argument, said[argument], said)

        def plan(found: Snapshot) -> Plan:
            last, first = numbers_of(found)
            if if_version not in (None, last):
                raise StaleToken(f"{self!r} has version {last}, and not if_version={if_version}")
            number = max(last, above) + 1
            kept = max(first, min(number - self._keep + 1, first + _MOST_REMOVED))
            entry = {**said, "number": number, "first": kept}
            changes: list[Change] = [Put(LAST, entry), Put(entry_key(number), entry)]
            changes += [Delete(entry_key(old)) for old in range(first, kept)]
            return Plan(changes, [found.as_found(LAST)], entry)

        done: Done = yield self._change(plan, deadline_of(MOST_BUSY), keys=[LAST])
        assert done.revision is not None, "each plan has changes"
        return Record(LAST, done.result, done.revision, done.revision)


def entry_key(number: int) -> str:
    """Return the key of an entry; the order of keys is that of numbers."""
    return f"e/{number:020d}"


def numbers_of(found: Snapshot) -> tuple[int, int]:
    """Return the number of the last entry, and of the first one that is kept."""
    last = found.records.get(LAST)
    return (last.value["number"], last.value["first"]) if last else (0, 1)


def entries(found: Snapshot) -> list[Record]:
    """Return the entries that were found, in the order of their numbers."""
    return [found.records[key] for key in sorted(found.records) if key != LAST]


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


class Topic(Log):
    """Messages for all who subscribe: ``Topic("prices").publish({"gold": 61.4})``.

    Every subscriber gets each message once and in order, however many processes publish. The newest
    ones are kept for those who are slow or away.
    """

    kind = Kind.TOPIC

    def _publish(self, message: Any, *, author: str = "") -> Steps[int]:
        """Publish what JSON can say, in 64 KiB at the most; return its number.

        ``author``: as for Config.set(). Raises TypeError or ValueError if it is no JSON, or too
        large. After LockUnavailable with ``maybe_applied`` it may have been published, once, or may
        be yet.
        """
        record = yield from self._append({"message": message}, author)
        return int(record.value["number"])

    publish, apublish = twins("publish", _publish)

    def _subscribe(
        self, since: int | None = None, *, timeout: float | None = None
    ) -> Steps[Follower[Message]]:
        """Return an iterator of the messages that are published from this call on.

        For a task: ``async for message in await topic.asubscribe()``.

        - ``since``: begin after the message of this number; 0 begins with the oldest that is kept.
        - ``timeout``: end after so many seconds; None goes on for ever, also through outages.

        A subscriber who was slower than ``keep`` messages gets those that are kept, and is told in
        ``Message.missed``. Raises ValueError if ``since`` is no number of a message,
        LockUnavailable if the backend cannot be asked now.
        """
        key = LAST if since is None else entry_key(checked_int("since", since))
        found: Snapshot = yield self._read(keys=[LAST, key])
        last, _ = numbers_of(found)
        number = last if since is None else since
        if not 0 <= number <= last:
            raise ValueError(f"since must be from 0 to {last}, the last message, got {since}")
        read = found.records.get(key)
        return _Subscriber(self, deadline_of(timeout), number, read.revision if read else 0)

    subscribe, asubscribe = twins("subscribe", _subscribe)

    def _history(self) -> Steps[tuple[Message, ...]]:
        """Return the messages that are kept, the newest one first. LockUnavailable."""
        return tuple(map(_message_of, reversed(entries((yield self._read())))))

    history, ahistory = twins("history", _history)


class _Subscriber(Follower[Message]):
    """One who has read the messages up to a number.

    Revisions also grow if the servers have lost messages, and numbers are given again. So that of
    the message which was read last tells what is new; it is 0 if that was removed before.
    """

    def __init__(self, topic: Topic, deadline: float | None, number: int, revision: int) -> None:
        super().__init__(topic, deadline)
        self._number, self._revision = number, revision

    def _looking(self) -> Steps[Snapshot | None]:
        """Return the last entry and the next few; all of them if these are not the next ones."""
        few = range(self._number, self._number + _BATCH + 1)
        found = yield from self._looked(self._seen, [LAST, *map(entry_key, few)])
        if found is None:
            return None
        (last, first), read = numbers_of(found), found.records.get(entry_key(self._number))
        is_another = read is not None and read.revision != self._revision
        # Servers show less while they are behind, or when they have lost what was read.
        if is_another or last < self._number or first > self._number + 1:
            return (yield from self._looked(None))
        return found

    def _news(self, snapshot: Snapshot) -> list[Message]:
        """Return the messages that were not read before."""
        messages = []
        for record in entries(snapshot):
            if record.revision > self._revision:
                number = record.value["number"]
                messages.append(_message_of(record, max(0, number - self._number - 1)))
                self._number, self._revision = number, record.revision
        if messages and self._number < numbers_of(snapshot)[0]:
            self._seen = None  # more can be read at once
        return messages


def _message_of(record: Record, missed: int = 0) -> Message:
    said = record.value
    return Message(said["message"], said["number"], said["author"], moment(said["at"]), missed)
