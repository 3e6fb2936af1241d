"""Actions at a later time, on one thread of the process.

Nearly every timer is cancelled: a statement is answered in time, a lock is freed before its lease
has to be renewed. So making and cancelling one takes no mutex, and mostly wakes no thread. It may
be done by the garbage collector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from queue import Empty

from distlock.concurrency.clock import clock
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.threads import (
    WaitQueue,
    start,
    thread_logger,
    warn_if_threads_stand_still,
)

Action = Callable[[], object]

#: Seconds. The thread sleeps no longer, because its sleep counts on another clock than ours, which
#: may stand still while the machine sleeps.
_LONGEST_SLEEP = 30.0
#: Seconds between two looks at all timers, however many are due: what a look costs grows with
#: their number.
_RESOLUTION = 0.01

_by_time = attrgetter("due")


class Timer:
    """An action that is to be called at the time ``due`` of clock(), unless it is cancelled."""

    __slots__ = ("_actions", "due")

    def __init__(self, due: float, actions: dict[Timer, Action]) -> None:
        self.due = due
        self._actions = actions

    def cancel(self) -> bool:
        """Do not call the action; False if it was cancelled before, or its action has begun."""
        return self._actions.pop(self, None) is not None


class Timers:
    """The timers of a process, and the thread that calls what is due."""

    def __init__(self) -> None:
        #: Who pops an action from here is the one who calls or cancels it.
        self._actions: dict[Timer, Action] = {}
        #: Takes the times for which the thread is to wake up; None while there is no thread.
        self._wakeups: WaitQueue[float] | None = None
        #: Who adds a timer that is due earlier than this has to wake the thread.
        self._wakes_at = math.inf

    def call_after(self, seconds: float, action: Action) -> Timer:
        """Call ``action()`` in so many seconds, on the thread of the timers.

        It must be quick and must not block: the others wait for it. What it raises is logged. It
        may be called some hundredths of a second late. RuntimeError if the thread is needed, and
        no more threads can be had.
        """
        timer = Timer(clock() + seconds, self._actions)
        try:
            self._actions[timer] = action
            if timer.due < self._wakes_at:
                self._wake_for(timer.due)
        except BaseException:  # also Ctrl-C: nobody would have the timer to cancel it
            timer.cancel()
            raise
        return timer

    def _wake_for(self, due: float) -> None:
        wakeups = self._wakeups
        if wakeups is None:
            # Two may do this at once: the thread whose queue is replaced here ends.
            wakeups = self._wakeups = WaitQueue()
            try:
                start(self._run, "distlock-timers", wakeups)
            except BaseException:
                # No more threads, or an interrupt: the next timer has to try again.
                if self._wakeups is wakeups:
                    self._wakeups = None
                raise
        wakeups.put(due)

    def _run(self, wakeups: WaitQueue[float]) -> None:
        warn_if_threads_stand_still()
        planned = math.inf
        while self._wakeups is wakeups:
            self._wakes_at = math.inf  # who adds a timer from here on wakes this thread
            try:
                first = self._call_due()
            except MemoryError:  # for a time, perhaps; and all renewals need this thread
                first = 0.0
            now = clock()
            # Keep the planned wake-up even if its timer was cancelled: the next timer, which is
            # mostly due later than that, then need not wake the thread.
            planned = min(first, planned if planned > now else math.inf)
            self._wakes_at = planned
            rest = min(max(planned - now, _RESOLUTION), _LONGEST_SLEEP)
            with suppress(Empty):
                planned = min(planned, wakeups.get(timeout=rest))
        # Another thread has taken over, or is going to: none may rely on what this one has set.
        self._wakes_at = math.inf
        if (successor := self._wakeups) is not None:
            successor.put(math.inf)

    def _call_due(self) -> float:
        """Call what is due, and return when the next action will be."""
        # A copy is made in one atomic step, while a dict that is iterated over must not change.
        for timer in sorted(self._actions.copy(), key=_by_time):
            if timer.due > clock():
                return timer.due
            action = self._actions.pop(timer, None)
            if action is not None:
                try:
                    action()
                except BaseException:  # one action must not keep the others from being called
                    thread_logger.exception("a timer's action failed")
                del action  # it may be the last reference to large objects
        return math.inf


_timers = PerProcess(Timers)


def call_after(seconds: float, action: Action) -> Timer:
    """See Timers.call_after(), of this process."""
    return _timers().call_after(seconds, action)
