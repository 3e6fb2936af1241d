"""PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.dialects.base import TABLE
from distlock.backends.database.dialects.text import TextDialect, whole
from distlock.backends.database.statements import Statement

# Not now() or CURRENT_TIMESTAMP, which are the time at which the transaction began.
_NOW = "clock_timestamp()"
_LATER = f"{_NOW} + {{0}} * interval '1 microsecond'"
_MICROSECONDS = f"(extract(epoch FROM {_NOW}) * 1000000)::bigint"

# EXCLUDED has the values as they were before the row was waited for, so not its times.
_TAKE = f"""
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


class PostgreSQL(TextDialect):
    """PostgreSQL, all of whose times know their zone, which drivers read in various ways."""

    TAKE: ClassVar[str] = _TAKE
    OWN: ClassVar[str] = f"(held.owner = EXCLUDED.owner AND held.expires_at > {_NOW})"
    READ: ClassVar[str] = "{0} AT TIME ZONE 'UTC'"
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
        return whole(seconds, 1_000_000)

    def written(self, moment: datetime) -> datetime:
        return moment.astimezone(UTC)

    def moment(self, value: Any) -> datetime:
        time: datetime = value
        return time.replace(tzinfo=UTC)
