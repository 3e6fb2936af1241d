"""A configuration value that is the same in all processes: versions, history, compare and set.

The directory of a Config has

- ``value``: the value as it is now, its version, who set it, when and why, and from which version
  on there is a history. It is read alone, and each change is made on its revision.
- ``v/VERSION``: the same of each version that is kept, written in the change that set it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.utils.asyncio import async_unsafe

from distlock.activity import current_activity
from distlock.backends.recipe_records import Decide, Done, Plan
from distlock.backends.store import Absent, Change, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockUnavailable, StaleToken
from distlock.recipes.following import Follower, Watch, aeach, each
from distlock.recipes.recipe import Recipe, checked_json, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_callback, checked_flag, checked_text
from distlock.types.lease import Kind
from distlock.types.owners import current_owner

logger = logging.getLogger("distlock")

_VALUE, _VERSION = "value", "v/"
#: Records that one change removes at the most: ``keep`` may have become much smaller.
_MOST_REMOVED = 50
#: Seconds that others may be faster each time, until one who writes without a limit gives up.
MOST_BUSY = 30.0
#: Values that this process remembers, of names it has read or set last.
_MOST_KNOWN = 1000


@dataclass(frozen=True, slots=True)
class Value:
    """What a Config was set to.

    - ``version``: 1, 2, 3 …; 0 if it was never set.
    - ``author``, ``comment``, ``at``: who set it, why, and when, by the clock of that machine.
    - ``stale``: the backend could not be asked, and this is what this process has seen last.
    """

    value: Any
    version: int
    author: str = ""
    comment: str = ""
    at: datetime | None = None
    stale: bool = False


class Config(Recipe):
    """One value under a name, the same in all processes: ``Config("mailer").get().value``.

    It is anything that JSON can say, in 64 KiB at the most. Each ``set()`` gives it the next
    version, on the condition that nobody else has meanwhile: so versions come one after the other,
    and each is in the history for a time.
    """

    kind = Kind.CONFIG

    def __init__(self, name: str, *, keep: int = 50, using: str = DEFAULT_ALIAS) -> None:
        """Describe a configuration value; nothing is asked yet.

        - ``name``, ``using``: as of a Lock.
        - ``keep``: how many versions there are in the history; set() removes the older ones.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._keep = checked_count("keep", keep)

    def _get(self, default: Any = None, *, stale: bool = True) -> Steps[Value]:
        """Return the value as it is now; one of version 0 with ``default`` if it was never set.

        If the backend cannot be asked, what this process has seen last is returned, with
        ``stale=True`` in it. LockUnavailable if it has seen none, or with ``stale=False``.
        """
        return self.getting(default, stale=stale)

    get, aget = twins("get", _get)

    def setting(
        self,
        value: Any,
        *,
        if_version: int | None = None,
        comment: str = "",
        author: str | None = None,
    ) -> Steps[int]:
        """Set the value for all processes; return its version.

        - ``if_version``: set it only if this is its version now, 0 for one that was never set. Of
          several who change the same version one succeeds. Without it the last one wins.
        - ``comment``: why, for people.
        - ``author``: who, for people; None says what goes on here (see ``distlock.activity``), or
          else host and process.

        Raises StaleToken, with nothing changed, if it has another version; TypeError or ValueError
        if it is no JSON, or too large. After LockUnavailable with ``maybe_applied`` it may have
        been set or not: look at the version and the author, or at the history.
        """
        said = {"value": value, **signed(comment, author)}
        checked_json("value", value, said)
        plan = partial(self._plan, said, _checked_version("if_version", if_version))
        return (yield from self._written(plan, [_VALUE]))

    set, aset = twins("set", setting)

    def _history(self) -> Steps[tuple[Value, ...]]:
        """Return the versions that are kept, the newest one first. LockUnavailable."""
        snapshot: Snapshot = yield self._read()
        kept = [one for key, one in snapshot.records.items() if key.startswith(_VERSION)]
        kept.sort(key=lambda record: record.key, reverse=True)
        return tuple(map(_value_of, kept))

    history, ahistory = twins("history", _history)

    def _rollback(
        self,
        version: int,
        *,
        if_version: int | None = None,
        comment: str = "",
        author: str | None = None,
    ) -> Steps[int]:
        """Set the value to what it was in a version; return the new version, which this makes.

        Raises ValueError if that version is not kept any more; the rest is as for set().
        """
        key = _version_key(_checked_version("version", version) or 0)
        unless = _checked_version("if_version", if_version)
        said = signed(comment or f"rollback to version {version}", author)

        def plan(found: Snapshot) -> Plan:
            kept = found.records.get(key)
            if kept is None:
                raise ValueError(
                    f"version {version} of config {self.name!r} on {self.using!r} is not kept: see"
                    " history() for those that are"
                )
            return self._plan({"value": kept.value["value"], **said}, unless, found)

        return (yield from self._written(plan, [_VALUE, key]))

    rollback, arollback = twins("rollback", _rollback)

    @async_unsafe("changes() would block the event loop; use `async for` with achanges().")
    def changes(self, timeout: float | None = None) -> Iterator[Value]:
        """Yield the value as it is, if there is one, and each later one, for ``timeout`` seconds.

        Of values that are set faster than they are taken, some are left out, but never the last.
        It goes on through outages, and no older value follows a newer one: except if the servers
        have lost the newer one, for example in a failover.
        """
        return each(_Follower(self, deadline_of(timeout)))

    def achanges(self, timeout: float | None = None) -> AsyncIterator[Value]:
        """See changes()."""
        return aeach(_Follower(self, deadline_of(timeout)))

    def watch(self, callback: Callable[[Value], object]) -> Watch:
        """Call ``callback(value)`` with the value as it is, and after each change: see changes().

        Keep what is returned: it ends when that is closed, left as a ``with`` block, or collected
        as garbage. Each watch has a thread, so a slow callback delays no other; it is called again
        with the value of that moment. Its errors are logged. In the child of a fork the watch goes
        on, and begins with the value as it is.

        Raises TypeError unless the callback is a plain function, NotSupported where no records are
        kept.
        """
        checked_callback("callback", callback)
        if callback is None or self._store is None:  # the latter raises NotSupported
            raise TypeError("callback must be callable, not None")
        return Watch(partial(_Follower, self), callback)

    # Inside

    def getting(
        self, default: Any = None, *, stale: bool = True, deadline: float | None = None
    ) -> Steps[Value]:
        """See get()."""
        checked_flag("stale", stale)
        try:
            snapshot: Snapshot = yield self._read(deadline, keys=[_VALUE])
        except LockUnavailable:
            known = _known.get((self.using, self.name))
            if known is None or not stale:
                raise
            return replace(_value_of(known), stale=True)
        record = snapshot.records.get(_VALUE)
        return Value(default, 0) if record is None else self._seen(record)

    def _written(self, plan: Decide, keys: Sequence[str]) -> Steps[int]:
        done: Done = yield self._change(plan, deadline_of(MOST_BUSY), keys=keys)
        assert done.revision is not None, "each plan has changes"
        self._seen(Record(_VALUE, done.result, done.revision, done.revision))
        return int(done.result["version"])

    def _plan(self, said: dict[str, Any], if_version: int | None, found: Snapshot) -> Plan:
        record = found.records.get(_VALUE)
        before = {"version": 0, "first": 1} if record is None else record.value
        if if_version not in (None, before["version"]):
            raise StaleToken(
                f"config {self.name!r} on {self.using!r} has version {before['version']}, and not"
                f" if_version={if_version}: it was not set"
            )
        # Servers may have lost a version that this process has seen: another one gets its number
        # from nobody who knows that.
        known = _known.get((self.using, self.name))
        version = max(before["version"], known.value["version"] if known else 0) + 1
        first, removed = outdated(before["first"], version, self._keep)
        said = {**said, "version": version}
        changes: list[Change] = [
            Put(_VALUE, {**said, "first": first}),
            Put(_version_key(version), said),
            *(Delete(_version_key(number)) for number in removed),
        ]
        same = Exists(_VALUE, record.revision) if record else Absent(_VALUE)
        return Plan(changes, [same], said)

    def _seen(self, record: Record) -> Value:
        """Return what a record says, and remember it."""
        key = self.using, self.name
        known = _known.get(key)
        if known is None or known.revision < record.revision:
            while len(_known) >= _MOST_KNOWN:
                _known.pop(next(iter(_known)), None)
            _known[key] = record
        return _value_of(record)


class _Follower(Follower[Config, Value]):
    """What one who follows a Config has seen of it."""

    def __init__(self, config: Config, deadline: float | None = None) -> None:
        super().__init__(config, deadline)
        self._snapshot: Snapshot | None = None
        #: the revision of the value that was returned last
        self._revision = 0
        #: since when the servers have shown an older one
        self._older_since: float | None = None

    def next(self) -> Steps[Value | None]:
        """Return the value when it has changed since the last call; None at the end."""
        while found := (yield from self._looked(self._snapshot, [_VALUE], watched=_VALUE)):
            self._snapshot = found
            record = found.records.get(_VALUE)
            if record is not None and self._is_news(record):
                self._revision = record.revision
                return self.recipe._seen(record)
        return None

    def _is_news(self, record: Record) -> bool:
        """Return whether to tell of a record.

        One that is older than the last is shown by a server that is behind: so not at once, but
        after a lease, because then the newer one is lost.
        """
        if record.revision >= self._revision:
            self._older_since = None
            return record.revision > self._revision
        now, lease = clock(), self.recipe._backend.settings.lease
        self._older_since = self._older_since or now
        if now < self._older_since + lease:
            return False
        logger.warning("%r: the servers have lost its newest version", self.recipe)
        return True


#: What this process has seen last, by alias and name; each step is one that nothing interrupts.
_known: dict[tuple[str, str], Record] = {}


def signed(comment: str, author: str | None) -> dict[str, Any]:
    """Return what is said of who writes something now: TypeError, ValueError for bad texts."""
    if author is None:
        owner = current_owner()
        author = current_activity() or f"{owner.host}:{owner.pid}"
    return {
        "comment": checked_text("comment", comment),
        "author": checked_text("author", author),
        "at": time.time_ns() // 1000,
    }


def moment(microseconds: int) -> datetime:
    """Return the moment so long after the beginning of 1970."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)


def _value_of(record: Record) -> Value:
    said = record.value
    value = deepcopy(said["value"])  # the caller may change it, and we remember the record
    return Value(value, said["version"], said["author"], said["comment"], moment(said["at"]))


def _version_key(version: int) -> str:
    return f"{_VERSION}{version:020d}"


def outdated(first: int, last: int, keep: int) -> tuple[int, range]:
    """Return which number is the first one to be kept, and those to be removed before it."""
    until = max(first, min(last - keep + 1, first + _MOST_REMOVED))
    return until, range(first, until)


def _checked_version(argument: str, version: object) -> int | None:
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        return version
    raise TypeError(f"{argument} must be a version or None, not {version!r}")
