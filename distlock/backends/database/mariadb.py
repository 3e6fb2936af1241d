"""MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.sql import TABLE, Ask, Dialect, ceil_units
from distlock.backends.database.statements import Statement
from distlock.types.lease import Claim, Lease

_NOW = "UTC_TIMESTAMP(6)"
_LATER = f"{_NOW} + INTERVAL {{0}} MICROSECOND"
_MICROSECONDS = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {_NOW})"

# Assignments are made from left to right, and later ones see what earlier ones have assigned:
# the first decides, the others look at what it decided, and owner and expires_at, by which it was
# decided, come last. https://dev.mysql.com/doc/refman/8.4/en/update.html
# Where SQL_MODE has them made all at once, the nonce is ours and the owner is not: see _VERDICT.
_MINE = "nonce = VALUES(nonce)"
_ACQUIRE = f"""
INSERT INTO {TABLE}
    (`lock`, description, owner, nonce, host, process, thread, lease, renews, token, acquired_at,
     expires_at)
VALUES
    (%(lock)s, %(description)s, %(owner)s, %(nonce)s, %(host)s, %(process)s, %(thread)s,
     %(lease)s, %(renews)s,
     {_MICROSECONDS}, {_NOW}, {_LATER.format("%(duration)s")})
ON DUPLICATE KEY UPDATE
    nonce = IF((owner = '' OR owner = VALUES(owner) OR expires_at <= {_NOW}) AND {{condition}},
               VALUES(nonce), nonce),
    token = IF({_MINE}, GREATEST(token + 1, {_MICROSECONDS}), token),
    description = IF({_MINE}, VALUES(description), description),
    host = IF({_MINE}, VALUES(host), host),
    process = IF({_MINE}, VALUES(process), process),
    thread = IF({_MINE}, VALUES(thread), thread),
    lease = IF({_MINE}, VALUES(lease), lease),
    renews = IF({_MINE}, VALUES(renews), renews),
    acquired_at = IF({_MINE}, {_NOW}, acquired_at),
    owner = IF({_MINE}, VALUES(owner), owner),
    expires_at = IF({_MINE}, {_LATER.format("%(duration)s")}, expires_at)
"""


# Takes a row that exists. Its verdict is the number of rows that it matched: with and without
# CLIENT_FOUND_ROWS that is one or none, because the token of a row that it matched always changes.
# Its token is what LAST_INSERT_ID(expr) was given, which the OK packet carries, so that nothing has
# to be read. https://dev.mysql.com/doc/refman/8.4/en/information-functions.html
# Where Galera runs it again after it lost against another node, there is one OK packet, of the last
# time. Repeated after a lost answer it matches again: the owner includes the nonce.
_ACQUIRE_EXISTING = f"""
UPDATE {TABLE} SET
    token = LAST_INSERT_ID(GREATEST(token + 1, {_MICROSECONDS})),
    description = %(description)s, nonce = %(nonce)s, host = %(host)s, process = %(process)s,
    thread = %(thread)s, lease = %(lease)s, renews = %(renews)s,
    acquired_at = {_NOW}, owner = %(owner)s, expires_at = {_LATER.format("%(duration)s")}
WHERE `lock` = %(lock)s AND (owner = '' OR owner = %(owner)s OR expires_at <= {_NOW})
    AND {{condition}}
"""

_VERDICT = "IF(owner = %(owner)s, nonce, '') AS nonce, token"


class MySQL(Dialect):
    """MySQL, which has to be asked for the row after it was written, in the same packet.

    ``UTC_TIMESTAMP(6)`` is the time at which the statement began, in every session alike. A
    statement that waited for a row thus takes a lease for running that ended meanwhile, never the
    other way round; and what it grants is counted from when it was sent.
    """

    LOCK: ClassVar[str] = "`lock`"
    HELD: ClassVar[str] = ""
    NOW: ClassVar[str] = _NOW
    LATER: ClassVar[str] = _LATER
    MICROSECONDS: ClassVar[str] = _MICROSECONDS
    SECONDS: ClassVar[str] = "{0} * 1000000"
    EARLIER: ClassVar[str] = f"{_NOW} - INTERVAL {{0}} MICROSECOND"
    ACQUIRE: ClassVar[str] = f"{_ACQUIRE}; SELECT {_VERDICT} FROM {TABLE} WHERE `lock` = %(lock)s"

    def acquire(
        self,
        ask: Ask,
        claim: Claim,
        condition: str = "TRUE",
        values: Mapping[str, Any] | None = None,
    ) -> int | None:
        # Most locks have been taken before, and an UPDATE costs the server less than the INSERT.
        statement = self.acquire_sql(claim, condition, values)
        answer = ask(statement._replace(sql=_ACQUIRE_EXISTING.format(condition=condition)))
        if answer.affected == 1 and answer.insert_id:
            return answer.insert_id
        return self.granted(claim, ask(statement))

    def guard(self, lease: Lease) -> Statement:
        # Galera compares what transactions at different nodes have changed, not what they have
        # locked: the row must be another afterwards.
        where, params = self.where_held([lease])
        later = "expires_at + INTERVAL 1 MICROSECOND"
        return Statement(f"UPDATE {TABLE} SET expires_at = {later} WHERE {where}", params)

    def duration(self, seconds: float) -> int:
        return ceil_units(seconds, 1_000_000)

    def from_db(self, value: Any) -> datetime:
        time: datetime = value
        return time.replace(tzinfo=UTC)


class MariaDB(MySQL):
    """MariaDB, which returns the row that it wrote."""

    ACQUIRE: ClassVar[str] = f"{_ACQUIRE} RETURNING {_VERDICT}"
