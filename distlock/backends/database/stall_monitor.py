"""Looks at the rows of the locks that this process waits for, while waiters sleep in the server.

The waiter that has the native lock should take the row as soon as that is free. But its process may
be stopped, or cut off behind a proxy, or it keeps the native lock for a hold that was broken. So
each process looks at the rows, too. If nobody takes a free row, it wakes its own waiter to take it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import Empty

from distlock.backends.database import wait_session
from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.wait_session import LockRows, RowSnapshot
from distlock.backends.database.waiter import Waiter, WakeReason
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import ThreadOnDemand, WaitQueue, thread_logger

#: The longest pause between two looks: in seconds, and as a part of the server's time for an
#: answer, so that a silent one is noticed within that.
_LONGEST_PERIOD, _PERIOD = 2.0, 0.3
#: Seconds until a look that failed is tried again.
_RETRY_PAUSE = 0.2
#: Seconds until a waiter is cancelled again: the first time may have been before its statement.
_CANCEL_PAUSE = 0.1
#: Seconds that the thread stays after the last wait.
_LINGER = 1.0
#: After this many seconds without a trace of the statement in the server, it counts as lost.
_LOST = 1.0


class StallMonitor(ThreadOnDemand[None]):
    """One thread for all waits of a process; it lives while there are any."""

    def __init__(self, rows: LockRows, waiters: Callable[[], Collection[Waiter]]) -> None:
        """``waiters`` returns those who wait now."""
        super().__init__("distlock-stall-monitor")
        self._rows = rows
        self._waiters = waiters
        self._next_look = 0.0

    def start(self) -> None:
        """Begin to look, after a wait was added."""
        self._have_thread()

    def wake(self) -> None:
        """Cancel soon what those do in the server whose answer nobody wants."""
        if (wakeups := self._wakeups) is not None:
            wakeups.put(None)

    def _run(self, wakeups: WaitQueue[None]) -> None:
        last_wait = clock()
        while self._wakeups is wakeups:
            waiters = self._waiters()
            if waiters:
                last_wait = clock()
            elif clock() >= last_wait + _LINGER:
                if self._may_end(wakeups, self._waiters):
                    return
                continue  # it may have been woken meanwhile
            cancelled = [one for one in waiters if one.lease.over and not one.lease.answered]
            try:
                for waiter in cancelled:
                    waiter.wake(WakeReason.CANCEL)
                if clock() >= self._next_look:
                    period = min(_LONGEST_PERIOD, _PERIOD * self._rows.pool.timeout)
                    # Not all processes at once.
                    self._next_look = clock() + period * random.uniform(0.5, 1.0)
                    self._look()
            except Exception:  # those who wait forever rely on this thread
                thread_logger.exception("the monitor of waits goes on after an error")
                self._look_again_at(clock() + _RETRY_PAUSE)
            rest = max(self._next_look - clock(), 0.0)
            with suppress(Empty):
                wakeups.get(timeout=min(rest, _CANCEL_PAUSE) if cancelled else rest)

    def _look_again_at(self, when: float) -> None:
        self._next_look = min(self._next_look, when)

    # Looking

    def _look(self) -> None:
        sent_at = clock()
        # Under steady contention nobody waits long enough to be worth a look.
        waiters = [
            waiter for waiter in self._waiters() if sent_at - waiter.began >= wait_session.GRACE
        ]
        if not waiters:
            return
        # So that another session can be asked if this one is silent.
        soon = sent_at + self._rows.pool.timeout / 2
        until = min([soon, *(waiter.patient_until for waiter in waiters)])
        try:
            rows = self._rows.look({waiter.claim.name for waiter in waiters}, until)
            sessions = self._sessions(waiters, until)
        except StatementFailed as failed:
            for waiter in waiters:
                waiter.note_failure(failed, sent_at)
            return self._look_again_at(clock() + _RETRY_PAUSE)
        for waiter in waiters:
            self.consider(waiter, rows.get(waiter.claim.name), sessions, sent_at)

    def _sessions(self, waiters: Collection[Waiter], until: float) -> dict[int, bool]:
        """Ask which sessions run something, and whether that is in somebody's way."""
        idents = [session.ident for waiter in waiters if (session := waiter.session)]
        if not idents:
            return {}
        answer = self._rows.pool.run(self._rows.locks.sessions(idents), until)
        return {int(ident): bool(in_the_way) for ident, in_the_way in answer.rows}

    def consider(
        self, waiter: Waiter, row: RowSnapshot | None, sessions: dict[int, bool], sent_at: float
    ) -> None:
        """Decide what a look that was sent at ``sent_at`` means for a waiter."""
        session = waiter.session
        if session is None or not session.waits_since(waiter, sent_at):
            return
        if session.ident not in sessions:
            if session.waits_since(waiter, sent_at - _LOST):
                session.hang_up()  # the server has lost it, which it does not know yet
            return
        waiter.note_answer()
        if row is not None and not row.grantable_to(waiter.claim):
            waiter.evidence.held_at = sent_at
        if row is None or row.stalled or row.is_held_by(waiter.claim):
            waiter.wake(WakeReason.GRANTABLE)
        elif sessions[session.ident]:
            waiter.wake(WakeReason.REQUEUE)
        elif row.remaining < _LONGEST_PERIOD:
            grace = wait_session.GRACE
            self._look_again_at(sent_at + max(row.remaining, -grace) + grace)
