"""What the commands print: names, times and owners, tables, JSON, and commands for a shell.

Names of locks, hosts and threads come from anywhere, and are shown to the person who decides what
to break. So text is escaped for terminals and quoted for shells.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.utils import timezone

from distlock.types.lease import Holder, Kind, LockInfo, Owner, Waiting
from distlock.types.owners import NAMED, is_named
from distlock.types.printable import escaped as escaped

NOTHING = "-"

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

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


def owner(who: Owner | None) -> str:
    """Return ``host:pid:thread``."""
    return NOTHING if who is None else quoted(str(who))


def kind(info: LockInfo) -> str:
    """Return the kind of a lock; of a semaphore also how many of its seats are taken."""
    if info.kind is Kind.SEMAPHORE:
        return f"{info.kind.value} {info.taken}/{info.slots}"
    return info.kind.value


def share(info: LockInfo, holder: Holder) -> str:
    """Return what part of a shared lock one of its holders has."""
    if info.kind is Kind.RWLOCK:
        return "writer" if holder.writes else "reader"
    return f"{holder.seats} seat" if holder.seats == 1 else f"{holder.seats} seats"


def moment(when: datetime | None) -> str:
    """Return a time to the second in the current time zone, with its offset from UTC."""
    if when is None:
        return NOTHING
    return timezone.localtime(when).isoformat(sep=" ", timespec="seconds")


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest units; seconds are rounded down."""
    if seconds is None:
        return NOTHING
    rest = max(int(seconds), 0)
    for (size, unit), (smaller, next_unit) in pairwise(_UNITS):
        if rest >= size:
            return f"{rest // size}{unit}{rest % size // smaller:02}{next_unit}"
    return f"{rest}s"


def table_lines(heading: Row, rows: Iterable[Row]) -> list[str]:
    """Return the heading and the rows as aligned lines; nothing if there are no rows.

    What people copy, a name of any length, belongs in the last column.
    """
    table = [[*map(_cut, first), last] for *first, last in (heading, *rows)]
    if len(table) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    widths[-1] = 0
    return [GAP.join(map(str.ljust, row, widths)).rstrip() for row in table]


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 1]}…"


def write_fields(pairs: Iterable[tuple[str, str]], write: Callable[[str], object]) -> None:
    """Write labels and values below one another, indented."""
    pairs = list(pairs)
    widest = max(len(label) for label, _ in pairs)
    for label, value in pairs:
        write(f"  {label:<{widest}}  {value}")


def write_json(
    locks: Iterable[LockInfo], unavailable: Mapping[str, str], write: Callable[[str], object]
) -> None:
    """Write one JSON object. All but ASCII is escaped, so that names are exact on any terminal.

    ``unavailable`` is read when ``locks`` has come to its end.
    """
    entries = [_json_entry(info) for info in locks]
    document = {"locks": entries, "unavailable": dict(unavailable)}
    write(json.dumps(document, indent=1, default=datetime.isoformat))


def _json_entry(info: LockInfo) -> dict[str, Any]:
    """Return what is known of a lock for JSON; times become ISO 8601, spans are seconds."""
    return {
        "using": info.using,
        "kind": info.kind.value,
        "name": info.name,
        "state": info.state.value,
        "owner": json_owner(info.owner),
        "token": info.token,
        "since": info.since,
        "until": info.until,
        "held_for": info.held_for,
        "remaining": info.remaining,
        "lease": info.lease,
        "renews": info.renews,
        "renewed_at": info.renewed_at,
        "description": info.description,
        "waiters": None if info.waiters is None else list(map(_json_waiter, info.waiters)),
        "slots": info.slots,
        "holders": [_json_holder(info, holder) for holder in info.holders],
    }


def _json_holder(info: LockInfo, holder: Holder) -> dict[str, Any]:
    return {
        "owner": json_owner(holder.owner),
        "token": holder.token,
        "since": holder.since,
        "until": holder.until,
        "remaining": holder.remaining,
        "description": holder.description,
        "share": share(info, holder) if info.kind is Kind.RWLOCK else holder.seats,
    }


def json_owner(owner: Owner | None) -> dict[str, Any] | None:
    if owner is None:
        return None
    name = owner.key.removeprefix(NAMED) if is_named(owner) else None
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "name": name}


def _json_waiter(waiter: Owner) -> dict[str, Any]:
    waited = waiter.waited if isinstance(waiter, Waiting) else None
    return {**(json_owner(waiter) or {}), "waited": waited}


def show_command(info: LockInfo) -> str:
    """Return the command that shows this lock."""
    return f"manage.py locks show {_shell_options(info)} {_shell_word(info.name)}"


def release_command(info: LockInfo, token: int | None = None) -> str:
    """Return the command that breaks the hold with this token, and no other.

    None stands for the one who has held it for longest.
    """
    options, name = _shell_options(info), _shell_word(info.name)
    return f"manage.py locks release {options} --token={token or info.token} {name}"


def _shell_options(info: LockInfo) -> str:
    using = shlex.quote(f"--using={info.using}")
    return using if info.kind is Kind.LOCK else f"{using} --kind={info.kind.value}"


def _shell_word(name: str) -> str:
    shown = quoted(name)
    word = shown if shown.startswith("$'") else shlex.quote(shown)
    return f"-- {word}" if name.startswith("-") else word


def recipe_line(verb: str, using: str, name: str, *more: str) -> str:
    """Return the command about a name of a recipe; ``verb`` is ``election show``, say."""
    options = " ".join([shlex.quote(f"--using={using}"), *map(shlex.quote, more)])
    return f"manage.py locks {verb} {options} {_shell_word(name)}"
