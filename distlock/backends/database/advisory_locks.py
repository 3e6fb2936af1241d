"""The native locks of an engine: what is said to the server about them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from distlock.backends.database.statements import Statement


def digest(namespace: str, name: str) -> bytes:
    """Return the 32 bytes that a native lock is named after.

    Never change this: processes with different derivations would not wait in the same queue.
    """
    return hashlib.sha256(f"{namespace}\0{name}".encode()).digest()


class AdvisoryLocks(ABC):
    """The native locks of an engine, as SQL. Keys are SQL literals, so few texts need values."""

    #: seconds that one statement may wait; after that a waiter begins a long wait, if there is such
    longest_wait: ClassVar[float]

    @abstractmethod
    def key(self, namespace: str, name: str) -> str:
        """Return the native lock that belongs to the lock ``name``.

        ``namespace`` tells the tables of a server apart, by what the server says of a session.
        """

    def label(self, namespace: str, name: str) -> str:
        """Return what comments call that native lock. See ``ParsedComment.key``."""
        return self.key(namespace, name)

    def is_in(self, namespace: str, label: str) -> bool:
        """Return whether a lock that comments call ``label`` belongs to a table."""
        return True

    @abstractmethod
    def set_up(self) -> Statement:
        """Prepare a session for waiting; returns its id on the server, for cancel()."""

    # Waiting

    @abstractmethod
    def wait(self, key: str, seconds: float) -> str:
        """Return the statement that waits for the native lock, for so many seconds at the most.

        Its answer is 1 if the session has the native lock; anything else, or an error, if not.
        """

    @abstractmethod
    def leave(self, key: str) -> str:
        """Return the statement that gives the native lock to the next one, if the session has it.

        It ends a long wait, too.
        """

    @abstractmethod
    def cancel(self, ident: int) -> Statement:
        """End the statement that another session waits in, and leave that session usable."""

    def sleep(self, seconds: float) -> str:
        """Return the statement that rests for so long; "" if an idle session shows its last text.

        Otherwise comments() would not find the head, which rests between two looks.
        """
        return ""

    # The row

    #: a condition: nobody has the native lock, and nobody waits for it or for long
    nobody_waits: ClassVar[str]
    #: a condition: nobody has begun a long wait, so the head of the queue is next
    nobody_waits_long: ClassVar[str] = "TRUE"

    @abstractmethod
    def values(self, key: str) -> Mapping[str, Any]:
        """Return the parameters of both conditions.

        Their texts are the same for all locks, and can be planned once for a session.
        """

    def nobody_waits_longer(self, key: str, number: int) -> tuple[str, Mapping[str, Any]]:
        """Return a condition: of those who wait for long nobody has a smaller number.

        With it its parameters; its text is the same for all locks, too.
        """
        raise NotImplementedError

    @abstractmethod
    def free_and_leave(self, key: str, free: Statement) -> Statement:
        """Return one packet that frees the row, and gives the native lock to the next one.

        ``free`` is the dialect's statement. If it changes nothing, the native lock may be kept.
        """

    @abstractmethod
    def look(self, names: Collection[str]) -> Statement:
        """Ask rows for name, owner, token, and seconds until the lease ends, below 0 since then."""

    # Long waits

    def begin_long_wait(self, key: str, waited: float) -> Statement:
        """Put a session that has waited for ``waited`` seconds before the whole queue.

        It stays there until it leaves. Returns a number by which those who do so are in order.
        """
        raise NotImplementedError

    # Looking at sessions

    @abstractmethod
    def sessions(self, idents: Collection[int]) -> Statement:
        """Ask which of these sessions run something: id, and whether it is in someone's way."""

    @abstractmethod
    def comments(self, mark: str, first: str) -> Statement:
        """Ask for the statements of all who wait: their texts, and how many seconds ago they came.

        Those texts begin with ``mark``, those of the heads with ``first``; oldest come first. What
        the server shows to others only is an empty text.
        """
