"""What those who wait ask of the row of a lock."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import connections

from distlock.backends.database import errors
from distlock.backends.database.connection import Connection, Session
from distlock.backends.database.engines import dialect_for
from distlock.backends.database.pool import Pool
from distlock.backends.database.queue.advisory_locks import AdvisoryLocks
from distlock.backends.database.queue.wait_session import WaitSession
from distlock.backends.database.sql import TABLE, holder
from distlock.backends.database.statements import Statement
from distlock.clock import clock
from distlock.types.lease import Claim, Lease

#: Seconds that those in front are given to take a lock that can be taken. Longer than the longest
#: pause between two looks of the head of the queue.
GRACE = 0.5
#: Seconds between attempts to free what nobody waits for.
_UNDO_PAUSE = 0.5


class RowSnapshot(NamedTuple):
    """A row, seen in passing.

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

    def open_to(self, claim: Claim) -> bool:
        """Return whether the claim can be granted now."""
        return not self.owner or self.remaining <= 0 or self.is_held_by(claim)

    def untaken_for(self, seconds: float) -> bool:
        """Return whether anybody could have taken the lock for so many seconds."""
        return self.remaining <= -seconds

    def is_held_by(self, claim: Claim) -> bool:
        """Return whether the claim's owner is in already, perhaps from elsewhere by its name."""
        return self.owner == holder(claim)


class LockRows:
    """The table of a database with native locks. Everything raises a StatementFailed."""

    def __init__(self, pool: Pool, native: AdvisoryLocks) -> None:
        self.pool = pool
        self.native = native

    def key(self, name: str) -> str:
        """Return the native lock of the lock ``name``."""
        database = connections[self.pool.database].settings_dict.get("NAME")
        return self.native.key(str(database or ""), name)

    def take_if_no_waiters(self, claim: Claim, deadline: float | None = None) -> int | None:
        """Take the row if nobody waits for the lock, or if it is the owner's; the token, or None.

        Also if those who wait have not taken it in time: whoever has the native lock may have left
        the lock without knowing it, because it was broken, or left elsewhere by its owner's name.
        Raises RowLocked if a transaction of someone else kept the row, whoever has the lock.
        """
        free = self.native.is_free(self.key(claim.name))

        def work(session: Session, until: float) -> int | None:
            dialect = dialect_for(session.wrapper)
            condition = f"({dialect.owned} OR {free} OR {dialect.untaken_for(GRACE)})"
            if session.pooled:  # nobody stands in a queue; what is there was left behind
                condition = "TRUE"
            limit = self.pool.limit(until)
            return dialect.acquire(lambda asked: session.run(asked, limit), claim, condition)

        try:
            return self.pool.work(work, deadline)
        except errors.SerializationFailure:  # someone is writing the row at the moment
            return None

    def take_at(self, place: WaitSession, claim: Claim) -> int | None:
        """Take the row, from the session of one who waits, in its turn; the token, or None."""
        dialect = dialect_for(place.session.wrapper)
        if place.ticket is None:
            return dialect.granted(claim, place.take(dialect.acquire_sql(claim)))
        oldest = self.native.is_oldest(place.key_of(claim.name), place.ticket)
        taking = dialect.acquire_sql(claim, f"({dialect.owned} OR {oldest})")
        return dialect.granted(claim, place.run(taking))

    def take_now(self, place: WaitSession, claim: Claim) -> int | None:
        """Take the row whosever turn it is; see take_at()."""
        dialect = dialect_for(place.session.wrapper)
        return dialect.granted(claim, place.run(dialect.acquire_sql(claim)))

    def enter_at(self, place: WaitSession, claim: Claim) -> int | None:
        """Take the row if its owner has it already, by its name; see take_at()."""
        dialect = dialect_for(place.session.wrapper)
        return dialect.granted(claim, place.run(dialect.acquire_sql(claim, dialect.owned)))

    def look(self, names: Iterable[str], deadline: float | None = None) -> dict[str, RowSnapshot]:
        """Look at the rows of some locks, by name."""
        answer = self.pool.run(self.native.look(TABLE, list(names)), deadline)
        return {glance.name: glance for glance in map(RowSnapshot.of, answer.rows)}

    def look_from(
        self, place: WaitSession, name: str, pause: float, waiter: object, sign: str = ""
    ) -> RowSnapshot | None:
        """Look at the row of a lock, from the session of one who waits; None if there is none.

        See WaitSession.run_later() for the rest.
        """
        look = self.native.look(TABLE, [name])
        for row in place.run_later(look, pause, waiter, sign).rows:
            return RowSnapshot.of(row)
        return None

    def undo(self, claim: Claim) -> None:
        """Free the lock if the claim has got it; try for as long as that could last."""
        until = clock() + claim.reserved
        while clock() < until:
            try:
                self.pool.run(lambda session: _free(session, claim.name, nonce=claim.nonce))
                return
            except errors.StatementFailed:
                time.sleep(_UNDO_PAUSE)

    def free_lease(self, session: Connection, lease: Lease) -> Statement:
        """Return what frees a lock if it is held by exactly this lease."""
        return _free(session, lease.name, nonce=lease.nonce)


def _free(session: Connection, name: str, **hold: str | int) -> Statement:
    return dialect_for(session.wrapper).free(name, **hold)
