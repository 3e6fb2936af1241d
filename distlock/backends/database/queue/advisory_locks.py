"""What is said to an engine about its native locks."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from distlock.backends.database.statements import Result, Statement


@functools.lru_cache(maxsize=1024)
def digest(database: str, name: str) -> bytes:
    """Return the 32 bytes that a native lock is named after.

    Never change this: processes with different derivations would not wait in the same queue.
    """
    return hashlib.sha256(f"{database}\0{name}".encode()).digest()


class AdvisoryLocks(ABC):
    """The native locks of an engine, as text. Keys are SQL literals, so no text has parameters."""

    #: seconds after which who waits stands aside, because the engine pays for long waits; None:
    #: never. See stand_aside().
    longest_wait: ClassVar[float | None] = None

    @abstractmethod
    def key(self, database: str, name: str) -> str:
        """Return the native lock that belongs to the lock ``name``."""

    @abstractmethod
    def set_up(self) -> Statement:
        """Prepare a session for waiting; returns its name on the server, for cancel()."""

    @abstractmethod
    def is_free(self, key: str) -> str:
        """Return a condition: nobody has the native lock or stands aside, so nobody waits."""

    @abstractmethod
    def enter(self, key: str) -> str:
        """Return the statement that waits for the native lock."""

    @abstractmethod
    def entered(self, answer: Result) -> bool:
        """Read the answer to enter(): whether the native lock was got."""

    @abstractmethod
    def has_entered(self, key: str) -> Statement:
        """Ask whether this session has the native lock (1 or 0)."""

    @abstractmethod
    def leave(self, key: str) -> str:
        """Return the statement that gives the native lock to the next one."""

    def take(self, key: str, take: Statement) -> Statement:
        """Return what takes a row from a session that has the native lock and has been set up.

        ``take`` is what a dialect says. The row is not taken while somebody stands aside.
        """
        return take

    def stand_aside(self, key: str, waited: float) -> Statement:
        """Let a session come before all that stand in the queue, until it ends; returns a ticket.

        Those who stand aside have waited for ``waited`` seconds, and look at the row by themselves.
        """
        raise NotImplementedError

    def is_somebody_aside(self, key: str) -> Statement | None:
        """Ask whether anybody stands aside (1 or 0); None if nobody ever does."""
        return None

    def is_oldest(self, key: str, ticket: int) -> str:
        """Return a condition: nobody stands aside who came before the one with this ticket."""
        raise NotImplementedError

    def free_and_leave(self, key: str, free: Statement) -> Statement:
        """Return one packet that frees the row, and gives the native lock to the next one.

        ``free`` is what a dialect says for the former. Where it changes nothing, the native lock
        may be kept.
        """
        return self.then(free, self.leave(key))

    @abstractmethod
    def cancel(self, ident: int) -> Statement:
        """End the statement that another session waits in, and leave that session usable."""

    @abstractmethod
    def look(self, table: str, names: Collection[str]) -> Statement:
        """Ask for name, owner, token, and seconds until the lease ends, or since then, below 0."""

    @abstractmethod
    def sessions(self, idents: Collection[int]) -> Statement:
        """Return those sessions that run something, and two more things of each (0 or 1).

        These are whether it is in someone's way, and whether the one that has the native lock for
        which it waits is writing just now.
        """

    @abstractmethod
    def signed(self, mark: str, first: str) -> Statement:
        """Ask for the statements of those who wait, which begin with ``mark``, oldest first.

        Of those who have come to the end of the queue it begins with ``first``. Returns the texts,
        and how many seconds ago they came. What the server shows to others only is an empty text.
        """

    def sleep(self, seconds: float) -> str:
        """Return the statement that rests for so long; "" if the engine shows what rests without.

        Otherwise signed() would not find who is first, who rests between two looks.
        """
        return ""

    def then(self, *statements: str | Statement) -> Statement:
        """Return one packet that runs the statements one after the other."""
        sqls, params = [], None
        for statement in statements:
            if isinstance(statement, Statement):
                sqls.append(statement.sql)
                params = statement.params
            else:
                sqls.append(statement)
        return Statement("; ".join(sqls), params or {})
