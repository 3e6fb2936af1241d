"""What the commands print: names, times and owners, tables, JSON, and commands for a shell.

Tables for people fit into a terminal; elsewhere nothing is cut, nor left out.

Names of locks, hosts and threads come from anywhere, and are shown to the person who decides what
to break. So text is escaped for terminals and quoted for shells.

Texts that the admin shows, too, are translated there: ``locks`` switches translations off.
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import partial
from itertools import chain, islice, pairwise, repeat
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone
from django.utils.translation import gettext, ngettext

from distlock.recipes.cells import Cell
from distlock.types.lease import Holder, Kind, LockInfo, Owner, Waiting
from distlock.types.owners import NAMED, is_named
from distlock.types.values import escaped as escaped
from distlock.types.values import quoted

#: The values of a row in a table, or in a list of fields; see as_text().
Row = Sequence[object]

NOTHING = "-"

#: Names of colours of Django's commands.
HEADING, ALARM, WARNING = "MIGRATE_HEADING", "ERROR", "WARNING"

#: Rows whose cells decide how wide the columns are where nothing is cut. The next ones are written
#: as they come.
AT_ONCE = 1000
#: Where nothing is cut, a longer cell does not widen its column, but only its own line.
WIDEST = 48
#: Columns of the terminal that long cells keep, before a whole column is left out.
READABLE = 14
GAP = "  "

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

#: What JSON has of a holder; and of a lock, besides that.
_OF_HOLDER = ("owner", "token", "since", "until", "remaining", "description", "call_site")
_OF_LOCK = ("using", "kind", "name", "state", "held_for", "lease", "renews", "renewed_at", "slots")
_OF_QUEUE = ("waiting", "waiting_processes", "last")


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
        return gettext("writer") if holder.writes else gettext("reader")
    seats = holder.seats
    return ngettext("%(seats)d seat", "%(seats)d seats", seats) % {"seats": seats}


def waiting(info: LockInfo) -> str:
    """Return how many wait, and in how many processes if these are fewer."""
    number, processes = info.waiting, info.waiting_processes
    if processes is None or number == processes:
        return NOTHING if number is None else str(number)
    text = ngettext("%(n)d in %(p)d process", "%(n)d in %(p)d processes", processes)
    return text % {"n": number, "p": processes}


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


def as_text(value: object) -> str:
    """Return a value for a table or a field: text as it is, and all else as people read it."""
    if value is None or isinstance(value, datetime):
        return moment(value)
    return owner(value) if isinstance(value, Owner) else str(value)


def width(command: BaseCommand) -> int | None:
    """Return the columns of the terminal where a command prints; None if that is no terminal."""
    return shutil.get_terminal_size().columns if command.stdout.isatty() else None


def write_table(
    command: BaseCommand,
    heading: Sequence[str],
    rows: Iterable[Row],
    *,
    optional: Sequence[str] | None = None,
    colours: Iterable[str] = (),
    nothing: str = "",
) -> None:
    """Write a table for people; if it has no rows only ``nothing``, as an error.

    See table_lines() for the ``optional`` columns, by default all but the first two. ``colours``
    are those of the rows, see paint().
    """
    if optional is None:
        optional = heading[:1:-1]
    lines: Iterable[str] = iter_lines(heading, rows)
    if (columns := width(command)) is not None:
        lines = table_lines(heading, rows, columns, optional)
    empty = True
    for line, colour in zip(lines, chain((HEADING,), colours, repeat("")), strict=False):
        command.stdout.write(paint(command, line, colour))
        empty = False
    if nothing and empty:
        command.stderr.write(nothing)


def paint(command: BaseCommand, line: str, colour: str) -> str:
    """Return a line in one of the colours of Django's commands ("": none), where there are any."""
    return getattr(command.style, colour)(line) if colour else line


def write_fields(command: BaseCommand, pairs: Iterable[tuple[str, object]]) -> None:
    """Write labels and values below one another, indented."""
    pairs = list(pairs)
    widest = max(len(label) for label, _ in pairs)
    room = max((width(command) or sys.maxsize) - widest - 4, 1)
    for label, value in pairs:
        text = as_text(value)
        # A command is left to the terminal, so that it can be copied in one piece.
        lines = [] if text.startswith("manage.py ") else textwrap.wrap(text, room)
        for number, line in enumerate(lines or [text]):
            command.stdout.write(f"  {'' if number else label:<{widest}}  {line}")


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: a Chinese character takes two."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.category(each) in ("Mn", "Me") for each in text)


def cut(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text that takes no more than ``width``; ``middle``: both of its ends are kept."""
    if cells(text) <= width:
        return text
    kept = (width - 1) // 2 if middle else 0
    end = text[len(text) - kept :]
    while cells(end) > kept:
        end = end[1:]
    start = text[:width]
    while start and cells(start) + cells(end) >= width:
        start = start[:-1]
    return f"{start}…{end}"


def table_lines(
    heading: Row, rows: Iterable[Row], width: int | None = None, optional: Sequence[str] = ()
) -> list[str]:
    """Return the heading and the rows as aligned lines; nothing if there are no rows.

    They take ``width`` columns of a terminal at most: long cells are cut. Where that would
    leave too little of them, columns with the headings ``optional`` are left out, first those that
    say the same in each row, then from the first heading on. None is for no terminal.
    """
    if width is None:
        return list(iter_lines(heading, rows))
    table = [heading, *rows]
    if len(table) == 1:
        return []
    columns = list(zip(*(map(as_text, row) for row in table), strict=True))
    spare = sorted(
        (each for each in columns if each[0] in optional),
        key=lambda each: (len(set(each[1:])) > 1, optional.index(each[0])),
    )
    while spare and _longest_cell(columns, width) < min(READABLE, width):
        columns.remove(spare.pop(0))
    most = _longest_cell(columns, width)
    shown = [
        [cut(each, most, middle=column is columns[0]) for each in column] for column in columns
    ]
    widths = _widths(shown, width)
    return [cut(_aligned(row, widths), width) for row in zip(*shown, strict=True)]


def iter_lines(heading: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Yield what table_lines() returns where there is no terminal, as the rows come.

    Rows after the first ones do not widen a column.
    """
    rows = iter(rows)
    first = [tuple(map(as_text, row)) for row in (heading, *islice(rows, AT_ONCE))]
    if len(first) == 1:
        return
    widths = _widths(list(zip(*first, strict=True)), WIDEST)
    for row in chain(first, (tuple(map(as_text, row)) for row in rows)):
        yield _aligned(row, widths)


def _longest_cell(columns: Sequence[Sequence[str]], width: int) -> int:
    """Return to what long cells have to be cut, so that no line is wider."""
    widths = [max(map(cells, column)) for column in columns]
    room = width - len(GAP) * (len(widths) - 1)
    if sum(widths) <= room:
        return width  # nothing has to be cut
    fitting = (most for most in range(width, 1, -1) if sum(min(w, most) for w in widths) <= room)
    return next(fitting, 1)


def _widths(columns: Sequence[Sequence[str]], widest: int) -> list[int]:
    """Return how wide columns are. The last one needs no width: nothing stands behind it."""
    return [min(max(map(cells, column)), widest) for column in columns[:-1]]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        each + " " * max(width - cells(each), 0)
        for each, width in zip(row[:-1], widths, strict=True)
    ]
    return GAP.join([*padded, row[-1]]).rstrip()


def write_json(command: BaseCommand, document: object) -> None:
    """Write JSON. All but ASCII is escaped, so that names are exact on any terminal."""
    command.stdout.write(_json(document))


def write_json_list(
    command: BaseCommand, key: str, entries: Iterable[object], rest: Mapping[str, object]
) -> None:
    """Write what write_json() writes of ``{key: entries, **rest}``, each entry as it comes.

    ``rest`` is read after the last one.
    """
    write, between = partial(command.stdout.write, ending=""), ""
    write(f'{{\n "{key}": [')
    for entry in entries:
        write(f"{between}\n  " + _json(entry).replace("\n", "\n  "))
        between = ","
    write("\n ]" if between else "]")
    for name, value in rest.items():
        write(f',\n "{name}": ' + _json(value).replace("\n", "\n "))
    command.stdout.write("\n}")


def _json(document: object) -> str:
    return json.dumps(plain(document), indent=1)


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


def release_command(info: LockInfo) -> str:
    """Return the command that breaks the hold with this token, and no other."""
    options = [*kind_option(info.kind), f"--token={info.token}"]
    return command_line("release", info.using, info.name, *options)


def kind_option(kind: Kind) -> list[str]:
    """Return the option that says which kind of lock a command is about."""
    return [] if kind is Kind.LOCK else [f"--kind={kind.value}"]


def command_line(verb: str, using: str, name: str, *more: str) -> str:
    """Return the command about a name; ``verb`` is ``show`` or ``election show``, say."""
    options = " ".join(shlex.quote(option) for option in (f"--using={using}", *more))
    shown = quoted(name)
    word = shown if shown.startswith("$'") else shlex.quote(shown)
    return f"manage.py locks {verb} {options} {'-- ' if name.startswith('-') else ''}{word}"


def text_of(cell: Cell) -> object:
    """Return what a terminal shows of a cell, see as_text()."""
    value = cell.value
    if cell.code:
        return cell.code
    if value is None or value == "":
        return None
    match cell.format:
        case "number" | "owner" | "moment":
            return value
        case "age":
            return duration(cell.seconds)
        case "span":
            return duration(value)
        case "data":
            return escaped(cell.line)
        case "bar":
            return f"{cell.percent}% ({cell.hint})"
    return quoted(str(value))


def quiet_drivers() -> None:
    """Let kazoo's log lines go to stderr only if the project has configured logging for them.

    It logs every attempt to connect, and Python prints warnings of loggers that nobody has
    configured. The command itself says whether it could connect.
    """
    kazoo = logging.getLogger("distlock.zookeeper")
    if not kazoo.handlers:
        kazoo.addHandler(logging.NullHandler())
