"""The native locks of an engine: the SQL to take, wait for and leave them, and to list waiters.

A statement that waits begins with a comment, by which the server shows who waits for what.
"""

from __future__ import annotations

import functools
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, unquote

from distlock.backends.database.sql import TABLE, Dialect
from distlock.backends.database.statements import Statement, in_list, named_values
from distlock.types.lease import Claim, Waiting

#: How a comment begins; nothing in it is special to SQL, drivers or LIKE.
MARK = "/*distlock waits "
#: How it begins for the head of the queue, and for those who wait for long.
FIRST = f"{MARK}first "

# PostgreSQL shows 1,024 bytes of a statement.
_LONGEST_WORD = 300
_COMMENT = re.compile(
    re.escape(MARK)
    + r"(?P<place>first|queued) (?P<key>\S+) (?P<waited>[\d.]+) (?P<pid>\d+)"
    + r" (?P<host>[^\s*]*) (?P<thread>[^\s*]*)\*/"
)


def digest(namespace: str, name: str) -> bytes:
    """Return the 32 bytes that a native lock is named after.

    Never change this: processes with different derivations would not wait in the same queue.
    """
    return hashlib.sha256(f"{namespace}\0{name}".encode()).digest()


@functools.cache
def listen_key(channel: str) -> int:
    """Return the advisory lock of PostgreSQL that says that somebody listens on a channel.

    Never change this.
    """
    return int.from_bytes(digest("distlock records", channel)[:8], "big", signed=True)


#: The beginning of the names of listener_locks().
LISTENER = "dlisten:"


@functools.lru_cache(maxsize=1024)
def listener_locks(namespace: str, channel: str) -> tuple[str, ...]:
    """Return the named locks of MySQL that say that somebody listens on a channel.

    Each has one owner at most, so each channel has a few. Never change their names.
    """
    name = f"{LISTENER}{digest(namespace, channel).hex()[:48]}"
    return tuple(f"{name}:{number}" for number in range(4))


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
        """Return the statement that waits for the native lock, for at most ``seconds``.

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

    #: the column ``lock``, see Dialect.LOCK
    lock: ClassVar[str] = Dialect.LOCK
    #: the seconds until the lease of a row ends, below 0 since then
    remaining: ClassVar[str]

    def look(self, names: Sequence[str]) -> Statement:
        """Ask rows for name, owner, token, and the seconds that remain."""
        return Statement(
            f"SELECT {self.lock}, owner, token, {self.remaining} FROM {TABLE}"
            f" WHERE {in_list(self.lock, 'lock', names)}",
            named_values("lock", names),
        )

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
    def comments(self) -> Statement:
        """Ask for the statements of all who wait: their texts, and how many seconds ago they came.

        Those texts begin with MARK, those of the heads with FIRST; oldest come first. A text that
        the server shows to others only is empty.
        """


class ParsedComment(NamedTuple):
    """A native lock, by its label, who waits for it, and whether that is the head of the queue."""

    key: str
    who: Waiting
    first: bool


def comment(label: str, claim: Claim, waited: float, *, first: bool = False) -> str:
    """Return the comment that says who waits for a native lock, and for how long.

    ``waited``: seconds. ``first``: it is the head of the queue, or waits for long.
    """
    place, owner = "first" if first else "queued", claim.owner
    return (
        f"{MARK}{place} {_word(label)} {waited:.3f} {owner.pid}"
        f" {_word(owner.host)} {_word(owner.thread)}*/ "
    )


def parse_comment(statement: str, age: float) -> ParsedComment | None:
    """Read the comment of a statement that was sent ``age`` seconds ago; None if it has none."""
    match = _COMMENT.match(statement)
    if match is None:
        return None
    key, host, thread = (_text(match[group]) for group in ("key", "host", "thread"))
    who = Waiting("", host, int(match["pid"]), thread, float(match["waited"]) + age)
    return ParsedComment(key, who, match["place"] == "first")


@functools.lru_cache(maxsize=256)
def _word(text: str) -> str:
    return quote(text, safe="", errors="replace").replace("%", "=")[:_LONGEST_WORD]


def _text(word: str) -> str:
    return unquote(word.replace("=", "%"), errors="replace")
