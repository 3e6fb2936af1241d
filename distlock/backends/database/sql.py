"""The statements about locks, in SQL with an engine's own words filled in, and what a row tells.

One class per engine fills the words in: see mariadb.py, postgresql.py and sqlite.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.statements import (
    COLUMNS,
    LeasedRows,
    Result,
    Row,
    Statement,
    SweptRows,
)
from distlock.types.lease import LONGEST_LEASE, Claim, Lease
from distlock.types.owners import NAMED, reserved_owner

#: The table of ``distlock.models.DatabaseLock``, which cannot be imported while Django starts.
TABLE = "database_lock"

#: Seconds that a database is asked to count, at most.
LONGEST = float(LONGEST_LEASE)

#: Seconds of the longest lease whose release need not be on the disk.
_LOSABLE = 60.0

Ask = Callable[[Statement], Result]

_filled_in = functools.lru_cache(maxsize=128)(str.format)


class Dialect:
    """How one kind of database is spoken to, in as few statements as it can.

    A free lock is a row whose ``owner`` is empty. Time is the server's, read when the statement
    runs; seconds go in, aware datetimes come out.
    """

    #: the column ``lock``, quoted if the engine takes it for one of its own words
    LOCK: ClassVar[str] = "lock"
    #: what stands before a column of the row in the condition of acquire()
    HELD: ClassVar[str] = "held."
    #: the table in the statements of acquire(), with the name that HELD needs
    TABLE_AS_HELD: ClassVar[str] = f"{TABLE} AS held"
    #: the server's time, as the columns have it
    NOW: ClassVar[str]
    #: the time that is so much later; ``{0}`` is the placeholder of a duration
    LATER: ClassVar[str]
    #: the time that is so much earlier
    EARLIER: ClassVar[str]
    #: the server's time in whole microseconds since 1970
    MICROSECONDS: ClassVar[str]
    #: the function for the greatest value
    GREATEST: ClassVar[str] = "GREATEST"
    #: what makes a SELECT lock its rows, and leave out those that others keep locked; "" if nothing
    FOR_UPDATE: ClassVar[str] = " FOR UPDATE"
    SKIP_LOCKED: ClassVar[str] = " FOR UPDATE SKIP LOCKED"
    #: what guard() assigns to a row; "" if to lock it is enough
    GUARD: ClassVar[str] = ""
    #: a time as it is read
    READ: ClassVar[str] = "{0}"
    #: the conditions that ``{0}`` has what is searched for in it, begins with it, and is it, in
    #: capital or small letters; see search_params()
    CONTAINS: ClassVar[str] = "INSTR(LOWER({0}), LOWER(%(search)s)) > 0"
    BEGINS: ClassVar[str] = "INSTR(LOWER({0}), LOWER(%(search)s)) = 1"
    EQUALS: ClassVar[str] = "LOWER({0}) = LOWER(%(search)s)"
    #: follows the table in a search, which has to look at all rows, whatever their order
    WHOLE: ClassVar[str] = ""
    #: the host of a group of rows, and by what these are grouped
    GROUPED: ClassVar[str] = "host"
    BY_HOST: ClassVar[str] = "host"
    #: a holder as Owner.__str__() writes it
    WHO: ClassVar[str] = "CONCAT(host, ':', process, ':', thread)"
    #: the units of a duration in a second
    UNITS: ClassVar[int] = 1_000_000
    #: whether a statement that may write waits for all others that do, whatever they write
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        times = (self.READ.format(time) for time in (*COLUMNS[-2:], self.NOW))
        #: what is read for a Row
        self.columns = ", ".join((self.LOCK, *COLUMNS[1:-2], *times))
        #: what asks for rows, without a condition yet
        self.select = f"SELECT {self.columns} FROM {TABLE}"
        #: how to find, renew and free the rows of leases
        self.leases = LeasedRows(
            TABLE, (self.LOCK, "nonce"), self.NOW, self.SKIP_LOCKED, in_use="owner <> ''"
        )
        #: takes a lock and returns what the row then says: nonce and token; ``{condition}`` must be
        #: true, too, if the row exists
        self.upsert_text = self._upsert()
        #: Takes a lock if its row exists and the lock is free; "" where that is no cheaper. Its
        #: answer is that one row was matched, and the token, as a row or as ``Result.insert_id``.
        self.update_text = self._update_existing()
        self._freeing = (
            f"UPDATE {TABLE} SET owner = '', nonce = '', expires_at = {self.NOW}"
            f" WHERE {self.LOCK} = %(lock)s AND owner <> ''"
        )
        self._releasing = self.free("", nonce="").sql

    def search_params(self, search: str) -> dict[str, str]:
        """Return the parameters of CONTAINS, BEGINS and EQUALS."""
        return {"search": search}

    def ends_within(self, seconds: str) -> str:
        """Return the condition that a row ends in less than ``seconds``, which is SQL."""
        return f"expires_at <= {self.LATER.format(f'({seconds}) * 1000000')}"

    @functools.lru_cache(maxsize=128)  # noqa: B019 - as in_order()
    def duration(self, seconds: float) -> Any:
        """Return a duration as a parameter for LATER: in whole units, rounded up.

        One unit is added, because the server's time, to which it will be added, is rounded down: a
        lease must not end at the server before it ends here.
        """
        return math.ceil(min(seconds, LONGEST) * self.UNITS) + 1

    def from_db(self, value: Any) -> datetime:
        """Return a time that the driver has read, as an aware one in UTC."""
        time: datetime = value
        return time.replace(tzinfo=UTC)

    def to_db(self, moment: datetime) -> Any:
        """Return an aware time as a parameter to compare a column with; as from_db() read it."""
        return moment.astimezone(UTC).replace(tzinfo=None)

    # Taking and leaving

    def acquire(
        self,
        ask: Ask,
        claim: Claim,
        condition: str = "TRUE",
        values: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Take the lock if it is free, has ended, or is the owner's: the token, or None if not.

        The token is the greater one of the last token + 1 and the server's time in microseconds: a
        row that has lost its last grants, on a standby or in a backup, repeats none of their
        tokens. Doing it again with the same claim is as good as once, though the token grows.

        If the row exists, ``condition`` must be true, too, see in_order(). Its parameters are
        ``values``; with these its text must be the same for all locks.
        """
        owner = claim.owner
        seconds = claim.reserved if claim.at_least else claim.duration
        params = {
            "lock": claim.name,
            "description": claim.label or claim.description,
            "owner": holder(claim),
            "nonce": claim.nonce,
            "host": owner.host,
            "process": owner.pid,
            "thread": owner.thread,
            "lease": seconds,
            "renews": claim.renews,
            "duration": self.duration(seconds),
        }
        if values:
            params |= values
        prepare = bool(values) or condition == "TRUE"
        try:
            if self.update_text:
                # Most locks have been taken before, and an UPDATE costs the server less than an
                # INSERT.
                text = _filled_in(self.update_text, condition=condition)
                answer = ask(Statement(text, params, prepare))
                token = answer.rows[-1][0] if answer.rows else answer.insert_id
                if answer.affected == 1 and token:
                    return int(token)
            text = _filled_in(self.upsert_text, condition=condition)
            answer = ask(Statement(text, params, prepare))
        except StatementFailed as failed:
            claim.maybe_repeated = claim.maybe_repeated or failed.maybe_applied
            raise
        return self.granted(claim, answer)

    def granted(self, claim: Claim, answer: Result) -> int | None:
        """Read the answer to ``upsert_text``: the token, or None if someone else has the lock.

        Then the claim gets the holder, if the answer names it.
        """
        # By the row, never by the number of rows: Django connects to MySQL with CLIENT_FOUND_ROWS,
        # under which a row that was inserted and one that was left as it is both count as one.
        # By the last row: Galera may run a statement twice, and send the rows of both runs.
        # After nonce and token comes the row of a lock that is held.
        nonce, token, *row = answer.rows[-1] if answer.rows else (None, None)
        if nonce == claim.nonce and token is not None:
            return int(token)
        if row and row[0] is not None:  # on PostgreSQL it may have been made just now
            claim.refused_by = self.row(row).holder
        return None

    def held_by_another(self, claim: Claim) -> Statement:
        """Ask whether someone else has the lock: its row if so. The row is not locked for it."""
        return Statement(
            f"{self.select} WHERE {self.LOCK} = %(lock)s"
            f" AND owner <> '' AND owner <> %(owner)s AND expires_at > {self.NOW}",
            {"lock": claim.name, "owner": holder(claim)},
        )

    @functools.cache  # noqa: B019 - there is one dialect for each engine
    def in_order(self, first: str, grace: float | None = None) -> str:
        """Return a condition for acquire(): the owner is the first in line, or holds it by name.

        ``first`` says who that is. With ``grace`` also: the lock was free for that many seconds,
        and nobody took it.
        """
        owned = f"({self.HELD}owner = %(owner)s AND {self.HELD}expires_at > {self.NOW})"
        if grace is None:
            return f"({owned} OR {first})"
        earlier = self.EARLIER.format(self.duration(grace))
        return f"({owned} OR {first} OR {self.HELD}expires_at <= {earlier})"

    def release_sql(self, lease: Lease) -> Statement:
        """Free the lock if exactly this lease holds it.

        Not by the token: a delayed repetition of the claim may have raised it. Should a power cut
        undo it, the lease still ends. A long one would be missed.
        """
        claim, is_losable = lease.claim, lease.claim.duration <= _LOSABLE
        params = {"lock": claim.name, "nonce": claim.nonce}
        return Statement(self._releasing, params, prepare=True, may_be_undone=is_losable)

    def free(self, lock: str, ended: str = "", **hold: str | int) -> Statement:
        """Free the lock if it is held, and the columns of the row are what ``hold`` says.

        ``ended`` is for people, in the column ``nonce``: how the hold ended, "" for released.
        """
        same = "".join(f" AND {column} = %({column})s" for column in hold)
        freeing = self._freeing.replace("nonce = ''", f"nonce = '{ended}'")
        return Statement(freeing + same, {"lock": lock, **hold})

    def reserve(self, lease: Lease, seconds: float) -> Statement:
        """Reserve the row for N seconds, if this lease holds it or has already reserved it."""
        later = self.LATER.format("%(seconds)s")
        return Statement(
            f"UPDATE {TABLE} SET owner = %(nobody)s, nonce = '', expires_at = {later},"
            f" lease = %(rest)s, renews = %(renews)s"
            f" WHERE {self.LOCK} = %(lock)s AND expires_at > {self.NOW}"
            " AND (nonce = %(nonce)s OR owner = %(nobody)s)",
            {
                "lock": lease.name,
                "nonce": lease.nonce,
                "nobody": reserved_owner(lease.owner, lease.nonce).key,
                "seconds": self.duration(seconds),
                "rest": seconds,
                "renews": False,
            },
        )

    def renew(self, leases: Sequence[Lease]) -> Statement:
        """Renew the leases, which have one duration, if they are held and have not ended.

        One that was extended does not end earlier, although this may be carried out long after it
        was sent.
        """
        later, duration = self.LATER.format("%(duration)s"), leases[0].duration
        kept = f"CASE WHEN lease > %(lease)s AND expires_at > {later} THEN"
        return self.leases.update(
            f"expires_at = {kept} expires_at ELSE {later} END,"
            f" lease = {kept} lease ELSE %(lease)s END",
            *keys_of(leases),
            duration=self.duration(duration),
            lease=duration,
        )

    def held(self, leases: Sequence[Lease], *, for_update: bool = True) -> Statement:
        """Ask for the nonces of those leases that are held and have not ended.

        ``for_update`` locks their rows for a moment, where the engine can: a proxy that splits
        reads must not send this to a replica, whose rows may be old.
        """
        return self.leases.running(*keys_of(leases), locking=self.FOR_UPDATE if for_update else "")

    def guard(self, lease: Lease, table: str = TABLE) -> Statement:
        """Let nobody else write the row before the transaction ends, if it is held and not ended.

        Returns or changes one row if it was. Runs on the caller's connection, about whose session
        nothing is known; ``table`` is how the table is found there.
        """
        rows, keys = self.leases._replace(table=table), keys_of([lease])
        if self.GUARD:
            return rows.update(self.GUARD, *keys)
        return rows.running(*keys, locking=" FOR UPDATE")

    def reads_snapshot(self, connection: Any) -> bool:
        """Return whether the caller's open transaction cannot lock what was changed after it began.

        Such a transaction must lock the row of the lock when it begins: see guard().
        """
        return False

    # Reading rows

    def one(self, lock: str, *, for_update: bool = False) -> Statement:
        """Ask for the row of a lock. See held() for ``for_update``."""
        locking = self.FOR_UPDATE if for_update else ""
        return Statement(f"{self.select} WHERE {self.LOCK} = %(lock)s{locking}", {"lock": lock})

    def rows(self, answer: Result) -> list[Row]:
        """Read the answer to what asks for rows, see select."""
        return [self.row(row) for row in answer.rows]

    def row(self, values: Sequence[Any]) -> Row:
        """Read one row, see ``columns``."""
        return Row._make((*values[:9], bool(values[9]), *map(self.from_db, values[10:])))

    # Sweeping

    def expired(self) -> SweptRows:
        """Return the rows whose lease has ended; a sweep frees them."""
        free = f"UPDATE {TABLE} SET owner = '', nonce = 'expired', expires_at = {self.NOW}"
        return SweptRows(TABLE, free, f"owner <> '' AND {self.leases.over}")

    def unused(self, keep: float) -> SweptRows:
        """Return the rows that have been free for ``keep`` seconds; a sweep removes them.

        Rows whose token is greater than the time was then are left out.
        """
        return SweptRows(
            TABLE,
            f"DELETE FROM {TABLE}",
            f"owner = '' AND expires_at <= {self.EARLIER.format('%(keep)s')}"
            f" AND token <= {self.MICROSECONDS} - %(kept)s",
            {"keep": self.duration(keep), "kept": int(keep * 1_000_000)},
        )

    # The texts of acquire()

    def _update_existing(self) -> str:
        return ""

    def _update(self, token: str) -> str:
        """Return the UPDATE of ``update_text``; ``token`` is the expression for the new token.

        Repeated after a lost answer it takes the row again: the owner includes the nonce.
        """
        return f"""
UPDATE {self.TABLE_AS_HELD} SET
    token = {token},
    description = %(description)s, nonce = %(nonce)s, host = %(host)s, process = %(process)s,
    thread = %(thread)s, lease = %(lease)s, renews = %(renews)s,
    acquired_at = {self.NOW}, owner = %(owner)s, expires_at = {self.LATER.format("%(duration)s")}
WHERE {self.LOCK} = %(lock)s AND (owner = '' OR owner = %(owner)s OR expires_at <= {self.NOW})
    AND {{condition}}
"""

    def _insert(self) -> str:
        """Return how ``upsert_text`` begins: the row as it is made."""
        lock = self.LOCK
        return f"""
INSERT INTO {self.TABLE_AS_HELD}
    ({lock}, description, owner, nonce, host, process, thread, lease, renews, token, acquired_at,
     expires_at)
VALUES
    (%(lock)s, %(description)s, %(owner)s, %(nonce)s, %(host)s, %(process)s, %(thread)s,
     %(lease)s, %(renews)s,
     {self.MICROSECONDS}, {self.NOW}, {self.LATER.format("%(duration)s")})
"""

    def _upsert(self) -> str:
        """Return ``upsert_text``, here for engines that know ``ON CONFLICT`` and ``RETURNING``."""
        # EXCLUDED was computed before the wait for the row. Its times are too old to use.
        return f"""{self._insert()}\
ON CONFLICT (lock) DO UPDATE SET
    description = EXCLUDED.description, owner = EXCLUDED.owner, nonce = EXCLUDED.nonce,
    host = EXCLUDED.host, process = EXCLUDED.process, thread = EXCLUDED.thread,
    lease = EXCLUDED.lease, renews = EXCLUDED.renews,
    token = {self.GREATEST}(held.token + 1, {self.MICROSECONDS}),
    acquired_at = {self.NOW}, expires_at = {self.LATER.format("%(duration)s")}
WHERE (held.owner = '' OR held.owner = EXCLUDED.owner OR held.expires_at <= {self.NOW})
    AND {{condition}}
RETURNING nonce, token
"""


def keys_of(leases: Sequence[Lease]) -> tuple[list[str], list[str]]:
    """Return what finds the rows of leases, see Dialect.leases."""
    return [lease.name for lease in leases], [lease.nonce for lease in leases]


def holder(claim: Claim) -> str:
    """Return what the column ``owner`` says while a claim has the lock.

    A named owner is the same in every claim. An unnamed owner includes the nonce, so a delayed old
    request cannot take a newer hold.
    """
    key = claim.owner.key
    return key if key.startswith(NAMED) else f"{key}:{claim.nonce}"
