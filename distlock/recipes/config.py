"""A configuration value that is the same in all processes: versions, history, compare and set.

The directory of a Config has

- ``value``: the value as it is now, its version, who set it, when and why, and from which version
  on there is a history. It is read alone, and each change is made on its revision.
- ``v/VERSION``: the same of each version that is kept, written in the change that set it.
"""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.utils.asyncio import async_unsafe

from distlock.activity import current_activity
from distlock.backends.recipe_records import Done, Plan
from distlock.backends.store import Absent, Change, Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.steps import Call, Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockUnavailable, StaleToken
from distlock.recipes.recipe import Recipe, checked_json
from distlock.recipes.semaphore import checked_count
from distlock.types.arguments import checked_flag, checked_text
from distlock.types.lease import Kind
from distlock.types.owners import current_owner

_VALUE, _VERSION = "value", "v/"
#: Records that one change removes at the most: ``keep`` may have become much smaller.
_MOST_REMOVED = 50
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

    @async_unsafe("get() would block the event loop; use `await config.aget()`.")
    def get(self, default: Any = None, *, stale: bool = True) -> Value:
        """Return the value as it is now; one of version 0 with ``default`` if it was never set.

        If the backend cannot be asked, what this process has seen last is returned, with
        ``stale=True`` in it. LockUnavailable if it has seen none, or with ``stale=False``.
        """
        return run(self.getting(default, stale=stale))

    async def aget(self, default: Any = None, *, stale: bool = True) -> Value:
        """See get()."""
        return await arun(self.getting(default, stale=stale))

    @async_unsafe("set() would block the event loop; use `await config.aset()`.")
    def set(
        self,
        value: Any,
        *,
        if_version: int | None = None,
        comment: str = "",
        author: str | None = None,
    ) -> int:
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
        return run(self.setting(value, if_version=if_version, comment=comment, author=author))

    async def aset(
        self,
        value: Any,
        *,
        if_version: int | None = None,
        comment: str = "",
        author: str | None = None,
    ) -> int:
        """See set()."""
        setting = self.setting(value, if_version=if_version, comment=comment, author=author)
        return await arun(setting)

    # Steps

    def getting(
        self, default: Any = None, *, stale: bool = True, deadline: float | None = None
    ) -> Steps[Value]:
        """See get()."""
        checked_flag("stale", stale)
        try:
            snapshot: Snapshot = yield self._read(deadline)
        except LockUnavailable:
            known = _known.get((self.using, self.name))
            if known is None or not stale:
                raise
            return replace(_value_of(deepcopy(known)), stale=True)
        record = snapshot.records.get(_VALUE)
        if record is None:
            return Value(default, 0)
        self._remember(record)
        return _value_of(record)

    def setting(
        self,
        value: Any,
        *,
        if_version: int | None = None,
        comment: str = "",
        author: str | None = None,
        deadline: float | None = None,
    ) -> Steps[int]:
        """See set()."""
        said = {"value": value, **_signed(comment, author)}
        checked_json("value", value, said)
        plan = partial(self._plan, said, _checked_version("if_version", if_version))
        done: Done = yield self._change(plan, deadline, keys=[_VALUE])
        revision = done.revision or 0
        self._remember(Record(_VALUE, done.result, revision, revision))
        return int(done.result["version"])

    # Inside

    def _read(self, deadline: float | None = None) -> Call:
        """Return the step that reads the value, and not its history."""
        return self._ask(partial(self._store.look, self._directory, [_VALUE]), deadline)

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
        first, removed = _outdated(before["first"], version, self._keep)
        said = {**said, "version": version}
        changes: list[Change] = [
            Put(_VALUE, {**said, "first": first}),
            Put(_version_key(version), said),
            *(Delete(_version_key(number)) for number in removed),
        ]
        same = Exists(_VALUE, record.revision) if record else Absent(_VALUE)
        return Plan(changes, [same], said)

    def _remember(self, record: Record) -> None:
        key = self.using, self.name
        known = _known.get(key)
        if known is None or known.revision < record.revision:
            while len(_known) >= _MOST_KNOWN:
                _known.pop(next(iter(_known)), None)
            _known[key] = deepcopy(record)


#: What this process has seen last, by alias and name; each step is one that nothing interrupts.
_known: dict[tuple[str, str], Record] = {}


def _signed(comment: str, author: str | None) -> dict[str, Any]:
    """Return what is said of who sets a value now."""
    if author is None:
        owner = current_owner()
        author = current_activity() or f"{owner.host}:{owner.pid}"
    return {
        "comment": checked_text("comment", comment),
        "author": checked_text("author", author),
        "at": time.time_ns() // 1000,
    }


def _value_of(record: Record) -> Value:
    said = record.value
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=said["at"])
    return Value(said["value"], said["version"], said["author"], said["comment"], at)


def _version_key(version: int) -> str:
    return f"{_VERSION}{version:020d}"


def _outdated(first: int, last: int, keep: int) -> tuple[int, range]:
    """Return which number is the first one to be kept, and those to be removed before it."""
    until = max(first, min(last - keep + 1, first + _MOST_REMOVED))
    return until, range(first, until)


def _checked_version(argument: str, version: object) -> int | None:
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        return version
    raise TypeError(f"{argument} must be a version or None, not {version!r}")
