"""Wakes those who wait for a change of records: one thread, which asks for all of them at once.

What it says is a hint. It looks often at first, and then less and less until something changes.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.statements import Statement
from distlock.backends.store import Address
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import start
from distlock.exceptions import LockUnavailable

logger = logging.getLogger("distlock")

#: Seconds between two looks.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: Seconds that the thread stays after the last watch.
_LINGER = 1.0
#: Directories in one statement.
_BATCH = 400


class _Watch(NamedTuple):
    directory: str
    since: int
    key: str | None
    pending: Pending[None]


class RecordWatcher:
    """All watches of a process on the records of one database; its thread lives as long as any."""

    def __init__(
        self,
        runner: StatementRunner,
        sql: RecordSQL,
        end_expired: Callable[[str], object],
    ) -> None:
        """``end_expired`` ends the sessions of a directory whose time is over."""
        self._runner = runner
        self._sql = sql
        self._end_expired = end_expired
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Have no watches and no thread: they are the parent's."""
        self._mutex = threading.Lock()
        self._running = False
        #: Changed in single atomic steps: the garbage collector may abandon a watch while a thread
        #: has a mutex.
        self._watches: dict[object, _Watch] = {}
        self._wakeups: SimpleQueue[None] = SimpleQueue()

    def watch(self, directory: str, since: int, key: str | None) -> Pending[None]:
        """See RecordStore.watch()."""
        token = object()
        watches = self._watches
        pending: Pending[None] = Pending(lambda: watches.pop(token, None))
        watches[token] = _Watch(directory, since, key, pending)
        try:
            with self._mutex:
                if not self._running:
                    # Interrupted here, the next one starts another thread: two do no harm.
                    start(self._run, "distlock-records")
                    self._running = True
        except BaseException as error:
            watches.pop(token, None)
            if not isinstance(error, RuntimeError):
                raise
            pending.resolve(None)  # no more threads can be had: the caller has to look by itself
            return pending
        self._wakeups.put(None)
        return pending

    def note_change(self, directory: str, keys: Collection[str]) -> None:
        """Wake those at once who watch what this process has changed."""
        for token, watch in list(self._watches.items()):
            if watch.directory == directory and (watch.key is None or watch.key in keys):
                self._answer(token, watch)

    def look_soon(self) -> None:
        """Look now: this process has changed something."""
        if self._watches:
            self._wakeups.put(None)

    def _answer(self, token: object, watch: _Watch) -> None:
        self._watches.pop(token, None)
        watch.pending.resolve(None)

    # The thread

    def _run(self) -> None:
        watches, wakeups = self._watches, self._wakeups  # a child of a fork has others
        last_watch, failed = clock(), False
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            rest = _LINGER
            if watches:
                last_watch = clock()
                try:
                    first_end = self._look(all_of_them=failed)
                    failed = False
                    rest = min(next(pauses), max(first_end, 0.0))
                except Exception as error:
                    failed = True
                    rest = _LONGEST_PAUSE
                    if not isinstance(error, (StatementFailed, LockUnavailable)):
                        logger.exception("the watch on records goes on after an error")
            elif clock() >= last_watch + _LINGER:
                with self._mutex:
                    self._running = bool(watches)
                    if not self._running:
                        return
            with suppress(Empty):
                wakeups.get(timeout=rest)
                pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                while True:
                    wakeups.get_nowait()

    def _look(self, *, all_of_them: bool) -> float:
        """Answer those whose directory or record has changed, after an outage ``all_of_them``.

        Returns the seconds until the first session ends of those that have records there.
        """
        watches = list(self._watches.items())
        changed: list[tuple[object, _Watch]] = []
        names = sorted({watch.directory for _, watch in watches})
        revisions: dict[str, int] = {}
        first_end = math.inf
        for start_at in range(0, len(names), _BATCH):
            look = self._sql.look(names[start_at : start_at + _BATCH])
            for name, revision, rest in self._rows(look):
                revisions[name] = int(revision)
                if rest is None:
                    continue
                if int(rest) <= 0:
                    self._end_expired(name)  # a change, which is seen at the next look
                first_end = min(first_end, int(rest) / 1_000_000)
        for token, watch in watches:
            if all_of_them or revisions.get(watch.directory, 0) > watch.since:
                changed.append((token, watch))
        if not all_of_them:
            changed = self._whose_record_has_changed(changed)
        for token, watch in changed:
            self._answer(token, watch)
        return first_end

    def _whose_record_has_changed(
        self, watches: Sequence[tuple[object, _Watch]]
    ) -> list[tuple[object, _Watch]]:
        """Leave out those who watch one record, which has not changed."""
        addresses = sorted({(one.directory, one.key) for _, one in watches if one.key is not None})
        revisions: dict[Address, int] = {}
        for start_at in range(0, len(addresses), _BATCH):
            look = self._sql.look_at_records(addresses[start_at : start_at + _BATCH])
            for directory, key, revision in self._rows(look):
                revisions[directory, key] = int(revision)
        return [
            (token, watch)
            for token, watch in watches
            if watch.key is None
            or revisions.get((watch.directory, watch.key), math.inf) > watch.since
        ]

    def _rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        return self._runner.attempt(lambda db: db.ask(statement).rows, None)
