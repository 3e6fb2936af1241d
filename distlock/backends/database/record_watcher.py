"""Wakes those who wait for a change of records: one thread, which asks for all of them at once.

What it says is a hint. It looks often at first, and then less and less until something changes.

Where the server can tell of changes, it listens, too.
"""

from __future__ import annotations

import math
import os
import select
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from distlock.backends.database import errors
from distlock.backends.database.record_listeners import LISTENERS, RecordListener, RecordWatch
from distlock.backends.database.record_sql import ChangeNotice, RecordSQL
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.statements import BATCH, Statement
from distlock.backends.store import Address
from distlock.concurrency.clock import backoff, clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import ThreadOnDemand, WaitQueue, thread_logger
from distlock.exceptions import LockUnavailable
from distlock.types.values import batches

T = TypeVar("T", str, Address)

#: Seconds between two looks, at the least: where a session is about to end. See also
#: RecordSQL.PAUSES.
_SHORTEST_PAUSE = 0.01
#: Seconds until a look that failed is tried again.
_RETRY_PAUSE = 0.5
#: Seconds that the thread stays after the last watch.
_LINGER = 1.0


class _Alarm:
    """Wakes the thread, which may be listening to the server meanwhile."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it is full of rings
            os.write(self._writer, b"\0")

    def wait(self, seconds: float, also: int = -1) -> bool:
        """Wait for a ring, or for the descriptor ``also`` to be readable; whether it was a ring."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if also >= 0:
            poll.register(also, select.POLLIN)
        ready = dict(poll.poll(math.ceil(max(seconds, 0.0) * 1000)))
        if self._reader not in ready:
            return False
        with suppress(BlockingIOError):
            while os.read(self._reader, 1024):
                pass
        return True

    def __del__(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


class RecordWatcher(ThreadOnDemand[None]):
    """All watches of a process on the records of one database; its thread lives as long as any."""

    def __init__(
        self,
        runner: StatementRunner,
        sql: RecordSQL,
        end_expired: Callable[[str], object],
        *,
        listens: bool,
    ) -> None:
        """``end_expired`` ends the sessions of a directory whose time is over.

        ``listens``: the server may tell of changes.
        """
        super().__init__("distlock-records")
        self._runner = runner
        self._sql = sql
        self._end_expired = end_expired
        self._listens = listens
        self._mutex = threading.Lock()
        self._closed = False
        self._alarm: _Alarm | None = None
        #: Changed in single atomic steps: the garbage collector may abandon a watch while a thread
        #: has a mutex.
        self._watches: set[RecordWatch] = set()

    def close(self) -> None:
        """End the thread and its session. The watchers get an answer, and may watch again."""
        with self._mutex:
            self._closed = True
            if self._alarm is not None:
                self._alarm.ring()
        for watch in self._watches.copy():
            self._answer(watch)

    def watch(self, directory: str, since: int, key: str | None) -> Pending[None]:
        """See RecordStore.watch()."""
        watches = self._watches
        with self._mutex:
            alarm = self._alarm = self._alarm or _Alarm()
            self._closed = False

        def drop() -> None:
            watches.discard(watch)
            if not watches:
                alarm.ring()

        watch, is_set = RecordWatch(directory, since, key, Pending(drop)), False
        try:
            watches.add(watch)
            with suppress(RuntimeError):  # no more threads: the caller's own looks have to do
                self._have_thread()
            alarm.ring()
            is_set = True
        finally:
            if not is_set:  # nobody would abandon it
                drop()
        return watch.pending

    def note_change(self, notice: ChangeNotice) -> None:
        """Wake those at once who watch what this process has changed."""
        if self._wake_by(notice):
            self.look_soon()

    def look_soon(self) -> None:
        """Look now: this process has changed something."""
        if self._watches and self._alarm is not None:
            self._alarm.ring()

    def _answer(self, watch: RecordWatch) -> None:
        self._watches.discard(watch)
        watch.pending.resolve(None)
        if not self._watches and self._alarm is not None:
            self._alarm.ring()

    # The thread

    def _run(self, wakeups: WaitQueue[None]) -> None:
        alarm, watches = self._alarm, self._watches
        assert alarm is not None, "somebody watches"
        listener = LISTENERS[self._sql.LISTENS](self._runner.pool) if self._listens else None
        last_watch, failed = clock(), False
        pauses = backoff(*self._sql.PAUSES)
        while self._wakeups is wakeups:
            if watches:
                last_watch = clock()
            elif self._is_over(last_watch) and self._may_end(wakeups, watches.copy):
                break
            try:
                rest = last_watch + _LINGER - clock()
                if watches:
                    # Listen before looking: changes after the look are notified.
                    listening = listener is not None and self._listens_with(listener)
                    first_end = self._look(all_of_them=failed)
                    pause = listener.pause(pauses) if listener and listening else next(pauses)
                    rest, failed = min(pause, max(first_end, _SHORTEST_PAUSE)), False
                    if listener is not None and (waiting := watches.copy()):
                        listener.begin_wait(rest, waiting)
                if self._sleep(alarm, listener, clock() + rest):
                    pauses = backoff(*self._sql.PAUSES)
            except Exception as error:
                failed = True
                if not isinstance(error, (errors.StatementFailed, LockUnavailable)):
                    thread_logger.exception("the watch on records goes on after an error")
                alarm.wait(_RETRY_PAUSE)
        if listener is not None:
            listener.close()

    def _listens_with(self, listener: RecordListener) -> bool:
        """Return whether changes from now on are heard, of all that is watched."""
        watches = self._watches.copy()
        try:
            return listener.listen(
                {self._sql.channel_of(one.directory, one.key) for one in watches}
            )
        except errors.ConnectionLost:
            raise
        except errors.StatementFailed:
            return False  # the server may have no session for it, or no more locks

    def _is_over(self, last_watch: float) -> bool:
        """Return whether it is some time after the last watch, or after close().

        Where Django's tests run, an open session would keep the test database from being dropped.
        """
        at_once = self._closed or self._runner.pool.idle == 0
        return at_once or clock() >= last_watch + _LINGER

    def _sleep(self, alarm: _Alarm, listener: RecordListener | None, until: float) -> bool:
        """Wait for something to look at; whether this process has rung."""
        while True:
            if listener is None:
                return alarm.wait(until - clock())
            looks = [self._wake_by(notice) for notice in listener.heard()]
            if any(looks):
                return False
            if alarm.wait(until - clock(), listener.fileno()):
                return True
            if clock() >= until:
                return False

    def _wake_by(self, notice: ChangeNotice) -> bool:
        """Answer those whose directory or record was changed; whether to look for others."""
        look = False
        for watch in self._watches.copy():
            if watch.directory != notice.directory:
                continue
            if notice.revision is None or (watch.key is not None and notice.keys is None):
                look = True
            elif notice.revision > watch.since and (
                watch.key is None or notice.keys is None or watch.key in notice.keys
            ):
                self._answer(watch)
        return look

    def _look(self, *, all_of_them: bool) -> float:
        """Answer those whose directory or record has changed, after an outage ``all_of_them``.

        Returns the seconds until the first session ends of those that have records there.
        """
        watches = self._watches.copy()
        revisions: dict[str, int] = {}
        first_end = math.inf
        for name, revision, rest in self._rows(self._sql.look, {one.directory for one in watches}):
            revisions[name] = int(revision)
            if rest is not None:
                first_end = min(first_end, int(rest) / 1_000_000)
            if rest is not None and int(rest) <= 0:
                # A change, which is seen at the next look. If the directory is locked, the others
                # must be answered all the same.
                with suppress(LockUnavailable):
                    self._end_expired(name)
        if not all_of_them:
            watches = {one for one in watches if revisions.get(one.directory, 0) > one.since}
            watches = self._whose_record_has_changed(watches)
        for watch in watches:
            self._answer(watch)
        return first_end

    def _whose_record_has_changed(self, watches: set[RecordWatch]) -> set[RecordWatch]:
        """Leave out those who watch one record, which has not changed."""
        addresses = {(one.directory, one.key) for one in watches if one.key is not None}
        revisions: dict[Address, int] = {
            (directory, key): int(revision)
            for directory, key, revision in self._rows(self._sql.look_at_records, addresses)
        }
        return {
            one
            for one in watches
            if one.key is None or revisions.get((one.directory, one.key), math.inf) > one.since
        }

    def _rows(
        self, ask_about: Callable[[Sequence[T]], Statement], what: Collection[T]
    ) -> Iterator[tuple[Any, ...]]:
        for some in batches(sorted(what), BATCH):
            statement = ask_about(some)
            yield from self._runner.attempt(lambda db: db.ask(statement).rows, None)  # noqa: B023
