"""Numbers that all processes change, exactly: one that they add to, and one that counts down once.

The directory of a counter has one record, ``value``: the number, and who has changed it last. Each
add puts it on the condition that nobody else has since it was read, and beside it what it has done,
see Recipe._change_once(): so an add whose answer was lost is made once, and returns the right
value.

The directory of a latch has one record, ``latch``: the count it began with, and what is left of it.
It is put in the same way, exactly once. It never grows again, so a waiter that finds it at 0 can go
on.
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
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import ValueNotAgreed
from distlock.locking.base_lock import twins
from distlock.recipes.cells import Cell, Columns, state
from distlock.recipes.description import Description, Detail, Ref
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.records.seats import as_datetime
from distlock.types.lease import Kind
from distlock.types.owners import current_owner
from distlock.types.values import checked_count, checked_int, shortened

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
        would not fit into 64 bits, with its sign; LockUnavailable if the backend does not answer.
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
                f"n={shortened(n)}: {self!r} is {before}, and must stay a signed 64-bit number"
            )
        by = str(current_owner())
        return {"value": value, "by": by, "at": time.time_ns() // 1000}, value


class CounterDescription(Description[CounterInfo]):
    """Its value, and the author of the last change."""

    recipe = Counter
    empty = _("Counters are listed here once somebody has added to one.")
    columns: ClassVar[Columns[CounterInfo]] = (
        (_("Value"), lambda report: Cell(report.value, "number")),
        (_("Changed by"), lambda report: Cell(report.by, "mono")),
        (_("Changed"), lambda report: Cell(report.at, "moment")),
    )

    def detail(self, ref: Ref, report: CounterInfo) -> Detail:
        """Return the same."""
        facts = [*self.row(report), (_("Token"), Cell(report.token, "number"))]
        return Detail(facts, explanation=[_("It stays as it is until a program adds to it.")])


_LATCH = "latch"


@dataclass(frozen=True, slots=True)
class LatchInfo:
    """What a latch looks like now.

    - ``began``: the count it began with; None if nobody has counted down, and none was given.
    - ``count``: what is left of it.
    - ``at``: when it was counted down last, by the clock of that machine; None if it was not.
    """

    name: str
    using: str
    began: int | None
    count: int | None
    at: datetime | None = None


class CountDownLatch(Recipe):
    """Wait until something has happened a number of times, as in ``java.util.concurrent``.

    ::

        CountDownLatch("import", 3).wait()          # returns when it was counted down three times
        CountDownLatch("import", 3).count_down()    # anywhere, when a part is done

    It goes down to 0 and never up again: take another name for the next time. It does not know who
    has counted: who may do so twice, as a task that is run again, counts twice.
    """

    kind = Kind.COUNT_DOWN_LATCH

    def __init__(self, name: str, count: int | None = None, *, using: str = DEFAULT_ALIAS) -> None:
        """Describe a latch; nothing is asked yet.

        - ``name``, ``using``: as for a Lock.
        - ``count``: how many times it has to be counted down. The first one to count down writes
          it, and giving another number raises ValueNotAgreed with both. None takes the number of
          the others.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._count = None if count is None else checked_count("count", count)

    def _count_down(self, n: int = 1) -> Steps[int]:
        """Count down by ``n``, to 0 at the least; return what is left.

        It is counted once, also if the answer is lost. Raises ValueNotAgreed, with nothing changed,
        if it began with another count, or none was given; TypeError or ValueError that names
        the argument; LockUnavailable if the backend does not answer. Only if that is so for half a
        lease after an answer was lost, ``maybe_applied`` of that error is True: it was counted once
        or not at all. So it may be after a task was cancelled, or an interrupt.
        """
        left = yield from self._change_once(_LATCH, partial(self._less, checked_count("n", n)))
        return left or 0

    count_down, acount_down = twins("count_down", _count_down)

    def _wait(self, timeout: float | None = None) -> Steps[bool]:
        """Wait until it is at 0; False if it is not for ``timeout`` seconds (None: forever).

        Raises ValueNotAgreed as soon as it is there with another count. LockUnavailable if the
        backend does not answer until then, or for the length of a lease.
        """
        return bool((yield from self._until(self._is_open, deadline_of(timeout), key=_LATCH)))

    wait, await_ = twins("wait", _wait)

    def _info(self) -> Steps[LatchInfo]:
        """Return what it began with, and what is left of that.

        Raises LockUnavailable if the backend does not answer.
        """
        found: Snapshot = yield self._read(keys=[_LATCH])
        if (record := found.records.get(_LATCH)) is None:
            return LatchInfo(self.name, self.using, self._count, self._count)
        began, left, at = (record.value[key] for key in ("began", "left", "at"))
        return LatchInfo(self.name, self.using, began, left, as_datetime(at))

    info, ainfo = twins("info", _info)

    @property
    def count(self) -> int:
        """The present count; see info(). ValueNotAgreed as for count_down()."""
        info = self.info()
        self._agreed(info.began)
        return info.count or 0

    # Inside

    def _is_open(self, found: Snapshot) -> bool | None:
        """Whether it is at 0; None if it is not yet."""
        if (record := found.records.get(_LATCH)) is None:
            return None
        self._agreed(record.value["began"])
        return record.value["left"] == 0 or None

    def _less(self, n: int, record: Record | None) -> tuple[dict[str, object], int] | None:
        """Return what the record is to say once it was counted down, and what is left then."""
        began = self._agreed(None if record is None else record.value["began"])
        before = began if record is None else int(record.value["left"])
        if not before:
            return None
        left = max(before - n, 0)
        # A sweep keeps a latch that is not at 0.
        now = time.time_ns() // 1000
        return {"began": began, "left": left, "at": now, "in_use": left > 0}, left

    def _agreed(self, began: int | None) -> int:
        """Return the count that it began, or begins with; ValueNotAgreed if others say another."""
        wanted = began if self._count is None else self._count
        if wanted is None:
            raise ValueNotAgreed(
                f"{self!r}: count was not given, and no other process has given it"
            )
        if began not in (None, wanted):
            raise ValueNotAgreed(
                f"count={wanted}: {self!r} began with {began}. Use the same count everywhere, and"
                " another name for another time"
            )
        return wanted


def _state(report: LatchInfo) -> Cell:
    is_open = report.count == 0
    return state("open", _("Is open"), "held") if is_open else state("closed", _("Counts down"))


class LatchDescription(Description[LatchInfo]):
    """The number left to be counted down."""

    recipe = CountDownLatch
    empty = _("Latches are listed here once somebody has counted one down.")
    columns: ClassVar[Columns[LatchInfo]] = (
        (_("State"), _state),
        (_("Left"), lambda report: Cell(report.count, "number")),
        (_("Began with"), lambda report: Cell(report.began, "number")),
        (_("Changed"), lambda report: Cell(report.at, "moment")),
    )

    def detail(self, ref: Ref, report: LatchInfo) -> Detail:
        """Return the same."""
        explanation = [_("Waiters go on when nothing is left. It never goes up again.")]
        return Detail(self.row(report), explanation=explanation)
