"""PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.sql import TABLE, Dialect, ceil_units
from distlock.backends.database.statements import Statement

# Not now() or CURRENT_TIMESTAMP, which are the time at which the transaction began.
_NOW = "clock_timestamp()"
_LATER = f"{_NOW} + {{0}} * interval '1 microsecond'"
_MICROSECONDS = f"(extract(epoch FROM {_NOW}) * 1000000)::bigint"

# EXCLUDED has the values as they were before the row was waited for, so not its times.
_ACQUIRE = f"""
INSERT INTO {TABLE} AS held
    (lock, description, owner, nonce, host, process, thread, lease, renews, token, acquired_at,
     expires_at)
VALUES
    (%(lock)s, %(description)s, %(owner)s, %(nonce)s, %(host)s, %(process)s, %(thread)s,
     %(lease)s, %(renews)s,
     {_MICROSECONDS}, {_NOW}, {_LATER.format("%(duration)s")})
ON CONFLICT (lock) DO UPDATE SET
    description = EXCLUDED.description, owner = EXCLUDED.owner, nonce = EXCLUDED.nonce,
    host = EXCLUDED.host, process = EXCLUDED.process, thread = EXCLUDED.thread,
    lease = EXCLUDED.lease, renews = EXCLUDED.renews,
    token = GREATEST(held.token + 1, {_MICROSECONDS}),
    acquired_at = {_NOW}, expires_at = {_LATER.format("%(duration)s")}
WHERE (held.owner = '' OR held.owner = EXCLUDED.owner OR held.expires_at <= {_NOW})
    AND {{condition}}
RETURNING nonce, token
"""


class PostgreSQL(Dialect):
    """PostgreSQL, all of whose times know their zone, which drivers read in various ways."""

    ACQUIRE: ClassVar[str] = _ACQUIRE
    READ: ClassVar[str] = "{0} AT TIME ZONE 'UTC'"
    prepares: ClassVar[bool] = True
    POSITION: ClassVar[str] = "strpos"
    NOW: ClassVar[str] = _NOW
    LATER: ClassVar[str] = _LATER
    MICROSECONDS: ClassVar[str] = _MICROSECONDS
    SECONDS: ClassVar[str] = "{0} * 1000000"
    EARLIER: ClassVar[str] = f"{_NOW} - {{0}} * interval '1 microsecond'"

    def free(self, lock: str, **hold: str | int) -> Statement:
        # The commit need not be waited for: should it be lost in a crash, the lease still ends.
        statement = super().free(lock, **hold)
        return statement._replace(
            sql=f"{statement.sql} RETURNING set_config('synchronous_commit', 'off', true)"
        )

    def duration(self, seconds: float) -> int:
        return ceil_units(seconds, 1_000_000)

    def to_db(self, moment: datetime) -> datetime:
        return moment.astimezone(UTC)

    def from_db(self, value: Any) -> datetime:
        time: datetime = value
        return time.replace(tzinfo=UTC)
