"""Comments before the statements that wait, in which the server shows who waits for what."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from distlock.types.lease import Claim, Waiting

#: How it begins; nothing in it is special to SQL, drivers or LIKE.
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


class ParsedComment(NamedTuple):
    """A native lock, by its label, who waits for it, and whether that is the head of the queue."""

    key: str
    who: Waiting
    first: bool


def comment(label: str, claim: Claim, waited: float, *, first: bool = False) -> str:
    """Return the comment that says who waits for a native lock, and for how long.

    ``waited``: seconds. ``first``: it is the head of the queue, or waits for long.
    """
    place = "first" if first else "queued"
    owner = claim.owner
    words = (
        place,
        _word(label),
        f"{waited:.3f}",
        owner.pid,
        _word(owner.host),
        _word(owner.thread),
    )
    return f"{MARK}{' '.join(map(str, words))}*/ "


def parse(statement: str, age: float) -> ParsedComment | None:
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
