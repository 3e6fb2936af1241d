"""Breaks one hold, and no other."""

from __future__ import annotations

from distlock.backends.database.dialects.base import Ask, Dialect
from distlock.backends.database.looking import owner
from distlock.backends.database.runner import StatementRunner
from distlock.clock import clock
from distlock.types.lease import Claim, Lease


def break_hold(
    access: StatementRunner, name: str, token: int, deadline: float | None
) -> Lease | None:
    """Free a lock if its hold has this token; the broken lease, or None if it is not the one."""
    broken: Lease | None = None

    def free(dialect: Dialect, ask: Ask) -> bool:
        nonlocal broken
        rows = dialect.rows(ask(dialect.one(name, for_update=True)))
        if not rows or rows[0].token != token:
            return False
        if rows[0].free:
            return broken is not None  # done, but the answer was lost
        row = rows[0]
        rest = (row.until - row.now).total_seconds()
        claim = Claim(name, owner(row), rest, row.description, row.nonce)
        broken = claim.granted(token, clock())
        return bool(ask(dialect.free(name, token=token, nonce=row.nonce)).affected)

    return broken if access.work(free, deadline) else None
