"""One row of the table, and what it says about its lock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from distlock.types.lease import Holder, LastHold, LockInfo, Owner, State
from distlock.types.owners import is_reserved

#: The columns of a Row in order, without the server's own time, which comes last.
COLUMNS = (
    "lock",
    "description",
    "owner",
    "nonce",
    "host",
    "process",
    "thread",
    "token",
    "lease",
    "renews",
    "acquired_at",
    "expires_at",
)


class Row(NamedTuple):
    """One row of the table, and the server's time at which it was read; times are aware, in UTC."""

    lock: str
    description: str
    owner: str
    nonce: str
    host: str
    process: int
    thread: str
    token: int
    lease: float
    renews: bool
    since: datetime
    until: datetime
    now: datetime

    @property
    def free(self) -> bool:
        return not self.owner

    @property
    def expired(self) -> bool:
        return bool(self.owner) and self.until <= self.now

    @property
    def holder(self) -> Holder | None:
        """The holder of the lock; None if it is free."""
        holders = () if self.expired else info_of(self, "").holders
        return holders[0] if holders else None


def owner_of(row: Row) -> Owner:
    """Return who holds a lock by its row."""
    return Owner(row.owner.removesuffix(f":{row.nonce}"), row.host, row.process, row.thread)


def info_of(row: Row, using: str) -> LockInfo:
    """Return what a row says about its lock, by the clock of the server that read it."""
    if _is_free(row):
        owner = Owner("", row.host, row.process, row.thread)
        last = LastHold(owner, row.since, row.until, row.nonce or "released", row.description)
        return LockInfo(row.lock, using, token=row.token, last=last if row.host else None)
    return LockInfo(
        row.lock,
        using,
        State.EXPIRED if row.expired else State.HELD,
        owner=owner_of(row),
        token=row.token,
        since=row.since,
        until=row.until,
        held_for=max((row.now - row.since).total_seconds(), 0.0),
        remaining=max((row.until - row.now).total_seconds(), 0.0),
        description=row.description,
        lease=row.lease,
        renews=row.renews,
        renewed_at=row.until - timedelta(seconds=row.lease),
    )


def _is_free(row: Row) -> bool:
    # A reserved lock was left by its holder: when its time is over it is free, not expired.
    return row.free or (row.expired and is_reserved(owner_of(row)))
