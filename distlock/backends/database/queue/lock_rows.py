"""What waiters ask of the row of a lock, and what its answers prove."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.connection import Session
from distlock.backends.database.pool import Pool
from distlock.backends.database.sql import TABLE, holder
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim

#: Seconds that those in front are given to take a lock that can be taken. Longer than the longest
#: pause between two looks of the head of the queue.
GRACE = 0.5
#: A row that was freed less than so many seconds ago still counts as held: the next one takes it.
_HANDOVER = 2.0
#: Seconds between two looks for evidence.
_EVIDENCE_PAUSE = 0.05


class RowSnapshot(NamedTuple):
    """The row of a lock at one moment.

    ``remaining`` is the seconds until the lease ends; below zero, since it ended or was freed.
    """

    name: str
    owner: str
    token: int
    remaining: float

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> RowSnapshot:
        """Read a row of the answer to ``AdvisoryLocks.look()``."""
        name, owner, token, remaining = row
        return cls(str(name), str(owner), int(token), float(remaining))

    @property
    def stalled(self) -> bool:
        """Whether those in front have had the time to take the lock, and did not."""
        return self.remaining <= -GRACE

    def grantable_to(self, claim: Claim) -> bool:
        """Return whether the claim can be granted now."""
        return not self.owner or self.remaining <= 0 or self.is_held_by(claim)

    def is_held_by(self, claim: Claim) -> bool:
        """Return whether the claim's owner holds it, perhaps from elsewhere by its name."""
        return self.owner == holder(claim)


class LockRows:
    """The table of a database with native locks. Everything raises a StatementFailed."""

    def __init__(self, pool: Pool, locks: AdvisoryLocks) -> None:
        self.pool = pool
        self.locks = locks

    def take_if_no_waiters(self, claim: Claim, deadline: float | None = None) -> int | None:
        """Take the row if nobody waits for the lock, or if it is the owner's; the token, or None.

        Also if those who wait have not taken it in time: the native lock may be kept for a hold
        that was broken, or was freed elsewhere by its owner's name. Raises RowLocked if a
        transaction of someone else kept the row, whoever has the lock.
        """

        def work(session: Session) -> int | None:
            dialect, locks = session.dialect, self.locks
            if session.pooled:  # nobody waits in a queue; a native lock there was left behind
                return dialect.acquire(session.ask, claim)
            values = locks.values(locks.key(session.namespace, claim.name))
            return dialect.acquire(
                session.ask, claim, dialect.in_order(locks.nobody_waits, GRACE), values
            )

        try:
            return self.pool.work(work, deadline)
        except errors.SerializationFailure:  # someone is writing the row at the moment
            return None

    def look(self, names: Iterable[str], deadline: float | None = None) -> dict[str, RowSnapshot]:
        """Look at the rows of some locks, by name."""
        answer = self.pool.run(self.locks.look(list(names)), deadline)
        return {row.name: row for row in map(RowSnapshot.of, answer.rows)}


@dataclass(slots=True)
class HolderEvidence:
    """What the database has said about who holds a lock since one claim asked for it.

    That someone else has a lock is told to the caller only if the database has said so.
    """

    _rows: LockRows
    _claim: Claim
    #: when the claim asked first
    began: float = field(default_factory=clock)
    #: when the latest question was sent whose answer was that someone else has the lock
    held_at: float = -math.inf
    #: why the lock could not be taken although it may be free
    row_locked: errors.RowLocked | None = None

    @property
    def is_recent(self) -> bool:
        """Whether it is no older than what the database gets for an answer."""
        return clock() - self.held_at < self._rows.pool.timeout

    def look(self, deadline: float | None) -> bool:
        """Ask whether someone else has the lock now; raises a StatementFailed."""
        sent_at = clock()
        row = self._rows.look([self._claim.name], deadline).get(self._claim.name)
        if row is None or row.grantable_to(self._claim):
            return False
        self.note_held(row, sent_at)
        return True

    def note_held(self, row: RowSnapshot, sent_at: float) -> None:
        """Note that someone else has the lock; forget a holder noted under another token."""
        holder = self._claim.refused_by
        if holder is not None:
            age = (holder.held_for or 0.0) + sent_at - max(self.held_at, self.began)
            same = holder.token == row.token
            self._claim.refused_by = replace(holder, held_for=age) if same else None
        self.held_at = sent_at

    def check(self, deadline: float | None) -> None:
        """Raise a StatementFailed unless someone else had the lock, by the database's word.

        That word must not be older than what the database gets for an answer. If there is none,
        it is asked again until ``deadline``, although the caller's time is over.
        """
        now = clock()
        until = math.inf if deadline is None else deadline
        if self.is_recent:
            return
        while True:
            row = self._rows.look([self._claim.name], until).get(self._claim.name)
            if row is not None and self._was_held(row, now):
                self.note_held(row, clock())
                return
            if self.row_locked is not None:
                raise self.row_locked
            if clock() >= until:
                break
            time.sleep(_EVIDENCE_PAUSE)  # it may be taken just now, for the first time: no row yet
        raise errors.StatementFailed(
            f"lock {self._claim.name!r} is free, but could not be taken in time: its row or the"
            f" table {TABLE} is locked by a transaction of someone else, or whoever is next in line"
            " does not come"
        )

    def _was_held(self, row: RowSnapshot, now: float) -> bool:
        if row.is_held_by(self._claim):
            return False
        # Where the row is locked, the holder may be committing, even if the lease has ended.
        if row.remaining > 0 or self.row_locked is not None:
            return bool(row.owner)
        return row.remaining > -max(now - self.began, _HANDOVER)
