"""``manage.py locks top``: what is wrong, and then the locks by waiters and age, live."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.base import BaseBackend
from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, add_using, seconds
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog, fail
from distlock.commands.list_locks import HEADING, OPTIONAL, ORDERS, locks_in_use, rows_of, waiting
from distlock.commands.tables import cut, table_lines
from distlock.exceptions import NotSupported
from distlock.recipes.queue import Queue
from distlock.recipes.queue_items import QueueInfo
from distlock.recipes.recipe import names_of
from distlock.supervisor.signal_handling import Interrupted, ended_by_signals
from distlock.types.lease import Kind, LockInfo
from distlock.types.query import DisplayStatus, status_of

HELP = (
    "Show what is wrong, and then the locks by waiters and age, live; q or Ctrl-C ends it. Without"
    " a terminal, or with --once or --json, it is printed once."
)
EPILOG = epilog(DONE, FAILED, USAGE)

#: A lock that at least so many wait for is among what is wrong.
MANY_WAITERS = 10
#: What can be wrong, in the order in which it is shown.
WRONG = ("unavailable", "missed renewal", "leaked hold", "many waiters", "dead letters")
_WRONG_HEADING = ("WRONG", "NAME", "WHAT IS KNOWN", "BACKEND")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong; ``name`` is of a lock or a queue, empty for a whole backend."""

    problem: str
    using: str
    kind: Kind | None
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Overview:
    """What the backends have said at one moment."""

    locks: list[LockInfo]
    problems: list[Problem]
    unavailable: dict[str, str]
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def summary(self) -> str:
        """One line of figures."""
        expired = sum(status_of(info) is DisplayStatus.EXPIRED for info in self.locks)
        waiters = sum(map(waiting, self.locks))
        return (
            f"{len(self.problems)} wrong, {len(self.locks) - expired} held, {expired} expired,"
            f" {waiters} waiting  {output.moment(self.at)}"
        )


def add_arguments(parser: CommandParser) -> None:
    add_using(parser)
    parser.add_argument("--once", action="store_true", help="Print it once, and end.")
    parser.add_argument(
        "--every",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="How long to wait before the backends are asked again (%(default)s).",
    )
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    using: Collection[str] | None,
    once: bool,
    every: float,
    json: bool,
    **others: object,
) -> None:
    if once or json or not command.stdout.isatty():
        backends = Backends(using)
        overview = ask(backends)
        if json:
            output.write_json(command, _document(overview))
        else:
            for line, colour in _lines(overview, output.width(command)):
                command.stdout.write(output.paint(command, line, colour))
        backends.finish()
        return
    # What is logged to the terminal in the meantime would be written over the screen.
    with (
        redirect_stderr(io.StringIO()),
        suppress(Interrupted, KeyboardInterrupt),
        ended_by_signals(),
    ):
        _watch(command, using, every)


def ask(backends: Backends, *, again: bool = False) -> Overview:
    """Ask the backends for everything; raises no error of a backend."""
    found = backends.ask(_in_use, again=again)
    locks = [each for each in found if isinstance(each, LockInfo)]
    problems = [
        *(
            Problem("unavailable", alias, None, "", why.removeprefix(f"DISTLOCK[{alias!r}]: "))
            for alias, why in backends.failures.items()
        ),
        *(problem for each in found for problem in _problems(each)),
    ]
    problems.sort(key=lambda each: WRONG.index(each.problem))
    for order in ("age", "waiters"):
        locks.sort(key=ORDERS[order])
    return Overview(locks, problems, dict(backends.failures))


def _in_use(backend: BaseBackend) -> Iterator[LockInfo | QueueInfo]:
    yield from locks_in_use(backend)
    with suppress(NotSupported):
        for name in names_of(Kind.QUEUE, backend.alias):
            yield Queue(name, using=backend.alias).info()


def _problems(found: LockInfo | QueueInfo) -> Iterator[Problem]:
    if isinstance(found, QueueInfo):
        if found.dead:
            text = f"{found.dead} dead, {found.ready} ready"
            yield Problem("dead letters", found.using, Kind.QUEUE, found.name, text)
        return
    where = (found.using, found.kind, found.name)
    if (count := waiting(found)) >= MANY_WAITERS:
        text = f"{count} wait; held for {output.duration(found.held_for)}"
        yield Problem("many waiters", *where, f"{text} by {output.owner(found.owner)}")
    for holder in found.holders:
        status, owner = status_of(found.of(holder)), output.owner(holder.owner)
        if status is DisplayStatus.EXPIRED:
            text = f"its lease has ended, and {owner} has not released it"
            yield Problem("leaked hold", *where, text)
        elif status is DisplayStatus.EXPIRING and holder.renews:
            left, lease = output.duration(holder.remaining), output.duration(holder.lease)
            yield Problem("missed renewal", *where, f"{left} of {lease} left, held by {owner}")


def _document(overview: Overview) -> dict[str, object]:
    return {
        "at": overview.at,
        "problems": overview.problems,
        "locks": [output.json_entry(info) for info in overview.locks],
        "unavailable": overview.unavailable,
    }


def _lines(
    overview: Overview, width: int | None, height: int | None = None
) -> Iterator[tuple[str, str]]:
    """Return lines and their colours; of a screen, what is wrong takes up to half."""
    yield overview.summary if width is None else cut(overview.summary, width), ""
    wrong = [
        (each.problem, output.quoted(each.name or each.using), each.text, each.using)
        for each in overview.problems
    ]
    most = len(wrong) if height is None else max(height // 2 - 3, 1)
    for number, line in enumerate(table_lines(_WRONG_HEADING, wrong[:most], width, ("BACKEND",))):
        yield line, output.ALARM if number else output.HEADING
    if len(wrong) > most:
        yield f"and {len(wrong) - most} more", output.ALARM
    if wrong:
        yield "", ""
    rows, colours = rows_of(overview.locks[:height])
    yield from zip(
        table_lines(HEADING, rows, width, OPTIONAL), (output.HEADING, *colours), strict=False
    )


def _watch(command: BaseCommand, using: Collection[str] | None, every: float) -> None:
    """Show it on the whole terminal until q is typed.

    It is drawn anew after each pause, each key, and each change of the window's size.
    """
    import curses  # which some systems' Pythons lack

    def live(screen: Any) -> None:
        colours = dict.fromkeys((output.HEADING, output.ALARM, output.WARNING), curses.A_BOLD)
        with suppress(curses.error):  # a terminal without colours, or whose cursor stays
            curses.curs_set(0)
            if command.style.ERROR("") and curses.has_colors():
                curses.use_default_colors()
                for number, colour in enumerate((output.ALARM, output.WARNING), 1):
                    shade = (curses.COLOR_RED, curses.COLOR_YELLOW)[number - 1]
                    curses.init_pair(number, shade, -1)
                    colours[colour] |= curses.color_pair(number)
        screen.timeout(int(every * 1000))
        overview, key = ask(Backends(using)), curses.KEY_RESIZE
        while key != ord("q"):
            if key != curses.KEY_RESIZE:
                overview = ask(Backends(using), again=True)
            height, width = screen.getmaxyx()
            screen.clear()
            lines = islice(_lines(overview, width - 1, height), height)
            for row, (line, colour) in enumerate(lines):
                line = line.encode(screen.encoding, "backslashreplace").decode(screen.encoding)
                with suppress(curses.error):  # the window has become smaller
                    screen.addnstr(row, 0, line, width - 1, colours.get(colour, curses.A_NORMAL))
            screen.refresh()
            key = screen.getch()

    try:
        curses.wrapper(live)
    except curses.error as error:
        fail(FAILED, f"this terminal cannot show it ({error}); say --once")
