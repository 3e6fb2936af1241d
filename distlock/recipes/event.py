"""An event that one process sets and all others see, kept in the backend's store.

Its directory has one record, ``event``, bound to no session. It is changed only from set to not
set, or from not set to set. So whoever finds it not set, and changed since, knows that it was set
in between.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils.asyncio import async_unsafe

from distlock.backends.recipe_records import Plan
from distlock.backends.store import Absent, Exists, Put, Record, Snapshot
from distlock.concurrency.steps import Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.types.lease import Kind
from distlock.types.owners import current_owner

_EVENT = "event"


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Whether an event is set, and who has set or cleared it last, and when, by its own clock.

    ``token`` grows with every change. All but the first three are None if it was never set.
    """

    name: str
    using: str
    is_set: bool
    by: str | None = None
    at: datetime | None = None
    token: int | None = None


class Event(Recipe):
    """A flag to wait for, the same in all processes, as ``threading.Event``: ``Event("ready")``.

    It is as it was left, also when the process that did so has ended.
    """

    kind = Kind.EVENT

    def __init__(self, name: str, *, using: str = DEFAULT_ALIAS) -> None:
        """``name``, ``using``: as of a Lock. Nothing is asked yet."""
        super().__init__(name, using)

    @async_unsafe("is_set() would block the event loop; use `await event.ais_set()`.")
    def is_set(self) -> bool:
        """Return whether it is set."""
        return self.info().is_set

    async def ais_set(self) -> bool:
        """See is_set()."""
        return (await self.ainfo()).is_set

    @async_unsafe("set() would block the event loop; use `await event.aset()`.")
    def set(self) -> None:
        """Set it, and wake all who wait. Setting it twice does no harm."""
        run(self._changing(True))

    async def aset(self) -> None:
        """See set()."""
        await arun(self._changing(True))

    @async_unsafe("clear() would block the event loop; use `await event.aclear()`.")
    def clear(self) -> None:
        """Let those who come from now on wait until it is set again."""
        run(self._changing(False))

    async def aclear(self) -> None:
        """See clear()."""
        await arun(self._changing(False))

    @async_unsafe("wait() would block the event loop; use `await event.await_()`.")
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if it is not for ``timeout`` seconds (None: for ever).

        True also if it was set while this waited, and cleared again before this could see it.
        """
        return run(self._waiting(deadline_of(timeout)))

    async def await_(self, timeout: float | None = None) -> bool:
        """See wait(). (``await`` is a word of Python.)"""
        return await arun(self._waiting(deadline_of(timeout)))

    @async_unsafe("info() would block the event loop; use `await event.ainfo()`.")
    def info(self) -> EventInfo:
        """Return whether it is set, and who has changed it last."""
        return run(self._looking())

    async def ainfo(self) -> EventInfo:
        """See info()."""
        return await arun(self._looking())

    # Steps

    def _looking(self) -> Steps[EventInfo]:
        record = (yield self._read()).records.get(_EVENT)
        if record is None:
            return EventInfo(self.name, self.using, False)
        said = record.value
        at = datetime.fromtimestamp(said["at"] / 1e6, UTC)
        return EventInfo(self.name, self.using, said["set"], said["by"], at, record.revision)

    def _changing(self, wanted: bool) -> Steps[None]:
        said = {"set": wanted, "by": str(current_owner()), "at": time.time_ns() // 1000}

        def decide(found: Snapshot) -> Plan:
            record = found.records.get(_EVENT)
            if _is_set(record) == wanted:
                return Plan()
            same = Exists(_EVENT, record.revision) if record else Absent(_EVENT)
            return Plan([Put(_EVENT, said)], [same])

        yield self._change(decide)

    def _waiting(self, deadline: float | None) -> Steps[bool]:
        before: list[int | None] = []

        def look(found: Snapshot) -> bool | None:
            record = found.records.get(_EVENT)
            revision = record.revision if record else None
            if not before:
                before.append(revision)
            return _is_set(record) or revision != before[0] or None

        return bool((yield from self._until(look, deadline, watched=lambda _: _EVENT)))


def _is_set(record: Record | None) -> bool:
    return record is not None and bool(record.value["set"])
