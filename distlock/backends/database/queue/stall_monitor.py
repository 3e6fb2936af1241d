"""Looks at the rows of the locks that this process waits for, while waiters sleep in the server.

Who has the native lock should take the row as soon as that is free, but may have been stopped, or
cut off behind a proxy, or may keep the native lock for a hold that was broken. So others look at
the row, too, and whoever finds that nobody takes it wakes its own waiter to do so.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Protocol

from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.queue import lock_rows
from distlock.backends.database.queue.lock_rows import RowSnapshot
from distlock.backends.database.queue.waiter import Waiter, Waits, WakeReason, retry_until
from distlock.concurrency.backoff import Backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import start

logger = logging.getLogger("distlock")

#: Most seconds between two looks, and in parts of what the server gets for an answer: a silent one
#: is to be noticed within that.
_LONGEST_PERIOD, _PERIOD = 2.0, 0.3
#: Seconds until a look that failed is tried again.
_RETRY_PAUSE = 0.2
#: Seconds between two cancels of one waiter.
_FIRST_CANCEL_PAUSE, _LONGEST_CANCEL_PAUSE = 0.02, 1.0
#: Seconds that the thread stays after the last wait.
_LINGER = 1.0
#: Seconds after which a statement of which the server knows nothing does not reach it any more.
_LOST = 1.0


class MonitoredWaits(Waits, Protocol):
    """What the monitor needs of the waits of its process."""

    @property
    def waiters(self) -> Collection[Waiter]: ...


class StallMonitor:
    """One thread for all waits of a process; it lives while there are any."""

    def __init__(self, waits: MonitoredWaits) -> None:
        self._waits = waits
        self._mutex = threading.Lock()
        self._running = False
        self._cancel_requests: SimpleQueue[Waiter] = SimpleQueue()
        self._cancels: dict[Waiter, tuple[float, Backoff]] = {}  # when next
        self._next_look = 0.0
        self._trouble_since: float | None = None

    def start(self) -> None:
        """Begin to look, after a wait was added."""
        with self._mutex:
            if not self._running:
                # Interrupted here, the next one starts another thread: two do no harm.
                start(self._run, "distlock-stall-monitor")
                self._running = True

    def cancel_soon(self, waiter: Waiter) -> None:
        """Cancel what a waiter does in the server, as long as it is there.

        Takes no mutex: the garbage collector may call it, in a thread that has one.
        """
        self._cancel_requests.put(waiter)

    def _run(self) -> None:
        self._next_look = clock() + self._period()
        last_wait = clock()
        while True:
            waiters = self._waits.waiters
            if waiters:
                last_wait = clock()
            elif clock() >= last_wait + _LINGER and self._ends():
                return
            try:
                self._repeat_cancels(waiters)
                if clock() >= self._next_look:
                    self._next_look = clock() + self._period()
                    self._look()
            except Exception:  # those who wait for ever rely on this thread
                logger.exception("the monitor of waits goes on after an error")
                self._look_again_at(clock() + _RETRY_PAUSE)
            due = min([self._next_look, *(when for when, _ in self._cancels.values())])
            try:
                waiter = self._cancel_requests.get(timeout=max(due - clock(), 0.0))
            except Empty:
                continue
            pauses = Backoff(_FIRST_CANCEL_PAUSE, _LONGEST_CANCEL_PAUSE, 2, jitter=False)
            self._cancels[waiter] = (clock(), pauses)

    def _ends(self) -> bool:
        with self._mutex:
            self._running = bool(self._waits.waiters)
            return not self._running

    def _repeat_cancels(self, waiters: Collection[Waiter]) -> None:
        """Cancel those who are to leave. Again, if that was in vain: it may come too early."""
        self._cancels = {waiter: due for waiter, due in self._cancels.items() if waiter in waiters}
        for waiter, (when, pauses) in self._cancels.items():
            if when <= clock():
                waiter.wake(WakeReason.CANCEL)
                self._cancels[waiter] = (clock() + next(pauses), pauses)

    def _look_again_at(self, when: float) -> None:
        self._next_look = min(self._next_look, when)

    def _period(self) -> float:
        # Not all processes at once.
        most = min(_LONGEST_PERIOD, _PERIOD * self._waits.pool.timeout)
        return most * random.uniform(0.5, 1.0)

    # Looking

    def _look(self) -> None:
        sent_at = clock()
        # Under steady contention nobody waits long enough to be worth a look.
        waiters = [
            waiter
            for waiter in self._waits.waiters
            if sent_at - waiter.queued_at >= lock_rows.GRACE
        ]
        if not waiters:
            return
        since = self._trouble_since or sent_at
        heard_at = min(waiter.heard_at for waiter in waiters)
        until = retry_until(since, heard_at, self._waits.pool.timeout)
        try:
            rows = self._waits.rows.look({waiter.claim.name for waiter in waiters}, until)
            sessions = self._sessions(waiters, until)
        except StatementFailed as failed:
            self._trouble_since = since
            return self._handle_failure(failed, until)
        self._trouble_since = None
        for waiter in waiters:
            self.consider(waiter, rows.get(waiter.claim.name), sessions, sent_at)

    def _sessions(self, waiters: Collection[Waiter], until: float) -> dict[int, bool]:
        """Ask which sessions run something, and whether that is in somebody's way."""
        idents = [session.ident for waiter in waiters if (session := waiter.session)]
        if not idents:
            return {}
        answer = self._waits.pool.run(self._waits.locks.sessions(idents), until)
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
        waiter.note_alive(sent_at, held=row is not None and not row.grantable_to(waiter.claim))
        if row is None or row.stalled or row.is_held_by(waiter.claim):
            waiter.wake(WakeReason.GRANTABLE)
        elif sessions[session.ident]:
            waiter.wake(WakeReason.REQUEUE)
        elif row.remaining < _LONGEST_PERIOD:
            grace = lock_rows.GRACE
            self._look_again_at(sent_at + max(row.remaining, -grace) + grace)

    def _handle_failure(self, failed: StatementFailed, until: float) -> None:
        if clock() < until:
            return self._look_again_at(clock() + _RETRY_PAUSE)
        self._trouble_since = None
        for waiter in self._waits.waiters:
            waiter.fail(self._waits.unavailable(failed))
