"""What the commands print: names, times and owners, tables, JSON, and commands for a shell.

Names of locks, hosts and threads come from anywhere, and are shown to the person who decides what
to break. So text is escaped for terminals and quoted for shells.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from distlock.commands.tables import Row as Row
from distlock.commands.tables import table_lines
from distlock.types.lease import Holder, Kind, LockInfo, Owner, Waiting
from distlock.types.owners import NAMED, is_named
from distlock.types.values import escaped as escaped

NOTHING = "-"

#: Names of colours of Django's commands.
HEADING, ALARM, WARNING = "MIGRATE_HEADING", "ERROR", "WARNING"

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

#: What JSON has of a holder; and of a lock, besides that.
_OF_HOLDER = ("owner", "token", "since", "until", "remaining", "description", "call_site")
_OF_LOCK = ("using", "kind", "name", "state", "held_for", "lease", "renews", "renewed_at", "slots")
_OF_QUEUE = ("waiting", "waiting_processes", "last")


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


def waiting(info: LockInfo) -> str:
    """Return how many wait, and in how many processes if these are fewer."""
    number, processes = info.waiting, info.waiting_processes
    if number == processes:
        return NOTHING if number is None else str(number)
    return f"{number} in {processes} {'process' if processes == 1 else 'processes'}"


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


def age(when: datetime | None) -> str:
    """Return how long ago that was, by the clock of this machine."""
    return duration(None if when is None else (datetime.now(UTC) - when).total_seconds())


def width(command: BaseCommand) -> int | None:
    """Return the columns of the terminal where a command prints; None if that is no terminal."""
    return shutil.get_terminal_size().columns if command.stdout.isatty() else None


def write_table(
    command: BaseCommand,
    heading: Row,
    rows: Iterable[Row],
    *,
    optional: Sequence[str] | None = None,
    colours: Sequence[str] = (),
) -> None:
    """Write a table for people; nothing if it has no rows.

    See table_lines() for the ``optional`` columns, by default all but the first two. ``colours``
    are those of the rows, see paint().
    """
    if optional is None:
        optional = heading[:1:-1]
    lines = table_lines(heading, rows, width(command), optional)
    for line, colour in zip_longest(lines, (HEADING, *colours)[: len(lines)], fillvalue=""):
        command.stdout.write(paint(command, line, colour))


def paint(command: BaseCommand, line: str, colour: str) -> str:
    """Return a line in one of the colours of Django's commands ("": none), where there are any."""
    return getattr(command.style, colour)(line) if colour else line


def write_fields(command: BaseCommand, pairs: Iterable[tuple[str, str]]) -> None:
    """Write labels and values below one another, indented."""
    pairs = list(pairs)
    widest = max(len(label) for label, _ in pairs)
    room = (width(command) or sys.maxsize) - widest - 4
    for label, value in pairs:
        # A command is left to the terminal, so that it can be copied in one piece.
        lines = [] if value.startswith("manage.py ") else textwrap.wrap(value, room)
        for number, line in enumerate(lines or [value]):
            command.stdout.write(f"  {'' if number else label:<{widest}}  {line}")


def write_json(command: BaseCommand, document: object) -> None:
    """Write JSON. All but ASCII is escaped, so that names are exact on any terminal."""
    command.stdout.write(json.dumps(plain(document), indent=1))


def plain(value: object) -> Any:
    """Return a report for JSON: times become ISO 8601, owners tell host, process and thread."""
    if isinstance(value, Owner):
        return _json_owner(value)
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value


def data(value: object) -> str:
    """Return data for a line of text: JSON, a dash for nothing."""
    if value is None or value == {}:
        return NOTHING
    return escaped(json.dumps(value, ensure_ascii=False))


def json_entry(info: LockInfo) -> dict[str, Any]:
    """Return what is known of a lock for JSON; spans are seconds."""
    return {
        **{name: getattr(info, name) for name in (*_OF_LOCK, *_OF_QUEUE, *_OF_HOLDER)},
        "waiters": None if info.waiters is None else list(map(_json_waiter, info.waiters)),
        "holders": [
            {
                **{name: getattr(holder, name) for name in _OF_HOLDER},
                "share": share(info, holder) if info.kind is Kind.RWLOCK else holder.seats,
            }
            for holder in info.holders
        ],
    }


def _json_owner(owner: Owner) -> dict[str, Any]:
    name = owner.key.removeprefix(NAMED) if is_named(owner) else None
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "name": name}


def _json_waiter(waiter: Owner) -> dict[str, Any]:
    waited = waiter.waited if isinstance(waiter, Waiting) else None
    return {**_json_owner(waiter), "waited": waited}


def show_command(info: LockInfo) -> str:
    """Return the command that shows this lock."""
    return command_line("show", info.using, info.name, *_kind_option(info))


def release_command(info: LockInfo) -> str:
    """Return the command that breaks the hold with this token, and no other."""
    options = [*_kind_option(info), f"--token={info.token}"]
    return command_line("release", info.using, info.name, *options)


def _kind_option(info: LockInfo) -> list[str]:
    return [] if info.kind is Kind.LOCK else [f"--kind={info.kind.value}"]


def command_line(verb: str, using: str, name: str, *more: str) -> str:
    """Return the command about a name; ``verb`` is ``show`` or ``election show``, say."""
    options = " ".join(shlex.quote(option) for option in (f"--using={using}", *more))
    return f"manage.py locks {verb} {options} {_shell_word(name)}"


def _shell_word(name: str) -> str:
    shown = quoted(name)
    word = shown if shown.startswith("$'") else shlex.quote(shown)
    return f"-- {word}" if name.startswith("-") else word
