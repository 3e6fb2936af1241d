"""The way to the database: where a piece of work runs, and what callers are told when it fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from distlock.backends.database.dialects.base import Ask, Dialect
from distlock.backends.database.direct import Direct
from distlock.backends.database.errors import (
    ROW_WAIT,
    RowLocked,
    StatementFailed,
    unavailable,
)
from distlock.backends.database.pool import Pool
from distlock.backends.database.session import Runner
from distlock.backends.database.statements import Answer, Statement
from distlock.clock import clock
from distlock.exceptions import LockUnavailable

T = TypeVar("T")

#: What to do, in the words of a dialect, with a way to ask. It may be done twice.
Work = Callable[[Dialect, Ask], T]


class Access:
    """A database, through shared sessions or, where that must be, the caller's own connection."""

    def __init__(self, pool: Pool, direct: Direct, dialect_for: Callable[[Any], Dialect]) -> None:
        self.pool = pool
        self.direct = direct
        self._dialect_for = dialect_for

    def do(self, work: Work[T], deadline: float | None, nonce: str | None = None) -> T:
        """Do some work, waiting for rows that others keep locked; LockUnavailable if it fails.

        ``nonce`` says whose hold it is about; that may be known to one connection only.
        """
        until = clock() + self.pool.limit(deadline)
        while True:
            try:
                return self.attempt(work, until, nonce)
            except RowLocked as failed:
                if clock() + ROW_WAIT >= until:
                    raise self.unavailable(failed) from failed.__cause__
            except StatementFailed as failed:
                raise self.unavailable(failed) from failed.__cause__

    def attempt(
        self,
        work: Work[T],
        deadline: float | None,
        nonce: str | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Do some work; raises a StatementFailed. See do(), and Pool.do() for ``at_once``."""

        def with_runner(runner: Runner, until: float) -> T:
            return work(self._dialect_for(runner.wrapper), partial(self._ask, runner, until))

        if runner := self.direct.runner(nonce):
            return with_runner(runner, clock() + self.pool.limit(deadline))
        return self.pool.do(with_runner, deadline, at_once=at_once)

    def _ask(self, runner: Runner, until: float, statement: Statement) -> Answer:
        return runner.run(statement, self.pool.limit(until))

    def unavailable(self, failed: StatementFailed) -> LockUnavailable:
        """Return what callers of the backend are told of a failure."""
        return unavailable(failed, self.pool.database)
