"""What was seen of a lock while somebody asked for it: "someone else has it" must be proven."""

from __future__ import annotations

import math
import time

from distlock.backends.database.errors import RowLocked, StatementFailed
from distlock.backends.database.queue.lock_rows import LockRows, RowSnapshot
from distlock.backends.database.sql import TABLE
from distlock.clock import clock
from distlock.types.lease import Claim

#: Seconds that those who are next in line may take until they have a lock that was freed.
_HANDOVER = 2.0
#: Seconds that the last answer may take.
MOMENT = 1.0
#: Seconds between two looks.
_PAUSE = 0.05


class HolderEvidence:
    """What the database has said about one claim's lock since it was asked for."""

    def __init__(self, rows: LockRows, claim: Claim) -> None:
        self._rows = rows
        self._claim = claim
        self._began = clock()
        #: when the latest question was sent whose answer was that someone else has the lock
        self.held_at = -math.inf
        #: why the lock could not be taken although it may be free
        self.refused: RowLocked | None = None

    def is_held(self, deadline: float | None) -> bool:
        """Ask whether someone else has the lock now; raises a StatementFailed."""
        sent_at = clock()
        row = self._rows.look([self._claim.name], deadline).get(self._claim.name)
        held = row is not None and not row.open_to(self._claim)
        if held:
            self.held_at = sent_at
        return held

    def check(self) -> None:
        """Raise a StatementFailed unless someone else had the lock, by the database's word.

        That word must not be older than what the database gets for an answer. If there is none,
        it is asked again for a moment, although the caller's time is over.
        """
        now = clock()
        if now - self.held_at < self._rows.pool.timeout:
            return
        while True:
            row = self._rows.look([self._claim.name], now + MOMENT).get(self._claim.name)
            if row is not None and self._was_held(row, now):
                return
            if self.refused is not None or clock() >= now + MOMENT:
                break
            time.sleep(_PAUSE)  # someone may be taking it: for the first time, it has no row yet
        if self.refused is not None:
            raise self.refused
        raise StatementFailed(
            f"lock {self._claim.name!r} is free, but could not be taken in time: its row or the"
            f" table {TABLE} is locked by a transaction of someone else, or whoever is next in line"
            " does not come"
        )

    def _was_held(self, row: RowSnapshot, now: float) -> bool:
        if row.is_held_by(self._claim):
            return False
        if row.remaining > 0:
            return bool(row.owner)
        if self.refused is not None:
            # The holder may be committing a transaction under it, even if the lease has ended.
            return bool(row.owner)
        return row.remaining > -max(now - self._began, _HANDOVER)
