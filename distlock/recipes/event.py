"""An event that one process sets and all others see, kept in the backend's store.

Its directory has one record, ``event``, bound to no session. It is changed only from set to not
set, or from not set to set. So a waiter that finds it not set, and changed since, knows that it was
set in between.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.backends.store import Put, Snapshot
from distlock.concurrency.steps import Steps
from distlock.locking.base_lock import twins
from distlock.recipes.cells import Cell, Columns, state
from distlock.recipes.description import Description, Detail, Ref
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.records.recipe_records import Plan
from distlock.records.seats import as_datetime
from distlock.types.lease import Kind
from distlock.types.owners import current_owner

_EVENT = "event"


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Whether an event is set, and its last change.

    ``is_set`` is its state; ``by`` set or cleared it last, and ``at`` is when, by the clock there.
    ``token`` grows with every change. All but the first three are None if it was never set.
    """

    name: str
    using: str
    is_set: bool = False
    by: str | None = None
    at: datetime | None = None
    token: int | None = None


class Event(Recipe):
    """A flag to wait for, the same in all processes, as ``threading.Event``: ``Event("ready")``.

    It is as it was left, also when the process that did so has ended.
    """

    kind = Kind.EVENT

    def _info(self) -> Steps[EventInfo]:
        """Return whether it is set, and who has changed it last.

        Raises LockUnavailable if the backend does not answer.
        """
        return self._seen((yield self._read()))

    def _look(self) -> Steps[bool]:
        """Return whether it is set.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._info()).is_set

    def _set(self) -> Steps[None]:
        """Set it, and wake all who wait. Setting it twice does no harm.

        Raises LockUnavailable if the backend does not answer.
        """
        return self._become(True)

    def _clear(self) -> Steps[None]:
        """Let those who come from now on wait until it is set again.

        Raises LockUnavailable if the backend does not answer.
        """
        return self._become(False)

    def _wait(self, timeout: float | None = None) -> Steps[bool]:
        """Wait until it is set; False if it is not for ``timeout`` seconds (None: forever).

        True also if it was set while this waited, and cleared again before this could see it.
        Raises LockUnavailable if the backend does not answer until then, or for the length of a
        lease.
        """
        tokens = set[int | None]()

        def look(found: Snapshot) -> bool | None:
            now = self._seen(found)
            tokens.add(now.token)
            return now.is_set or len(tokens) > 1 or None

        return bool((yield from self._until(look, deadline_of(timeout), key=_EVENT)))

    info, ainfo = twins("info", _info)
    is_set, ais_set = twins("is_set", _look)
    set, aset = twins("set", _set)
    clear, aclear = twins("clear", _clear)
    wait, await_ = twins("wait", _wait)

    def _seen(self, found: Snapshot) -> EventInfo:
        if (record := found.records.get(_EVENT)) is None:
            return EventInfo(self.name, self.using)
        is_set, by, at = (record.value[key] for key in ("set", "by", "at"))
        return EventInfo(self.name, self.using, is_set, by, as_datetime(at), record.revision)

    def _become(self, wanted: bool) -> Steps[None]:
        said = {"set": wanted, "by": str(current_owner()), "at": time.time_ns() // 1000}

        def decide(found: Snapshot) -> Plan:
            if self._seen(found).is_set == wanted:
                return Plan()
            return Plan([Put(_EVENT, said)], [found.unchanged(_EVENT)])

        yield self._change(decide)


def _state(report: EventInfo) -> Cell:
    return state("set", _("Is set"), "held") if report.is_set else state("not set", _("Is not set"))


class EventDescription(Description[EventInfo]):
    """Whether it is set, and who did that."""

    recipe = Event
    empty = _("Events are listed here once they have been set.")
    columns: ClassVar[Columns[EventInfo]] = (
        (_("State"), _state),
        (_("Changed by"), lambda report: Cell(report.by, "mono")),
        (_("Changed"), lambda report: Cell(report.at, "moment")),
    )

    def detail(self, ref: Ref, report: EventInfo) -> Detail:
        """Return the same."""
        facts = [*self.row(report), (_("Token"), Cell(report.token, "number"))]
        return Detail(facts, explanation=[_("It stays as it is until a program changes it.")])
