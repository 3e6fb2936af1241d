"""SQLite 3.35 and later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.dialects.base import TABLE
from distlock.backends.database.dialects.text import TextDialect, whole
from distlock.backends.database.statements import Statement
from distlock.types.lease import Lease

# Text in UTC, to the millisecond, as Django reads it.
_TIME = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'{0})"
_NOW = _TIME.format("")
_LATER = _TIME.format(", '+' || {0} || ' seconds'")
_MICROSECONDS = (
    "(CAST(strftime('%%s', 'now') AS INTEGER) * 1000000"
    " + CAST(substr(strftime('%%f', 'now'), 4) AS INTEGER) * 1000)"
)

_TAKE = f"""
INSERT INTO {TABLE} AS held
    (lock, description, owner, nonce, host, process, thread, lease, renews, token, acquired_at,
     expires_at)
VALUES
    (%(lock)s, %(description)s, %(owner)s, %(nonce)s, %(host)s, %(process)s, %(thread)s,
     %(lease)s, %(renews)s,
     {_MICROSECONDS}, {_NOW}, {_LATER.format("%(duration)s")})
ON CONFLICT (lock) DO UPDATE SET
    description = excluded.description, owner = excluded.owner, nonce = excluded.nonce,
    host = excluded.host, process = excluded.process, thread = excluded.thread,
    lease = excluded.lease, renews = excluded.renews,
    token = max(held.token + 1, {_MICROSECONDS}),
    acquired_at = {_NOW}, expires_at = {_LATER.format("%(duration)s")}
WHERE (held.owner = '' OR held.owner = excluded.owner OR held.expires_at <= {_NOW})
    AND {{condition}}
RETURNING nonce, token
"""


class SQLite(TextDialect):
    """SQLite, whose one writer at a time keeps everyone else from taking a lock meanwhile."""

    TAKE: ClassVar[str] = _TAKE
    NOW: ClassVar[str] = _NOW
    LATER: ClassVar[str] = _LATER
    MICROSECONDS: ClassVar[str] = _MICROSECONDS
    SECONDS: ClassVar[str] = "{0}"
    EARLIER: ClassVar[str] = _TIME.format(", '-' || {0} || ' seconds'")
    FOR_UPDATE: ClassVar[str] = ""
    guards_early: ClassVar[bool] = True
    one_writer: ClassVar[bool] = True

    def unlocked(self, leases: Sequence[Lease]) -> Statement | None:
        return None  # it has no locks of rows

    def guard(self, lease: Lease) -> Statement:
        # Rows cannot be locked; but whoever writes is the only one who can.
        where, params = self.these([lease])
        return Statement(f"UPDATE {TABLE} SET expires_at = expires_at WHERE {where}", params)

    def duration(self, seconds: float) -> str:
        return f"{whole(seconds, 1000) / 1000:.3f}"

    def written(self, moment: datetime) -> str:
        time: datetime = super().written(moment)
        return time.isoformat(sep=" ", timespec="milliseconds")

    def moment(self, value: Any) -> datetime:
        # Columns have been converted by Django, expressions have not.
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC)
