"""What the commands print: names, times and owners, tables, JSON, and commands for a shell.

Names of locks, hosts and threads come from anywhere, and are shown to the person who decides what
to break. So text is escaped for terminals and quoted for shells.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any

from django.utils import timezone

from distlock.types.lease import LockInfo, Owner, Waiting
from distlock.types.owners import NAMED, is_named
from distlock.types.printable import escaped as escaped

NOTHING = "-"

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

#: The first rows decide how wide the columns are; a later row that is wider is not aligned.
SAMPLE = 500
#: A longer value is cut, except in the last column.
WIDEST = 48
GAP = "  "

Row = Sequence[str]


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


def table_lines(heading: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the heading and the rows as aligned lines; nothing if there are no rows.

    What people copy, a name of any length, belongs in the last column.
    """
    rows = iter(rows)
    sample = list(islice(rows, SAMPLE))
    if not sample:
        return
    widths = [
        max(min(width(cell), WIDEST) for cell in column)
        for column in zip(heading, *sample, strict=True)
    ]
    for row in chain([heading], sample, rows):
        yield _line(row, widths)


def _line(row: Row, widths: Sequence[int]) -> str:
    *first, last = row
    fitting = [cut(cell, WIDEST) for cell in first]
    cells = (cell + " " * (wide - width(cell)) for cell, wide in zip(fitting, widths, strict=False))
    return GAP.join([*cells, last]).rstrip()


def write_fields(pairs: Iterable[tuple[str, str]], write: Callable[[str], object]) -> None:
    """Write labels and values below one another, indented."""
    pairs = list(pairs)
    widest = max(width(label) for label, _ in pairs)
    for label, value in pairs:
        write(f"  {label:<{widest}}  {value}")


def write_json(
    locks: Iterable[LockInfo], unavailable: Mapping[str, str], write: Callable[[str], object]
) -> None:
    """Write one JSON object as lines, one for each lock as they come.

    ``unavailable`` is read when ``locks`` has come to its end. All but ASCII is escaped, so names
    are exact whatever the terminal or the pipe does to them.
    """
    write('{"locks": [')
    previous = None
    for info in locks:
        if previous is not None:
            write(previous + ",")
        previous = json.dumps(_json_entry(info))
    if previous is not None:
        write(previous)
    write('], "unavailable": ' + json.dumps(dict(unavailable)) + "}")


def _json_entry(info: LockInfo) -> dict[str, Any]:
    """Return what is known of a lock in terms of JSON; times are ISO 8601, spans are seconds."""
    return {
        "using": info.using,
        "name": info.name,
        "state": info.state.value,
        "owner": _json_owner(info.owner),
        "token": info.token,
        "since": _json_time(info.since),
        "until": _json_time(info.until),
        "held_for": info.held_for,
        "remaining": info.remaining,
        "lease": info.lease,
        "renews": info.renews,
        "renewed_at": _json_time(info.renewed_at),
        "description": info.description,
        "waiters": None
        if info.waiters is None
        else [_json_waiter(waiter) for waiter in info.waiters],
    }


def _json_owner(owner: Owner | None) -> dict[str, Any] | None:
    if owner is None:
        return None
    name = owner.key.removeprefix(NAMED) if is_named(owner) else None
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "name": name}


def _json_waiter(waiter: Owner) -> dict[str, Any]:
    waited = waiter.waited if isinstance(waiter, Waiting) else None
    return {**(_json_owner(waiter) or {}), "waited": waited}


def _json_time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat()


def show_command(info: LockInfo) -> str:
    """Return the command that shows this lock."""
    return f"manage.py locks show {_shell_option(info)} {_shell_word(info.name)}"


def release_command(info: LockInfo) -> str:
    """Return the command that breaks this hold, and no other."""
    using, name = _shell_option(info), _shell_word(info.name)
    return f"manage.py locks release {using} --token={info.token} {name}"


def _shell_option(info: LockInfo) -> str:
    return shlex.quote(f"--using={info.using}")


def _shell_word(name: str) -> str:
    shown = quoted(name)
    word = shown if shown.startswith("$'") else shlex.quote(shown)
    return f"-- {word}" if name.startswith("-") else word
