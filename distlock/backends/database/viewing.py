"""What a database tells of its locks: who holds them, and who waits where that can be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from distlock.backends.database.looking import info, row_of, rows_in_use
from distlock.backends.database.paging import page
from distlock.backends.database.queue.wait_manager import WaitManager
from distlock.backends.database.runner import StatementRunner
from distlock.types.lease import LockInfo, Waiting
from distlock.types.query import LockQuery, Page

#: who waits, by native lock
Lines = dict[str, tuple[Waiting, ...]]


class View:
    """The locks of a backend. Who waits is asked in one statement for all of them."""

    def __init__(self, access: StatementRunner, room: WaitManager | None, using: str) -> None:
        """``room`` is where its processes wait in the engine's own queue, if they do."""
        self._access = access
        self._waits = room
        self._using = using

    def inspect(self, name: str, deadline: float | None) -> LockInfo:
        """See BaseBackend.inspect()."""
        row = row_of(self._access, name, deadline)
        found = info(row, self._using) if row else LockInfo(name, self._using)
        return next(self._with_waiters([found]))

    def list(self, prefix: str, deadline: float | None) -> Iterator[LockInfo]:
        """See BaseBackend.list(); rows are read in batches, as they are asked for."""
        rows = rows_in_use(self._access, prefix, deadline)
        return self._with_waiters(info(row, self._using) for row in rows)

    def page(self, query: LockQuery, deadline: float | None) -> Page | None:
        """See paging.page()."""
        found = page(self._access, self._using, query, deadline)
        waiting = self._waits.waiting() if self._waits and found else None
        if found is None or waiting is None:
            return found
        return replace(
            found,
            locks=tuple(self._with(waiting, one) for one in found.locks),
            counts=replace(found.counts, waiting=sum(map(len, waiting.values()))),
        )

    def _with_waiters(self, infos: Iterable[LockInfo]) -> Iterator[LockInfo]:
        waiting = self._waits.waiting() if self._waits else None
        for one in infos:
            yield one if waiting is None else self._with(waiting, one)

    def _with(self, waiting: Lines, one: LockInfo) -> LockInfo:
        assert self._waits is not None
        return replace(one, waiters=waiting.get(self._waits.key(one.name), ()))
