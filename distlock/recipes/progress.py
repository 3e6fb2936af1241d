"""The progress of a piece of work: its worker reports, and observers see it live.

It has two records. ``report`` has the numbers, bound to nothing. ``h/NONCE`` says that the reporter
lives, bound to the session of its process: a report that says "running" without it is of a worker
that is lost. A new attempt takes the report over; each write is on the condition that the report
is as this attempt has left it, so no request of an earlier moment, or attempt, comes after.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Self, TypeVar
from weakref import ref

from django.utils.asyncio import async_unsafe

from distlock.activity import current_activity
from distlock.backends.store import Delete, Exists, Put, Record, Snapshot
from distlock.concurrency.clock import clock
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.pending import Pending
from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Steps, arun, or_undo, run
from distlock.concurrency.threads import start, thread_logger
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import BodyEnded, Cancelled, LockError
from distlock.locking.base_lock import twins
from distlock.recipes.following import Follower
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Block, Recipe, deadline_of
from distlock.recipes.report import Report, checked_number, report_of, reporter_of, shown_text
from distlock.records.recipe_records import REPORT, Plan
from distlock.records.seats import Seats, owner_of, value_of
from distlock.types.lease import Claim, Kind
from distlock.types.owners import current_owner
from distlock.types.values import checked_choice, checked_token, text_of

T = TypeVar("T")

logger = logging.getLogger("distlock")

#: Seconds between two looks at a report, which is written then if something has changed.
_INTERVAL = 1.0
#: The rate is that over the last looks, at most this many, and over at least this many seconds.
_SAMPLES, _EARLIEST = 20, 0.5
#: fields of a report that tell whether there is something new
_TELLING = "done", "total", "step", "state"


class _AttemptState:
    """The state of a progress in one process: that of its latest attempt there."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()  # a handler of signals may count, too
        self.begin()

    def begin(self) -> None:
        """Have nothing done yet, and nobody who reports."""
        self.done: float = 0
        self.step = ""
        #: when how many were done
        self.samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        #: who reports; the run tells it from others who have reported under the name
        self.who: dict[str, Any] = {}
        self.membership: Membership | None = None
        #: answered when the work has ended
        self.ended: Pending[None] = Pending()
        self.state, self.error, self.attempt = "running", "", 0
        self.cancelled = self.warned = False


class Progress(Block, Recipe):
    """The progress of one piece of work: ``Progress("import", total=5000, unit="rows")``.

    ::

        with Progress("import", total=len(rows)) as progress:
            for row in rows:
                save(row)
                progress.advance()

        Progress.get("import")  # elsewhere: a Report, or None

    Reporting never fails the work, and advance() only counts. Once a second at most a thread of
    distlock's own writes what has changed, outside of any transaction of the caller. The start and
    the end write at once, and wait for the answer; an outage is logged, and the work goes on.

    It goes on until it is finished, this object is garbage, or the process ends, even if the
    thread, task or job that began it has ended.
    """

    kind = Kind.PROGRESS

    def __init__(
        self, name: str, total: float | None = None, *, unit: str = "", using: str = DEFAULT_ALIAS
    ) -> None:
        """Describe a progress; nothing is asked yet.

        - ``name``, ``using``: as for a Lock.
        - ``total``: how much there is to do; None if that is not known.
        - ``unit``: the unit of the count, for people: "rows".

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self.total = None if total is None else checked_number("total", total)
        self.unit = shown_text("unit", unit)
        self._state = PerProcess(_AttemptState)

    # Reporting

    def _entering(self) -> Steps[Self]:
        """Begin a new attempt, which takes the place of those before; ``with`` does it.

        Returns this object. An outage is logged, not raised. Raises RuntimeError if it has begun
        already, NotSupported if the backend keeps no records.
        """
        _ = self._backend  # raises NotSupported if it keeps no records
        state = self._state()
        if state.membership is not None:
            raise RuntimeError(f"{self!r} has begun already")
        state.begin()
        claim = Claim(self.name, current_owner(), 0.0, current_activity())
        state.who = {**value_of(claim), "run": claim.nonce}
        membership = Membership(self, self._decide, rejoins=True)

        def begin() -> Steps[None]:
            state.membership = membership
            yield from self._reporting()
            with suppress(RuntimeError):  # no more threads: its end is reported all the same
                start(_report_on, "distlock-progress", ref(self), state.ended)

        def clean_up(error: BaseException) -> None:
            if state.membership is membership:  # else another attempt has begun
                state.ended.resolve(None)
                state.membership = None
            membership.leave_soon()

        yield from or_undo(begin(), clean_up)
        return self

    start, astart = twins("start", _entering)

    def advance(self, n: float = 1) -> None:
        """Say that ``n`` more are done. It asks nobody, also in a task, and costs next to nothing.

        Raises Cancelled if somebody has asked this work to end.
        """
        if n != 1:  # nearly all say that
            checked_number("n", n)
        state = self._state()
        with state.mutex:
            state.done += n
        self._check(state)

    def set(self, n: float) -> None:
        """Say that ``n`` are done in all; a smaller number than before changes nothing."""
        checked_number("n", n)
        state = self._state()
        with state.mutex:
            state.done = max(state.done, n)
        self._check(state)

    def step(self, text: str) -> None:
        """Set the present step; of a long ``text`` the beginning is shown."""
        self._state().step = shown_text("text", text)
        self.check()

    def check(self) -> None:
        """Raise Cancelled if somebody has asked this work to end. Asks nobody.

        A request is seen within some seconds.
        """
        self._check(self._state())

    def _check(self, state: _AttemptState) -> None:
        if state.cancelled:
            raise Cancelled(f"{self!r}: somebody has asked this work to end")

    def _leaving(self, state: str = "done", error: str = "") -> Steps[None]:
        """Write how it ended: "done", "failed" or "cancelled"; ``with`` does it.

        ``state`` is one of these, ``error`` a text for people. An outage is logged, not raised.
        Raises ValueError for another state.
        """
        checked_choice("state", state, ("done", "failed", "cancelled"))
        error, this = shown_text("error", error), self._state()
        this.ended.resolve(None)
        membership, this.membership = this.membership, None
        if membership is None:
            return
        this.state, this.error = state, error
        with self._despite_outages():
            # The next attempt removes the record of this one.
            if not (yield from membership.leaving(Plan([Put(REPORT, self._value())]))):
                yield self._change(self._going_on, keys=[REPORT])

    finish, afinish = twins("finish", _leaving, leaves=True)

    def _failing(self, error: BaseException) -> Steps[None]:
        """Return the steps of leaving, which tell of an error of the block."""
        if isinstance(error, (Cancelled, GeneratorExit)):
            return self._leaving("cancelled")
        return self._leaving("failed", text_of(error))

    # Looking

    @classmethod
    @async_unsafe("Progress.get() would block the event loop; use `await Progress.aget()`.")
    def get(cls, name: str, *, using: str = DEFAULT_ALIAS) -> Report | None:
        """Return how far the work of a ``name`` is; None if there was no report under it lately.

        ``using`` is the alias of the backend. Raises LockUnavailable if that does not answer.
        A report stays for a day after the end or the loss, see ``manage.py locks sweep``.
        """
        refuse_reentry()
        return run(cls(name, using=using)._report())

    @classmethod
    async def aget(cls, name: str, *, using: str = DEFAULT_ALIAS) -> Report | None:
        """See get()."""
        refuse_reentry()
        return await arun(cls(name, using=using)._report())

    def changes(self, timeout: float | None = None) -> Follower[Report]:
        """Yield the report as it is, and again when it has changed, for ``timeout`` seconds.

        Of changes that come faster than they are processed, the last one is yielded. It goes on
        through outages, and from one attempt to the next.
        """
        return _Watcher(self, deadline_of(timeout))

    achanges = changes

    def _cancel(self, token: int | None = None, *, reason: str = "", who: str = "") -> Steps[bool]:
        """Ask the work to end: its worker's next advance() or check() raises Cancelled.

        False, and nothing is changed, if no worker reports under this name, or not with ``token``,
        the one of the report that was looked at. The worker sees it within some seconds. It is
        written to the audit log, with ``reason`` and ``who``, by default the system's user. Raises
        LockUnavailable if the backend does not answer.
        """
        wanted = None if token is None else checked_token(token)

        def decide(snapshot: Snapshot) -> Plan:
            record, alive = snapshot.records.get(REPORT), reporter_of(snapshot)
            if record is None or alive is None or wanted not in (None, alive.created):
                return Plan()
            same = Exists(REPORT, record.revision), Exists(alive.key)
            return Plan([Put(REPORT, {**record.value, "cancelling": True})], same, result=alive)

        asked: Record | None = (yield self._change(decide)).result
        if asked is not None:
            text = f"Asked to end: token {asked.created}, worker {owner_of(asked)}."
            self._record("cancel", text, reason, who)
        return asked is not None

    cancel, acancel = twins("cancel", _cancel)

    # Inside

    def _report(self) -> Steps[Report | None]:
        return report_of((yield self._read()), self.name, self.using)

    def _reporting(self) -> Steps[None]:
        """Write what has changed, or begin if the start had no answer; and see what others want."""
        membership = self._state().membership
        with self._despite_outages():
            if membership is not None and membership.lease is None:
                yield from membership.joining()
            elif membership is not None:
                yield self._change(self._going_on, keys=[REPORT])
            self._state().warned = False

    def _decide(self, snapshot: Snapshot) -> Plan:
        """Plan to begin an attempt, or to go on after a loss if no other has begun since."""
        state, record = self._state(), snapshot.records.get(REPORT)
        membership = state.membership
        own = record is not None and record.value["run"] == state.who["run"]
        if membership is None or (membership.lease and record and not own):
            return Plan()
        state.cancelled |= own and bool(record and record.value["cancelling"])
        state.attempt = int(record.value["attempt"]) + 1 if record else max(state.attempt, 1)
        others = [Delete(one.key) for one in Seats(snapshot).holders]
        begun = Put(REPORT, self._value())
        return Plan([begun, *others], [snapshot.unchanged(REPORT)], members=[{}])

    def _going_on(self, snapshot: Snapshot) -> Plan:
        """Plan to write how it stands, if there is something new, and no other attempt."""
        state, record = self._state(), snapshot.records.get(REPORT)
        if record is None or record.value["run"] != state.who["run"]:
            return Plan()
        state.cancelled = record.value["cancelling"]
        said = self._value()
        if all(record.value[key] == said[key] for key in _TELLING):
            return Plan()
        return Plan([Put(REPORT, said)], [Exists(REPORT, record.revision)])

    def _value(self) -> dict[str, Any]:
        """Return what the report is to say."""
        state, now, total = self._state(), clock(), self.total
        done = state.done
        state.samples.append((now, done))
        began, before = state.samples[0]
        rate = (done - before) / (now - began) if now - began > _EARLIEST else None
        return {
            **state.who,
            "attempt": state.attempt,
            "state": state.state,
            "done": done,
            "total": total,
            "unit": self.unit,
            "step": state.step,
            "rate": rate,
            "eta": max(total - done, 0) / rate if rate and total is not None else None,
            "at": time.time_ns() // 1000,
            "cancelling": state.cancelled,
            "error": state.error,
        }

    @contextmanager
    def _despite_outages(self) -> Iterator[None]:
        """Log, once for each outage, that nobody can see the progress; the work goes on."""
        try:
            yield
        except BodyEnded:  # the loss of a lock around this work, which is to end
            raise
        except LockError as error:
            state = self._state()
            if not state.warned:
                state.warned = True
                logger.warning("%r cannot be reported now, and its work goes on: %s", self, error)


class _Watcher(Follower[Report]):
    """A watcher of a progress."""

    #: the report that was yielded last
    _told: Report | None = None

    def _news(self, snapshot: Snapshot) -> Sequence[Report]:
        report = report_of(snapshot, self.recipe.name, self.recipe.using)
        if report is None or report == self._told:
            return ()
        self._told = report
        return [report]


def _report_on(known: ref[Progress], ended: Pending[None]) -> None:
    """Report once a second, until the work has ended, or nobody has the progress any more."""
    while not ended.wait(clock() + _INTERVAL) and (progress := known()) is not None:
        try:
            run(progress._reporting())
        except Exception:  # it may be short of memory, for a time
            thread_logger.exception("%r could not be written", progress)
        del progress


def track(
    iterable: Iterable[T],
    name: str | Progress,
    total: float | None = None,
    *,
    unit: str = "",
    using: str = DEFAULT_ALIAS,
) -> Iterator[T]:
    """Yield the items of an iterable, and report the progress: ``track(rows, "import")``.

    - ``iterable``: the items to work on.
    - ``name``: as for a Progress; or one that has begun, which then goes on after the loop.
    - ``total``: how many there are; by default the length of the iterable, if it has one.
    - ``unit``, ``using``: as for a Progress.

    Each one counts as done when the next one is asked for. A loop that is left before its end is
    reported as cancelled: use ``with Progress(...)`` to report its errors.
    Raises Cancelled if somebody has asked the work to end.
    """
    progress, block = _prepared(iterable, name, total, unit, using)
    if block is progress:  # one that has begun needs nobody's answer here
        _refuse_in_event_loop()
    with block:
        for item in iterable:
            yield item
            progress.advance()


async def atrack(
    iterable: AsyncIterable[T],
    name: str | Progress,
    total: float | None = None,
    *,
    unit: str = "",
    using: str = DEFAULT_ALIAS,
) -> AsyncIterator[T]:
    """Yield as track() does, for an ``async for``."""
    progress, block = _prepared(iterable, name, total, unit, using)
    async with block:
        async for item in iterable:
            yield item
            progress.advance()


@async_unsafe("track() would block the event loop; use `async for … in atrack()`.")
def _refuse_in_event_loop() -> None:
    """Refuse to begin a progress that the caller's task would wait for."""


def _prepared(
    iterable: object, name: str | Progress, total: float | None, unit: str, using: str
) -> tuple[Progress, Any]:
    """Return a progress, and the block in which it reports."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if not isinstance(name, Progress):
        progress = Progress(name, total, unit=unit, using=using)
        return progress, progress
    if name.total is None and total is not None:
        name.total = checked_number("total", total)
    return name, nullcontext()
