"""What has to be said about locks to any database, and what one row of the table tells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from distlock.backends.database.statements import Result, Statement
from distlock.types.lease import LONGEST_LEASE, Claim, Lease
from distlock.types.owners import is_named

#: The table of ``distlock.models.DatabaseLock``, which cannot be imported while Django starts.
TABLE = "database_lock"

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

#: Seconds that a database is asked to count, at the most.
LONGEST = float(LONGEST_LEASE)

_MAX_TEXT = 255

Ask = Callable[[Statement], Result]


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

    def held_against(self, claim: Claim) -> bool:
        """Return whether someone else held the lock when this was read."""
        return not self.free and not self.expired and self.owner != holder(claim)

    @property
    def expired(self) -> bool:
        return bool(self.owner) and self.until <= self.now


class Dialect(ABC):
    """How one kind of database is spoken to, in as few statements as it can.

    A free lock is a row whose ``owner`` is empty. Time is the server's, read when the statement
    runs; seconds go in, aware datetimes come out.
    """

    #: whether a transaction that is to commit under a lock must claim the row when it begins
    #: (because it could not wait for the row at its end)
    guards_early: ClassVar[bool] = False
    #: whether a statement that may write waits for all others that do, whatever they write
    one_writer: ClassVar[bool] = False
    #: whether names are sorted by code point
    by_code_point: ClassVar[bool] = True

    @abstractmethod
    def take(self, ask: Ask, claim: Claim) -> int | None:
        """Take the lock if it is free, has ended, or is the owner's; the token, or None.

        The token is the greater one of the last token + 1 and the server's time in microseconds: a
        row that has lost its last grants, on a standby or in a backup, repeats none of their
        tokens. Doing it again with the same claim is as good as once, though the token grows.
        """

    @abstractmethod
    def free(self, lock: str, **hold: str | int) -> Statement:
        """Free the lock if it is held, and the columns of the row are what ``hold`` says."""

    @abstractmethod
    def reserve(self, lease: Lease, seconds: float) -> Statement:
        """Let nobody have the lock for so many seconds from now, if the lease has it and has not
        ended, or if nobody has it after the lease.
        """

    @abstractmethod
    def renew(self, leases: Sequence[Lease]) -> Statement:
        """Let the leases, which have one duration, run anew if they are held and have not ended."""

    @abstractmethod
    def held(self, leases: Sequence[Lease], *, for_update: bool = True) -> Statement:
        """Ask for the nonces of those leases that are held and have not ended.

        ``for_update`` locks their rows for a moment, where the engine can: a proxy that splits
        reads must not send this to a replica, which may tell what was some time ago.
        """

    def unlocked(self, leases: Sequence[Lease]) -> Statement | None:
        """Ask as held() does, leaving out rows that a transaction of someone else keeps locked.

        None if the engine cannot tell.
        """
        return None

    @abstractmethod
    def guard(self, lease: Lease) -> Statement:
        """Let nobody else write the row before the transaction ends, if it is held and not ended.

        Returns or changes one row if it was. Runs on the caller's connection, about whose session
        nothing is known.
        """

    @abstractmethod
    def one(self, lock: str, *, for_update: bool = False) -> Statement:
        """Ask for the row of a lock. See held() for ``for_update``."""

    @abstractmethod
    def page(self, after: str, beginning: bool, size: int) -> Statement:
        """Ask for the first rows in use after a name, or from it on, if ``beginning``, by name."""

    @abstractmethod
    def rows(self, answer: Result) -> list[Row]:
        """Read the answer to one() or page()."""

    @abstractmethod
    def ended(self, after: int, size: int) -> Statement:
        """Ask for the first ids after ``after`` whose lease has ended."""

    @abstractmethod
    def free_ended(self, ids: Sequence[int]) -> Statement:
        """Free those of the rows whose lease has ended."""

    @abstractmethod
    def microseconds(self, ask: Ask) -> int:
        """Ask for the server's time in microseconds since 1970, from which tokens are made."""

    @abstractmethod
    def unused(self, after: int, size: int, keep: float, newest: int) -> Statement:
        """Ask for the first ids after ``after`` that have been free for ``keep`` seconds.

        Rows whose token is greater than ``newest`` are left out.
        """

    @abstractmethod
    def remove_unused(self, ids: Sequence[int], keep: float, newest: int) -> Statement:
        """Remove those of the rows that unused() would name."""


def holder(claim: Claim) -> str:
    """Return what the column ``owner`` says while a claim has the lock.

    Only a named owner is the same in another claim. That of a thread or task which asks anew is not
    known to have the lock: it left that, or asked by another alias, or has given up a request that
    may be carried out after the next one, and must not take the lock from it then.
    """
    return claim.owner.key if is_named(claim.owner) else f"{claim.owner.key}:{claim.nonce}"


def columns(claim: Claim) -> dict[str, Any]:
    """Return what a claim has to say for the columns of its row."""
    return {
        "lock": claim.name,
        "description": claim.description,
        "owner": holder(claim),
        "nonce": claim.nonce,
        "host": _storable(claim.owner.host),
        "process": claim.owner.pid,
        "thread": _storable(claim.owner.thread),
        "lease": claim.reserved,
        "renews": claim.renews,
    }


def _storable(text: str) -> str:
    """Return text that any database takes: nobody has checked what threads and hosts are called."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_TEXT])
    return text[:_MAX_TEXT]
