"""A counter that all processes add to, exactly.

Its directory has one record, ``value``: the number, and who has changed it last. Each add puts it
on the condition that nobody else has since it was read, and beside it what it has done, see
Recipe._change_once(): so an add whose answer was lost is made once, and returns the right value.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.backends.store import Record, Snapshot
from distlock.concurrency.steps import Steps
from distlock.locking.twins import twins
from distlock.recipes.cells import Cell, Columns
from distlock.recipes.description import Description, Detail, Ref
from distlock.recipes.recipe import Recipe
from distlock.records.seats import as_datetime
from distlock.types.lease import Kind
from distlock.types.owners import current_owner
from distlock.types.values import checked_int, shortened

_VALUE = "value"
#: what a counter can be: what fits into a column of 64 bits
LEAST, MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class CounterInfo:
    """The value of a counter, and its last change.

    ``value`` is the number; ``by`` made the last change, and ``at`` is when, by the clock there.
    ``token`` grows with every change. All but the first three are None if it was never changed.
    """

    name: str
    using: str
    value: int = 0
    by: str | None = None
    at: datetime | None = None
    token: int | None = None


class Counter(Recipe):
    """A whole number that all processes add to: ``Counter("orders").add(1)``.

    It begins with 0, and stays when the processes have ended. Every add is counted once, also if
    its answer is lost.
    """

    kind = Kind.COUNTER

    def _add(self, n: int = 1) -> Steps[int]:
        """Add ``n``, which may be negative; return the value after it.

        Raises TypeError that names the argument; OverflowError, with nothing changed, if the value
        would not fit into 64 bits, with its sign; LockUnavailable if the backend cannot be asked.
        Only if that is so for half a lease after an answer was lost, ``maybe_applied`` of that
        error is True: it was added once or not at all. So it may be after a task was cancelled, or
        an interrupt.
        """
        return (yield from self._change_once(_VALUE, partial(self._plus, checked_int("n", n))))  # type: ignore[no-any-return]

    add, aadd = twins("add", _add)

    def _get(self) -> Steps[int]:
        """Return the value now; 0 if nobody has ever added. LockUnavailable."""
        return (yield from self._info()).value

    get, aget = twins("get", _get)

    @property
    def value(self) -> int:
        """The value now; see get()."""
        return self.get()

    def _info(self) -> Steps[CounterInfo]:
        """Return the value, and who has changed it last.

        Raises LockUnavailable if the backend does not answer.
        """
        found: Snapshot = yield self._read(keys=[_VALUE])
        if (record := found.records.get(_VALUE)) is None:
            return CounterInfo(self.name, self.using)
        value, by, at = (record.value[key] for key in ("value", "by", "at"))
        return CounterInfo(self.name, self.using, value, by, as_datetime(at), record.revision)

    info, ainfo = twins("info", _info)

    def _plus(self, n: int, record: Record | None) -> tuple[dict[str, object], int]:
        """Return what the record is to say after an add, and the value."""
        before = 0 if record is None else int(record.value["value"])
        value = before + n
        if not LEAST <= value <= MOST:
            raise OverflowError(
                f"n={shortened(n)}: {self!r} is {before}, and has 64 bits with its sign"
            )
        by = str(current_owner())
        return {"value": value, "by": by, "at": time.time_ns() // 1000}, value


class CounterDescription(Description[CounterInfo]):
    """Its value, and the author of the last change."""

    help = "Counters: list, show."
    empty = _("Counters are listed here once somebody has added to one.")
    columns: ClassVar[Columns[CounterInfo]] = (
        (_("Value"), lambda report: Cell(report.value, "number")),
        (_("Changed by"), lambda report: Cell(report.by, "mono")),
        (_("Changed"), lambda report: Cell(report.at, "moment")),
    )

    def read(self, ref: Ref) -> CounterInfo:
        """Return what it is, and who has changed it."""
        return ref.recipe(Counter).info()

    def detail(self, ref: Ref, report: CounterInfo) -> Detail:
        """Return the same."""
        facts = [*self.row(report), (_("Token"), Cell(report.token, "number"))]
        return Detail(facts, explanation=[_("It stays as it is until a program adds to it.")])
