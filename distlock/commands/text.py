"""Names, times and owners as text that is safe on a terminal.

Names of locks, hosts and threads come from anywhere, and are shown to the person who decides what
to break.
"""

from __future__ import annotations

import unicodedata
from datetime import datetime

from django.utils import timezone

from distlock.types.lease import Owner
from distlock.types.printable import escaped as escaped

NOTHING = "-"

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def quoted(name: str) -> str:
    """Return ``name`` so that it is unmistakable, if need be in bash's ``$'…'`` quotes.

    Pasted into a shell between the quotes it is the same name again.
    """
    if name.isprintable() and "  " not in name and not name.startswith("$'"):
        return name
    inner = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{escaped(inner)}'"


def width(text: str) -> int:
    """Return how many columns of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def cut(text: str, columns: int) -> str:
    """Return as much of ``text`` as fits into so many columns; an ellipsis tells of the rest."""
    if width(text) <= columns:
        return text
    while width(text) > columns - 1:
        text = text[:-1]
    return f"{text}…"


def owner(who: Owner | None) -> str:
    """Return ``host:pid:thread``."""
    return NOTHING if who is None else quoted(str(who))


def moment(when: datetime | None) -> str:
    """Return a time to the second in the current time zone, with its offset from UTC."""
    if when is None:
        return NOTHING
    local = timezone.localtime(when) if timezone.is_aware(when) else when
    return local.isoformat(sep=" ", timespec="seconds")


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest units; seconds are rounded down."""
    if seconds is None:
        return NOTHING
    rest = max(int(seconds), 0)
    for position, (size, unit) in enumerate(_UNITS):
        if rest >= size or size == 1:
            text = f"{rest // size}{unit}"
            if size > 1:
                smaller, name = _UNITS[position + 1]
                text += f"{rest % size // smaller:02}{name}"
            return text
    raise AssertionError("the smallest unit fits always")


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
