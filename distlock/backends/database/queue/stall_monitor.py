"""Looks at the rows of all locks that this process waits for, while its waiters stand in line.

Who has the native lock should take the row as soon as that is free, but may have been stopped, or
cut off behind a pooler, or may hold it for a lock that was broken. The row is therefore looked at
by others as well, and whoever finds it untaken calls its own waiter out of the queue to take it.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING

from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.queue import lock_rows
from distlock.backends.database.queue.waiter import Waiter, WakeReason, patient_until
from distlock.clock import clock
from distlock.threads import start

if TYPE_CHECKING:
    from distlock.backends.database.queue.wait_manager import WaitManager

logger = logging.getLogger("distlock")

#: Most seconds between two looks, and in parts of what the server gets for an answer: a silent one
#: is to be noticed within that.
_LONGEST_PERIOD, _PERIOD = 2.0, 0.3
#: Seconds until a look that failed is tried again.
_RETRY_PAUSE = 0.2
#: Seconds between two calls to a waiter that is to leave.
_FIRST_CALL_PAUSE, _LONGEST_CALL_PAUSE = 0.02, 1.0
#: Seconds that the thread stays after the last wait.
_LINGER = 1.0
#: How many looks in a row may find the server not busy with a question before that is given up.
_MISSES = 2


class StallMonitor:
    """One thread for all waits of a room; it lives while there are any."""

    def __init__(self, room: WaitManager) -> None:
        self._waits = room
        # Entered itself and not through the condition, where Ctrl-C could leave it locked.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._calls: dict[Waiter, tuple[float, float]] = {}  # when, and the pause after that
        self._next_look = 0.0
        self._trouble_since: float | None = None
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Begin to look, after a wait was added to the room."""
        with self._mutex:
            if self._thread is None:
                self._next_look = clock() + self._period()
                self._start()

    def cancel(self, waiter: Waiter) -> None:
        """Call a waiter out of its queue soon, without making the caller wait for that."""
        with self._mutex:
            self._calls[waiter] = (clock(), _FIRST_CALL_PAUSE)
            if self._thread is not None:
                self._changed.notify()
            else:
                self._start()

    def _start(self) -> None:
        self._thread = start(self._run, "distlock-monitor")

    def _run(self) -> None:
        while True:
            calls = self._wait_for_work()
            if calls is None:
                return
            try:
                for waiter in calls:
                    self._call(waiter, WakeReason.LEAVE)
                if not calls:
                    self._look()
            except Exception:  # those who wait for ever rely on this thread
                logger.exception("the monitor goes on after an error")
                self._look_again_at(clock() + _RETRY_PAUSE)

    def _wait_for_work(self) -> list[Waiter] | None:
        """Return whom to call out; nobody if it is time to look, None if there is no more to do."""
        with self._mutex:
            bored_at = clock() + _LINGER
            while True:
                now = clock()
                waiters = self._waits.waiters
                if calls := self._due_calls(now, waiters):
                    return calls
                if not waiters and now >= bored_at:
                    self._thread = None
                    return None
                if waiters and now >= self._next_look:
                    self._next_look = now + self._period()
                    return []
                next_calls = [when for when, _ in self._calls.values()]
                wakes_at = min(self._next_look if waiters else bored_at, *next_calls, now + 60)
                self._changed.wait(wakes_at - now)

    def _due_calls(self, now: float, waiters: list[Waiter]) -> list[Waiter]:
        """Return whom to call out now. Again, if that was in vain: the call may come too early."""
        here = set(waiters)
        self._calls = {waiter: call for waiter, call in self._calls.items() if waiter in here}
        due = [waiter for waiter, (when, _) in self._calls.items() if when <= now]
        for waiter in due:
            pause = self._calls[waiter][1]
            self._calls[waiter] = (now + pause, min(pause * 2, _LONGEST_CALL_PAUSE))
        return due

    def _look_again_at(self, when: float) -> None:
        with self._mutex:
            self._next_look = min(self._next_look, when)

    def _call(self, waiter: Waiter, why: WakeReason) -> None:
        place = waiter.place
        if place is None or not place.waits(waiter):
            return
        waiter.why = why
        place.cancel(waiter, self._waits.pool.run)

    # Looking

    def stalled(self, row: lock_rows.RowSnapshot) -> bool:
        """Return whether those whose turn it is have had the time to take a lock, and did not."""
        return row.untaken_for(lock_rows.GRACE)

    def _look(self) -> None:
        sent_at = clock()
        # Under steady contention nobody stands long enough to be worth a look.
        waiters = [
            waiter for waiter in self._waits.waiters if sent_at - waiter.since >= lock_rows.GRACE
        ]
        if not waiters:
            return
        since = self._trouble_since or sent_at
        heard_at = min(waiter.heard_at for waiter in waiters)
        until = patient_until(since, heard_at, self._waits.pool.timeout)
        try:
            found = self._waits.rows.look({waiter.claim.name for waiter in waiters}, until)
            sessions = self._sessions(waiters, until)
        except StatementFailed as failed:
            self._trouble_since = since
            return self._trouble(failed, until)
        self._trouble_since = None
        for waiter in waiters:
            row = found.get(waiter.claim.name)
            session = sessions.get(waiter.place.ident) if waiter.place else None
            self._consider(waiter, row, session, sent_at)

    def _sessions(self, waiters: list[Waiter], until: float) -> dict[int, tuple[bool, bool]]:
        idents = [waiter.place.ident for waiter in waiters if waiter.place]
        if not idents:
            return {}
        answer = self._waits.pool.run(self._waits.native.sessions(idents), until)
        return {int(ident): (bool(way), bool(front)) for ident, way, front in answer.rows}

    def _consider(
        self,
        waiter: Waiter,
        row: lock_rows.RowSnapshot | None,
        session: tuple[bool, bool] | None,
        sent_at: float,
    ) -> None:
        if not waiter.blocked_since(sent_at):
            waiter.missed = 0
            return
        if session is None:
            waiter.missed += 1
            if waiter.missed >= _MISSES and (place := waiter.place):
                place.hang_up()  # it does not know yet that the server has lost it
            return
        waiter.seen_well(sent_at, held=row is not None and not row.open_to(waiter.claim))
        in_the_way, front_writes = session
        longest = self._waits.native.longest_wait
        untaken = row is None or row.untaken_for(lock_rows.GRACE)
        # Who takes the lock just now is not seen in the row before its commit is done, which may
        # take long where that waits for a standby.
        if untaken and not front_writes:
            self._call(waiter, WakeReason.TAKE)
        elif row is not None and row.is_held_by(waiter.claim):
            self._call(waiter, WakeReason.ENTER)
        elif in_the_way or (longest is not None and sent_at - waiter.since > longest):
            self._call(waiter, WakeReason.STAND_ASIDE)
        elif row is not None and row.remaining < _LONGEST_PERIOD:
            self._look_again_at(sent_at + max(row.remaining, -lock_rows.GRACE) + lock_rows.GRACE)

    def _trouble(self, failed: StatementFailed, until: float) -> None:
        if clock() < until:
            return self._look_again_at(clock() + _RETRY_PAUSE)
        self._trouble_since = None
        for waiter in self._waits.waiters:
            waiter.fail(self._waits.unavailable(failed))

    def _period(self) -> float:
        # Not all processes at once.
        most = min(_LONGEST_PERIOD, _PERIOD * self._waits.pool.timeout)
        return most * random.uniform(0.5, 1.0)
