"""A log of numbered entries. A Config is its last entry, a Topic all of them, one after the other.

The directory of a log has

- ``last``: the last entry: its number, what it says, who put it, when and why; and the number of
  the first entry that is kept. It is put only if nobody else has put one meanwhile.
- ``e/NUMBER``: the same of each entry that is kept, put in the same change.

A follower of a Config looks at the last entry. A subscriber of a Topic looks at it, and at the next
few by their keys: other entries cost nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any
from weakref import ref

from distlock.activity import current_activity
from distlock.backends.reading import is_ahead
from distlock.backends.store import Change, Delete, Put, Record, Snapshot
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockUnavailable, StaleToken
from distlock.locking.base_lock import twins
from distlock.recipes.following import Follower, LastSeen, Watch
from distlock.recipes.recipe import (
    Encoder,
    Recipe,
    checked_encoder,
    checked_json,
    deadline_of,
    encoded_by,
)
from distlock.records.recipe_records import Done, Plan
from distlock.records.seats import as_datetime
from distlock.types.lease import Kind
from distlock.types.owners import current_owner
from distlock.types.values import (
    checked_count,
    checked_flag,
    checked_int,
    checked_seconds,
    checked_text,
)

logger = logging.getLogger("distlock")

LAST = "last"
#: Records that one change removes at most: ``keep`` may have become much smaller.
_MOST_REMOVED = 50
#: Seconds that others may be faster each time, until one who puts without a limit gives up.
MOST_BUSY = 30.0
#: Messages that a subscriber reads at once.
_BATCH = 16


class Log(Recipe):
    """Numbered entries, of which the last ones are kept."""

    def __init__(
        self,
        name: str,
        *,
        keep: int = 100,
        encoder: Encoder | None = None,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe it; nothing is asked yet.

        - ``name``, ``using``: as of a Lock.
        - ``keep``: how many versions or messages are kept; each new one removes the older ones.
        - ``encoder``: as of Django's JSONField, a subclass of json.JSONEncoder that writes dates,
          decimals and the like. They are read as what it has written: texts.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._keep = checked_count("keep", keep)
        self._encoder = checked_encoder(encoder)

    def _append(
        self, said: dict[str, Any], who: str, *, if_version: int | None = None, above: int = 0
    ) -> Steps[Record]:
        """Put an entry; return its record.

        - ``said``: what it says, by argument; if that is too large, errors name the first one.
        - ``who``: if it is empty, what goes on here, see distlock.activity, or host and process.
        - ``if_version``: raise StaleToken unless this is the number of the last entry.
        - ``above``: the entry gets a greater number than this.

        Raises TypeError or ValueError if it is no JSON, or too large. After LockUnavailable with
        ``maybe_applied`` it was put once or not at all, or may be yet.
        """
        owner, argument = current_owner(), next(iter(said))
        said = {**said, argument: encoded_by(self._encoder, argument, said[argument])}
        who = checked_text("who", who) or current_activity() or f"{owner.host}:{owner.pid}"
        said = {**said, "who": who, "at": time.time_ns() // 1000}
        checked_json(argument, said[argument], said)

        def plan(found: Snapshot) -> Plan:
            last, first = _numbers_of(found)
            if if_version not in (None, last):
                raise StaleToken(f"{self!r} has version {last}, and not if_version={if_version}")
            number = max(last, above) + 1
            kept = max(first, min(number - self._keep + 1, first + _MOST_REMOVED))
            entry = {**said, "number": number, "first": kept}
            changes: list[Change] = [Put(LAST, entry), Put(_entry_key(number), entry)]
            changes += [Delete(_entry_key(old)) for old in range(first, kept)]
            return Plan(changes, [found.unchanged(LAST)], entry)

        done: Done = yield self._change(plan, deadline_of(MOST_BUSY), keys=[LAST])
        return Record(LAST, done.result, done.revision or 0, done.revision or 0)


def _entry_key(number: int) -> str:
    """Return the key of an entry; the order of keys is that of numbers."""
    return f"e/{number:020d}"


def _numbers_of(found: Snapshot) -> tuple[int, int]:
    """Return the number of the last entry, and of the first one that is kept."""
    last = found.records.get(LAST)
    return (last.value["number"], last.value["first"]) if last else (0, 1)


def _entries(found: Snapshot) -> list[Record]:
    """Return the entries that were found, in the order of their numbers."""
    return [found.records[key] for key in sorted(found.records) if key != LAST]


@dataclass(frozen=True, slots=True)
class Value:
    """What a Config was set to.

    - ``value``: as set() was given it; the default of get() if it was never set.
    - ``version``: 1, 2, 3 …; 0 if it was never set.
    - ``who``, ``reason``, ``at``: who set it, why, and when, by the clock of that machine.
    - ``stale``: the backend could not be asked, and this is what this process has seen last.
    """

    value: Any
    version: int
    who: str = ""
    reason: str = ""
    at: datetime | None = None
    stale: bool = False


class Config(Log):
    """One value under a name, the same in all processes: ``Config("mailer").get().value``.

    It is anything that JSON can say, in 64 KiB at most. Each ``set()`` gives it the next
    version, on the condition that nobody else has meanwhile: so versions come one after the other,
    and each is in the history for a time.
    """

    kind = Kind.CONFIG

    def getting(
        self, default: Any = None, *, stale: bool = True, max_age: float | None = None
    ) -> Steps[Value]:
        """Return the value as it is now; one of version 0 with ``default`` if it was never set.

        - ``max_age``: seconds. Ask nobody if this process saw the value no longer ago than that,
          by get() or by a watch. None asks, unless a watch() of this process follows the value:
          then what that has seen is returned. 0 asks in any case.
        - ``stale``: if the backend cannot be asked, return what this process has seen last, with
          ``stale=True`` in it. False raises LockUnavailable then, and relies on no watch.

        LockUnavailable if it has seen none, TypeError or ValueError that names the argument.
        """
        checked_flag("stale", stale)
        if max_age not in (None, 0):
            checked_seconds("max_age", max_age)
        known, at = _known(self.using, self.name), clock()
        lasts = 2 * self._backend.pause if stale and max_age is None else 0.0
        if seen := known.without_asking(max_age or 0.0, lasts):
            return _value_of(seen[0], default)
        try:
            found: Snapshot = yield self._read(keys=[LAST])
        except LockUnavailable:
            if not stale or known.last is None:
                raise
            return replace(_value_of(known.last), stale=True)
        record = found.records.get(LAST)
        if not is_ahead():
            known.note(record, at)
        return _value_of(record, default)

    get, aget = twins("get", getting)

    def _set(
        self, value: Any, *, if_version: int | None = None, reason: str = "", who: str = ""
    ) -> Steps[int]:
        """Set the value for all processes; return its version.

        - ``value``: anything that JSON, or the ``encoder``, can say, in 64 KiB at most.
        - ``if_version``: set it only if this is its version now, 0 for one that was never set. Of
          several who change the same version one succeeds. Without it the last one wins.
        - ``reason``: why, for people.
        - ``who``: who did it; by default what goes on here (distlock.activity), or this process.

        It is also written to the audit log, there by the system's user unless ``who`` is given.

        Raises StaleToken, with nothing changed, if it has another version; TypeError or ValueError
        if it is no JSON, or too large. After LockUnavailable with ``maybe_applied`` it may have
        been set or not: look at the version and at who set it, or at the history.
        """
        version = yield from self.setting(value, if_version, reason, who)
        self._record("set", f"Set: version {version}.", reason, who)
        return version

    set, aset = twins("set", _set)

    def setting(
        self, value: Any, if_version: int | None = None, reason: str = "", who: str = ""
    ) -> Steps[int]:
        """See set(), but leave the audit log to the caller."""
        if if_version is not None:
            checked_int("if_version", if_version)
        said = {"value": value, "reason": checked_text("reason", reason)}
        # Servers may have lost a version that this process has seen: another one gets its number
        # from nobody who knows that.
        known, at = _known(self.using, self.name), clock()
        above = known.last.value["number"] if known.last else 0
        record = yield from self._append(said, who, if_version=if_version, above=above)
        known.note(record, at)
        return _value_of(record).version

    def _history(self) -> Steps[tuple[Value, ...]]:
        """Return the versions that are kept, the newest one first. LockUnavailable."""
        return tuple(map(_value_of, reversed(_entries((yield self._read())))))

    history, ahistory = twins("history", _history)

    def _rollback(
        self, version: int, *, if_version: int | None = None, reason: str = "", who: str = ""
    ) -> Steps[int]:
        """Set the value to what it was in a version; return the new version, which this makes.

        ``version`` is the number of the old one. Raises ValueError if it is not kept any more; the
        rest is as for set().
        """
        key = _entry_key(checked_int("version", version))
        found: Snapshot = yield self._read(keys=[key])
        if key not in found.records:
            raise ValueError(f"version {version} of {self!r} is not kept; see history()")
        value, why = found.records[key].value["value"], reason or f"rollback to version {version}"
        new = yield from self.setting(value, if_version, why, who)
        self._record("rollback", f"Rolled back to version {version}: version {new}.", reason, who)
        return new

    rollback, arollback = twins("rollback", _rollback)

    def changes(self, timeout: float | None = None) -> Follower[Value]:
        """Yield the value as it is, if there is one, and each later one, for ``timeout`` seconds.

        Of values that are set faster than they are taken, some are left out, but never the last.
        It goes on through outages, and no older value follows a newer one: except if the servers
        have lost the newer one, for example in a failover.
        """
        return _ConfigFollower(self, deadline_of(timeout))

    achanges = changes

    def watch(self, callback: Callable[[Value], object]) -> Watch:
        """Call ``callback(value)`` with the value as it is, and after each change: see changes().

        Keep what is returned: it ends when that is closed, left as a ``with`` block, or collected
        as garbage. Each watch has a thread, so a slow callback delays no other; it is called again
        with the value of that moment. Its errors are logged. In the child of a fork the watch goes
        on, and begins with the value as it is.

        Raises TypeError unless the callback is a plain function, NotSupported without a store.
        """
        return Watch(partial(_ConfigFollower, self), callback)


class _ConfigFollower(Follower[Value]):
    """The state of a follower of a Config."""

    keys = (LAST,)
    #: the revision of the value that was reported last
    _revision = 0
    #: since when the servers have shown an older one
    _older_since = math.inf

    def _news(self, snapshot: Snapshot) -> Iterator[Value]:
        """Return the value if it is another one, and remember when it was looked at.

        A value older than the last one comes from a server that is behind: so it is reported only
        after a lease, because then the newer one is lost.
        """
        known = _known(self.recipe.using, self.recipe.name)
        known.note(snapshot.records.get(LAST), self.asked_at)
        if self.is_watch:
            known.watch = ref(self)
        for record in snapshot.records.values():  # the last entry, once there is one
            now, older = clock(), record.revision < self._revision
            self._older_since = min(self._older_since, now) if older else math.inf
            lost = now >= self._older_since + self.recipe._backend.settings.lease
            if lost:
                logger.warning("%r: the servers have lost its newest version", self.recipe)
            if lost or record.revision > self._revision:
                self._revision = record.revision
                yield _value_of(record)


@lru_cache(maxsize=1000)
def _known(using: str, name: str) -> LastSeen:
    """Return what this process has seen of a value."""
    return LastSeen()


def forget_values() -> None:
    """Forget what this process has seen of all values: a test that ends removes them."""
    _known.cache_clear()


def _value_of(record: Record | None, default: Any = None) -> Value:
    if record is None:
        return Value(default, 0)
    said = record.value
    value = deepcopy(said["value"])  # the caller may change it, and we remember the record
    return Value(value, said["number"], said["who"], said["reason"], as_datetime(said["at"]))


@dataclass(frozen=True, slots=True)
class Message:
    """What was published.

    - ``message``: as publish() was given it.
    - ``number``: 1, 2, 3 …
    - ``who``, ``at``: who published it, and when, by the clock of that machine.
    - ``missed``: how many messages before this one were removed before the subscriber read them.
    """

    message: Any
    number: int
    who: str
    at: datetime
    missed: int = 0


class Topic(Log):
    """Messages for all who subscribe: ``Topic("prices").publish({"gold": 61.4})``.

    Every subscriber gets each message once and in order, however many processes publish. The newest
    ones are kept for those who are slow or away.
    """

    kind = Kind.TOPIC

    def _publish(self, message: Any, *, who: str = "") -> Steps[int]:
        """Publish a ``message``: what JSON can say, in 64 KiB at most; return its number.

        ``who`` and errors: as for Config.set(). After LockUnavailable with ``maybe_applied`` it
        may have been published, once, or may be yet.
        """
        return int((yield from self._append({"message": message}, who)).value["number"])

    publish, apublish = twins("publish", _publish)

    def _subscribe(
        self, since: int | None = None, *, timeout: float | None = None
    ) -> Steps[Follower[Message]]:
        """Return an iterator of the messages that are published from this call on.

        For a task: ``async for message in await topic.asubscribe()``.

        - ``since``: begin after the message of this number; 0 begins with the oldest that is kept.
        - ``timeout``: seconds after which it ends; None goes on forever, also through outages.

        A subscriber more than ``keep`` messages behind gets those that are kept, with the number of
        the others in ``Message.missed``. Raises ValueError if ``since`` is not the number of a
        message, LockUnavailable if the backend does not answer.
        """
        key = LAST if since is None else _entry_key(checked_int("since", since))
        found: Snapshot = yield self._read(keys=[LAST, key])
        last, _ = _numbers_of(found)
        number = last if since is None else since
        if not 0 <= number <= last:
            raise ValueError(f"since must be from 0 to {last}, the last message, got {since}")
        read = found.records.get(key)
        return _Subscriber(self, deadline_of(timeout), number, read.revision if read else 0)

    subscribe, asubscribe = twins("subscribe", _subscribe)

    def _history(self) -> Steps[tuple[Message, ...]]:
        """Return the messages that are kept, the newest one first. LockUnavailable."""
        return tuple(map(_message_of, reversed(_entries((yield self._read())))))

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
        found = yield from self._looked(self._seen, [LAST, *map(_entry_key, few)])
        if found is None:
            return None
        read, (_, first) = found.records.get(_entry_key(self._number)), _numbers_of(found)
        # Servers show less while they are behind, or when they have lost what was read.
        if (read.revision if read else 0) != self._revision or first > self._number + 1:
            return (yield from self._looked(None))
        return found

    def _news(self, snapshot: Snapshot) -> Iterator[Message]:
        """Return the messages that were not read before."""
        before = self._revision
        for record in _entries(snapshot):
            if record.revision > self._revision:
                number = record.value["number"]
                yield _message_of(record, max(0, number - self._number - 1))
                self._number, self._revision = number, record.revision
        if self._revision > before and self._number < _numbers_of(snapshot)[0]:
            self._seen = None  # more can be read at once


def _message_of(record: Record, missed: int = 0) -> Message:
    said = record.value
    return Message(said["message"], said["number"], said["who"], as_datetime(said["at"]), missed)
