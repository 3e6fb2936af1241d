"""Dialects that are written down: SQL with the engine's own words for time filled in."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.dialects.base import (
    COLUMNS,
    LONGEST,
    TABLE,
    Ask,
    Dialect,
    Row,
    columns,
)
from distlock.backends.database.statements import Result, Statement
from distlock.types.lease import Claim, Lease
from distlock.types.owners import kept


class TextDialect(Dialect):
    """A dialect that is written down: SQL with the engine's own words for time filled in."""

    #: the column ``lock``, quoted if the engine takes it for one of its own words
    LOCK: ClassVar[str] = "lock"
    #: the server's time, as the columns have it
    NOW: ClassVar[str]
    #: the time that is so much later; ``{0}`` is the placeholder of a duration
    LATER: ClassVar[str]
    #: a number of seconds in the row as LATER takes it
    SECONDS: ClassVar[str]
    #: the time that is so much earlier
    EARLIER: ClassVar[str]
    #: the server's time in whole microseconds since 1970
    MICROSECONDS: ClassVar[str]
    #: what makes a SELECT lock its rows
    FOR_UPDATE: ClassVar[str] = " FOR UPDATE"
    #: a time as it is read
    READ: ClassVar[str] = "{0}"
    #: takes a lock and returns what the row then says: nonce and token; ``{condition}`` must be
    #: true, too, if the lock has been taken before
    TAKE: ClassVar[str]

    #: a condition for taking(): the lock is held by the same owner already, by its name
    OWN: ClassVar[str]
    #: when the lease in the row ends, as a condition for taking() has it
    EXPIRES_AT: ClassVar[str] = "held.expires_at"

    @abstractmethod
    def duration(self, seconds: float) -> Any:
        """Return a duration as a parameter for LATER, not shorter than asked for."""

    @abstractmethod
    def moment(self, value: Any) -> datetime:
        """Return a time that the driver has read."""

    def written(self, moment: datetime) -> Any:
        """Return an aware time as a parameter to compare a column with; as moment() read it."""
        return moment.astimezone(UTC).replace(tzinfo=None)

    def taking(self, claim: Claim, condition: str = "TRUE") -> Statement:
        """Take a lock; if it has been taken before, ``condition`` must be true, too."""
        params = {**columns(claim), "duration": self.duration(claim.reserved)}
        return Statement(_with(condition, self.TAKE), params)

    def granted(self, claim: Claim, answer: Result) -> int | None:
        """Read the answer to taking(): the token, or None if someone else has the lock."""
        # By the row, never by the number of rows: Django connects to MySQL with CLIENT_FOUND_ROWS,
        # under which a row that was inserted and one that was left as it is both count as one.
        # By the last row: where Galera runs a statement again that lost against another node, the
        # rows of the first time stay in front.
        nonce, token = answer.rows[-1] if answer.rows else (None, None)
        return int(token) if nonce == claim.nonce and token is not None else None

    def take(self, ask: Ask, claim: Claim) -> int | None:
        return self.granted(claim, ask(self.taking(claim)))

    def free(self, lock: str, **hold: str | int) -> Statement:
        same = "".join(f" AND {column} = %({column})s" for column in hold)
        return Statement(
            f"UPDATE {TABLE} SET owner = '', nonce = '', expires_at = {self.NOW}"
            f" WHERE {self.LOCK} = %(lock)s AND owner <> ''{same}",
            {"lock": lock, **hold},
        )

    def reserve(self, lease: Lease, seconds: float) -> Statement:
        later = self.LATER.format("%(seconds)s")
        return Statement(
            f"UPDATE {TABLE} SET owner = %(nobody)s, nonce = '', expires_at = {later},"
            f" lease = %(rest)s, renews = %(renews)s"
            f" WHERE {self.LOCK} = %(lock)s AND expires_at > {self.NOW}"
            " AND (nonce = %(nonce)s OR owner = %(nobody)s)",
            {
                "lock": lease.name,
                "nonce": lease.nonce,
                "nobody": kept(lease.owner, lease.nonce).key,
                "seconds": self.duration(seconds),
                "rest": seconds,
                "renews": False,
            },
        )

    def renew(self, leases: Sequence[Lease]) -> Statement:
        where, params = self.these(leases)
        later = self.LATER.format("%(duration)s")
        return Statement(
            f"UPDATE {TABLE} SET expires_at = {later}, lease = %(lease)s WHERE {where}",
            {
                **params,
                "duration": self.duration(leases[0].duration),
                "lease": leases[0].duration,
            },
        )

    def held(self, leases: Sequence[Lease], *, for_update: bool = True) -> Statement:
        where, params = self.these(leases)
        locking = self.FOR_UPDATE if for_update else ""
        return Statement(f"SELECT nonce FROM {TABLE} WHERE {where}{locking}", params)

    def unlocked(self, leases: Sequence[Lease]) -> Statement | None:
        held = self.held(leases, for_update=False)
        return held._replace(sql=f"{held.sql} FOR UPDATE SKIP LOCKED")

    def guard(self, lease: Lease) -> Statement:
        where, params = self.these([lease])
        return Statement(f"SELECT nonce FROM {TABLE} WHERE {where} FOR UPDATE", params)

    def one(self, lock: str, *, for_update: bool = False) -> Statement:
        locking = self.FOR_UPDATE if for_update else ""
        return Statement(f"{self._select} WHERE {self.LOCK} = %(lock)s{locking}", {"lock": lock})

    def page(self, after: str, beginning: bool, size: int) -> Statement:
        beyond = ">=" if beginning else ">"
        return Statement(
            f"{self._select} WHERE {self.LOCK} {beyond} %(after)s AND owner <> ''"
            f" ORDER BY {self.LOCK} LIMIT {size}",
            {"after": after},
        )

    def rows(self, answer: Result) -> list[Row]:
        return [
            Row._make((*row[:9], bool(row[9]), *map(self.moment, row[10:]))) for row in answer.rows
        ]

    def ended(self, after: int, size: int) -> Statement:
        return self._ids(self._ended, {"after": after}, size)

    def free_ended(self, ids: Sequence[int]) -> Statement:
        return Statement(
            f"UPDATE {TABLE} SET owner = '', nonce = '', expires_at = {self.NOW}"
            f" WHERE {_in('id', 'id', ids)} AND {self._ended}",
            _named("id", ids),
        )

    def microseconds(self, ask: Ask) -> int:
        return int(ask(Statement(f"SELECT {self.MICROSECONDS}")).rows[0][0])

    def unused(self, after: int, size: int, keep: float, newest: int) -> Statement:
        params = {"after": after, "keep": self.duration(keep), "newest": newest}
        return self._ids(self._unused, params, size)

    def remove_unused(self, ids: Sequence[int], keep: float, newest: int) -> Statement:
        return Statement(
            f"DELETE FROM {TABLE} WHERE {_in('id', 'id', ids)} AND {self._unused}",
            {**_named("id", ids), "keep": self.duration(keep), "newest": newest},
        )

    @property
    def _select(self) -> str:
        times = (self.READ.format(time) for time in (*COLUMNS[-2:], self.NOW))
        columns = ", ".join((self.LOCK, *COLUMNS[1:-2], *times))
        return f"SELECT {columns} FROM {TABLE}"

    @property
    def _ended(self) -> str:
        return f"owner <> '' AND expires_at <= {self.NOW}"

    @property
    def _unused(self) -> str:
        earlier = self.EARLIER.format("%(keep)s")
        return f"owner = '' AND expires_at <= {earlier} AND token <= %(newest)s"

    def untaken_for(self, seconds: float) -> str:
        """Return a condition for taking(): anybody could have taken it for so many seconds."""
        return f"{self.EXPIRES_AT} <= {self.EARLIER.format(self.duration(seconds))}"

    def these(self, leases: Sequence[Lease]) -> tuple[str, dict[str, Any]]:
        """Return the condition that finds the rows of leases that are held and have not ended."""
        # A nonce belongs to one lock, so the two lists need not be matched pair by pair.
        locks = [lease.name for lease in leases]
        nonces = [lease.nonce for lease in leases]
        where = (
            f"{_in(self.LOCK, 'lock', locks)} AND {_in('nonce', 'nonce', nonces)}"
            f" AND owner <> '' AND expires_at > {self.NOW}"
        )
        return where, {**_named("lock", locks), **_named("nonce", nonces)}

    def _ids(self, where: str, params: dict[str, Any], size: int) -> Statement:
        return Statement(
            f"SELECT id FROM {TABLE} WHERE id > %(after)s AND {where} ORDER BY id LIMIT {size}",
            params,
        )


def whole(seconds: float, per_second: int) -> int:
    """Return a duration in whole units, rounded up.

    One unit is added, because the server's time, to which it will be added, is rounded down: a
    lease must not end at the server before it ends here.
    """
    return math.ceil(min(seconds, LONGEST) * per_second) + 1


@functools.lru_cache(maxsize=64)
def _with(condition: str, take: str) -> str:
    return take.format(condition=condition)


def _in(column: str, name: str, values: Sequence[Any]) -> str:
    placeholders = ", ".join(f"%({name}{number})s" for number in range(len(values)))
    return f"{column} IN ({placeholders})"


def _named(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}{number}": value for number, value in enumerate(values)}
