"""Who waits for what, written where the engine shows it: before the statements that wait."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from distlock.types.lease import Claim, Waiting

#: How it begins; nothing in it is special to SQL, drivers or LIKE.
MARK = "/*distlock waits "
#: How it begins if nobody else stands before the one who waits.
FIRST = f"{MARK}first "

# PostgreSQL shows 1,024 bytes of a statement.
_LONGEST_WORD = 300
_SIGN = re.compile(
    re.escape(MARK)
    + r"(?P<place>first|queued) (?P<key>\S+) (?P<waited>[\d.]+) (?P<pid>\d+)"
    + r" (?P<host>[^\s*]*) (?P<thread>[^\s*]*)\*/"
)


class ParsedComment(NamedTuple):
    """A sign that was read: a native lock, who waits for it, and whether that one is the next."""

    key: str
    who: Waiting
    first: bool


def sign(key: str, claim: Claim, waited: float, *, first: bool = False) -> str:
    """Return the comment that says who waits for the native lock ``key``, so many seconds by now.

    ``first`` says that nobody else stands before it.
    """
    place = "first" if first else "queued"
    owner = claim.owner
    words = (place, _word(key), f"{waited:.3f}", owner.pid, _word(owner.host), _word(owner.thread))
    return f"{MARK}{' '.join(map(str, words))}*/ "


def read(statement: str, age: float) -> ParsedComment | None:
    """Read the sign of a statement that was sent ``age`` seconds ago; None if it has none."""
    match = _SIGN.match(statement)
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
