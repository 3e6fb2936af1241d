"""Messages that every subscriber gets, in the order in which they were published.

They are the entries of a log, see distlock.recipes.log. A subscriber looks at the last entry, and
at the next few by their keys: what else is kept costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from distlock.backends.store import Record, Snapshot
from distlock.concurrency.steps import Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.core.section import refuse_in_event_loop
from distlock.recipes.following import Follower, aeach, each
from distlock.recipes.log import LAST, Log, entries, entry_key, moment_of, numbers_of
from distlock.recipes.recipe import deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_int
from distlock.types.lease import Kind

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


class Topic(Log):
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
        super().__init__(name, keep, using)

    def _publish(self, message: Any, *, author: str | None = None) -> Steps[int]:
        """Publish what JSON can say, in 64 KiB at the most; return its number.

        ``author``: as for Config.set(). Raises TypeError or ValueError if it is no JSON, or too
        large. After LockUnavailable with ``maybe_applied`` it may have been published, once, or may
        be yet.
        """
        record = yield from self._append("message", message, author=author)
        return int(record.value["number"])

    publish, apublish = twins("publish", _publish)

    @refuse_in_event_loop
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
        return each(run(self._subscribing(since, timeout)))

    async def asubscribe(
        self, since: int | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Message]:
        """See subscribe(): ``async for message in await topic.asubscribe():``."""
        return aeach(await arun(self._subscribing(since, timeout)))

    def _recent(self, count: int = 20) -> Steps[tuple[Message, ...]]:
        """Return the last messages that are kept, the newest first: ``count`` at the most."""
        most = checked_count("count", count)
        return tuple(map(_message_of, entries((yield self._read()))[: -most - 1 : -1]))

    recent, arecent = twins("recent", _recent)

    def _subscribing(self, since: int | None, timeout: float | None) -> Steps[_Subscriber]:
        key = LAST if since is None else entry_key(checked_int("since", since))
        found: Snapshot = yield self._read(keys=[LAST, key])
        last, _ = numbers_of(found)
        number = last if since is None else since
        if not 0 <= number <= last:
            raise ValueError(f"since must be from 0 to {last}, the last message, got {since}")
        read = found.records.get(key)
        return _Subscriber(self, deadline_of(timeout), number, read.revision if read else 0)


class _Subscriber(Follower[Topic, Message]):
    """One who has read the messages up to a number.

    Revisions also grow if the servers have lost messages, and numbers are given again. So that of
    the message which was read last tells what is new; it is 0 if that was removed before.
    """

    def __init__(self, topic: Topic, deadline: float | None, number: int, revision: int) -> None:
        super().__init__(topic, deadline)
        self._number, self._revision = number, revision

    def _looking(self) -> Steps[Snapshot | None]:
        """Return the last entry and the next few; all of them if these are not the next ones."""
        number, next_ones = self._number, range(self._number, self._number + _BATCH + 1)
        found = yield from self._looked(self._seen, [LAST, *map(entry_key, next_ones)], LAST)
        if found is None:
            return None
        (last, first), read = numbers_of(found), found.records.get(entry_key(number))
        is_another = read is not None and read.revision != self._revision
        # Servers show less while they are behind, or when they have lost what was read.
        if is_another or last < number or first > number + 1:
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
    return Message(said["value"], said["number"], said["author"], moment_of(record), missed)
