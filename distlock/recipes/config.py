"""A configuration value that is the same in all processes: versions, history, compare and set.

It is the last entry of a log, and its history the log: see distlock.recipes.topic.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from distlock.backends.seats import moment
from distlock.backends.store import Record, Snapshot
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Steps
from distlock.exceptions import LockUnavailable
from distlock.recipes.following import Follower, Watch
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.recipes.topic import LAST, Log, entries, entry_key
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_flag, checked_int, checked_text
from distlock.types.lease import Kind

logger = logging.getLogger("distlock")


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


class Config(Log):
    """One value under a name, the same in all processes: ``Config("mailer").get().value``.

    It is anything that JSON can say, in 64 KiB at the most. Each ``set()`` gives it the next
    version, on the condition that nobody else has meanwhile: so versions come one after the other,
    and each is in the history for a time.
    """

    kind = Kind.CONFIG

    def getting(self, default: Any = None, *, stale: bool = True) -> Steps[Value]:
        """Return the value as it is now; one of version 0 with ``default`` if it was never set.

        If the backend cannot be asked, what this process has seen last is returned, with
        ``stale=True`` in it. LockUnavailable if it has seen none, or with ``stale=False``.
        """
        checked_flag("stale", stale)
        try:
            found: Snapshot = yield self._read(keys=[LAST])
        except LockUnavailable:
            known = _known(self.using, self.name)
            if not stale or not known:
                raise
            return replace(_value_of(known[0]), stale=True)
        record = found.records.get(LAST)
        return Value(default, 0) if record is None else _seen(self, record)

    get, aget = twins("get", getting)

    def setting(
        self, value: Any, *, if_version: int | None = None, comment: str = "", author: str = ""
    ) -> Steps[int]:
        """Set the value for all processes; return its version.

        - ``if_version``: set it only if this is its version now, 0 for one that was never set. Of
          several who change the same version one succeeds. Without it the last one wins.
        - ``comment``: why, for people.
        - ``author``: who, for people; by default what goes on here (see ``distlock.activity``), or
          else host and process.

        Raises StaleToken, with nothing changed, if it has another version; TypeError or ValueError
        if it is no JSON, or too large. After LockUnavailable with ``maybe_applied`` it may have
        been set or not: look at the version and the author, or at the history.
        """
        if if_version is not None:
            checked_int("if_version", if_version)
        said = {"value": value, "comment": checked_text("comment", comment)}
        # Servers may have lost a version that this process has seen: another one gets its number
        # from nobody who knows that.
        above = max((seen.value["number"] for seen in _known(self.using, self.name)), default=0)
        record = yield from self._append(said, author, if_version=if_version, above=above)
        return _seen(self, record).version

    set, aset = twins("set", setting)

    def _history(self) -> Steps[tuple[Value, ...]]:
        """Return the versions that are kept, the newest one first. LockUnavailable."""
        return tuple(map(_value_of, reversed(entries((yield self._read())))))

    history, ahistory = twins("history", _history)

    def _rollback(
        self, version: int, *, if_version: int | None = None, comment: str = "", author: str = ""
    ) -> Steps[int]:
        """Set the value to what it was in a version; return the new version, which this makes.

        Raises ValueError if that version is not kept any more; the rest is as for set().
        """
        key = entry_key(checked_int("version", version))
        found: Snapshot = yield self._read(keys=[key])
        if key not in found.records:
            raise ValueError(f"version {version} of {self!r} is not kept; see history()")
        value, why = found.records[key].value["value"], comment or f"rollback to version {version}"
        again = self.setting(value, if_version=if_version, comment=why, author=author)
        return (yield from again)

    rollback, arollback = twins("rollback", _rollback)

    def changes(self, timeout: float | None = None) -> Follower[Value]:
        """Yield the value as it is, if there is one, and each later one, for ``timeout`` seconds.

        Of values that are set faster than they are taken, some are left out, but never the last.
        It goes on through outages, and no older value follows a newer one: except if the servers
        have lost the newer one, for example in a failover.
        """
        return _Follower(self, deadline_of(timeout))

    achanges = changes

    def watch(self, callback: Callable[[Value], object]) -> Watch:
        """Call ``callback(value)`` with the value as it is, and after each change: see changes().

        Keep what is returned: it ends when that is closed, left as a ``with`` block, or collected
        as garbage. Each watch has a thread, so a slow callback delays no other; it is called again
        with the value of that moment. Its errors are logged. In the child of a fork the watch goes
        on, and begins with the value as it is.

        Raises TypeError unless the callback is a plain function, NotSupported where no records are
        kept.
        """
        return Watch(partial(_Follower, self), callback)


class _Follower(Follower[Value]):
    """What one who follows a Config has seen of it."""

    keys = (LAST,)
    #: the revision of the value that was told last
    _revision = 0
    #: since when the servers have shown an older one
    _older_since = math.inf

    def _news(self, snapshot: Snapshot) -> Sequence[Value]:
        """Return the value if it is another one.

        One that is older than the last is shown by a server that is behind: so it is told only
        after a lease, because then the newer one is lost.
        """
        record = snapshot.records.get(LAST)
        if record is None:
            return ()
        now, older = clock(), record.revision < self._revision
        self._older_since = min(self._older_since, now) if older else math.inf
        if now >= self._older_since + self.recipe._backend.settings.lease:
            logger.warning("%r: the servers have lost its newest version", self.recipe)
        elif record.revision <= self._revision:
            return ()
        self._revision = record.revision
        return [_seen(self.recipe, record)]


@lru_cache(maxsize=1000)
def _known(using: str, name: str) -> list[Record]:
    """Return the list of what this process has seen last of a value: one entry, or none."""
    return []


def _seen(config: Recipe, record: Record) -> Value:
    """Return what the last entry says, and remember it, unless a later one is known."""
    known = _known(config.using, config.name)
    if not known or known[0].revision < record.revision:
        known[:] = [record]
    return _value_of(record)


def _value_of(record: Record) -> Value:
    said = record.value
    value = deepcopy(said["value"])  # the caller may change it, and we remember the record
    return Value(value, said["number"], said["author"], said["comment"], moment(said["at"]))
