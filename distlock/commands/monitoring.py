"""``manage.py locks top`` and ``locks ping``: whether all is well, for people, probes and scripts.

``top`` shows what is wrong, and then the locks by waiters and age, live.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand

from distlock.backends.base import BaseBackend
from distlock.backends.reading import together
from distlock.commands import output
from distlock.commands.arguments import JSON, USING, Backends, ask, name, option, seconds
from distlock.commands.exit_codes import DONE, FAILED, NOT_HELD, USAGE, epilog, fail
from distlock.commands.output import cut, table_lines
from distlock.commands.show_locks import HEADING, OPTIONAL, ORDERS, locks_in_use, rows_of, waiting
from distlock.commands.verbs import Verb
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import NotSupported
from distlock.fan_out import TIMEOUT, ping
from distlock.recipes.description import Description
from distlock.recipes.election import Election
from distlock.recipes.recipe import names_of
from distlock.registry import BY_KIND
from distlock.supervisor.processes import Interrupted, ended_by_signals
from distlock.types.lease import Kind, LockInfo, State
from distlock.types.owners import current_owner
from distlock.types.query import DisplayStatus, status_of
from distlock.types.values import quoted

#: A lock that at least so many wait for is among what is wrong.
MANY_WAITERS = 10
#: Columns from which on the backend of what is wrong is shown; it takes room from the text.
_WIDE = 100
#: Seconds after which a signal is noticed that came just before the terminal was waited for.
_SIGNAL_NOTICED = 0.5
#: The kinds of problems, in the order in which they are shown; what recipes say of themselves
#: follows.
WRONG = ("unavailable", "missed renewal", "leaked hold", "many waiters")


class Problem(NamedTuple):
    """Something that is wrong; ``name`` is empty for a whole backend."""

    problem: str
    using: str
    kind: Kind | None
    name: str
    text: str


def _top(
    command: BaseCommand, *, using: Collection[str] | None, json: bool, **options: Any
) -> None:
    if command.stdout.isatty() and not (json or options["once"]):
        _watch(command, using, options["every"])
        return
    backends = Backends(using)
    infos, problems = _look(backends)
    if json:
        document = {
            "at": datetime.now(UTC),
            "problems": [each._asdict() for each in problems],
            "locks": [output.json_entry(info) for info in infos],
            "unavailable": backends.failures,
        }
        output.write_json(command, document)
    else:
        for line, colour in _lines(infos, problems, output.width(command)):
            command.stdout.write(output.paint(command, line, colour))
    backends.finish()


def _look(backends: Backends) -> tuple[list[LockInfo], list[Problem]]:
    """Return the locks and what is wrong; raises no error of a backend. See Backends.ask()."""
    found = backends.ask(_in_use)
    problems = [problem for each in found for problem in _problems(each)]
    for alias, why in backends.failures.items():
        text = why.removeprefix(f"DISTLOCK[{alias!r}]: ")
        problems.append(Problem("unavailable", alias, None, "", text))
    order = {problem: number for number, problem in enumerate(WRONG)}
    problems.sort(key=lambda each: order.get(each.problem, len(order)))
    infos = sorted((each for each in found if isinstance(each, LockInfo)), key=ORDERS["age"])
    return sorted(infos, key=ORDERS["waiters"]), problems


def _in_use(backend: BaseBackend) -> Iterator[LockInfo | list[Problem]]:
    yield from locks_in_use(backend)
    for kind, entry in BY_KIND.items():
        if entry.description.watched:
            with suppress(NotSupported):
                yield from _watched(backend.alias, kind, entry.description)


def _watched(alias: str, kind: Kind, description: Description[Any]) -> Iterator[list[Problem]]:
    for called, report in together(names_of(kind, alias), partial(description.report, alias)):
        wrong = description.problems(report)
        yield [Problem(each, alias, kind, called, text) for each, text in wrong]


def _problems(found: LockInfo | list[Problem]) -> Iterator[Problem]:
    if isinstance(found, list):
        yield from found
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


def _lines(
    infos: list[LockInfo], problems: list[Problem], width: int | None, height: int | None = None
) -> Iterator[tuple[str, str]]:
    """Return lines and their colours; of a screen, what is wrong takes up to half."""
    expired = sum(info.state is State.EXPIRED for info in infos)
    summary = (
        f"{len(problems)} wrong, {len(infos) - expired} held, {expired} expired,"
        f" {sum(map(waiting, infos))} waiting  {output.moment(datetime.now(UTC))}"
    )
    yield cut(summary, width or len(summary)), ""
    shown = slice(3 if width is not None and width < _WIDE else None)
    wrong = [
        (each.problem, quoted(each.name or each.using), each.text, each.using)[shown]
        for each in problems
    ]
    most = len(wrong) if height is None else max(height // 2 - 3, 1)
    heading = ("WRONG", "NAME", "WHAT IS KNOWN", "BACKEND")
    for number, line in enumerate(table_lines(heading[shown], wrong[:most], width)):
        yield line, output.ALARM if number else output.HEADING
    if wrong:
        yield f"and {len(wrong) - most} more" if len(wrong) > most else "", output.ALARM
    rows, colours = rows_of(infos[:height])
    lines = table_lines(HEADING, rows, width, OPTIONAL)
    yield from zip(lines, (output.HEADING, *colours), strict=False)


def _watch(command: BaseCommand, using: Collection[str] | None, every: float) -> None:
    """Show it on the whole terminal until q is typed, or a signal ends it.

    It is drawn again after each pause, each key, and each change of the window's size.
    """
    import curses  # which some systems' Pythons lack

    def live(screen: Any) -> None:
        colours = dict.fromkeys((output.HEADING, output.ALARM, output.WARNING), curses.A_BOLD)
        with suppress(curses.error):  # a terminal without colours, or whose cursor stays
            curses.curs_set(0)
            if command.style.ERROR(""):
                curses.use_default_colors()
                curses.init_pair(1, curses.COLOR_RED, -1)
                curses.init_pair(2, curses.COLOR_YELLOW, -1)
                colours[output.ALARM] |= curses.color_pair(1)
                colours[output.WARNING] |= curses.color_pair(2)
        waits = math.ceil(every / _SIGNAL_NOTICED)
        screen.timeout(math.ceil(every / waits * 1000))  # with 0 it would not wait at all
        found, key = _look(Backends(using)), curses.KEY_RESIZE
        while key != ord("q"):
            if key != curses.KEY_RESIZE:
                found = _look(Backends(using, again=True))
            height, width = screen.getmaxyx()
            screen.clear()
            for row, (line, colour) in enumerate(islice(_lines(*found, width - 1, height), height)):
                line = line.encode(screen.encoding, "backslashreplace").decode(screen.encoding)
                with suppress(curses.error):  # the window has become smaller
                    screen.addnstr(row, 0, line, width - 1, colours.get(colour, curses.A_NORMAL))
            screen.refresh()
            keys = (screen.getch() for _ in range(waits))
            key = next((key for key in keys if key != curses.ERR), curses.ERR)

    # Log lines on the terminal would be written over the screen.
    quiet = redirect_stderr(io.StringIO())
    try:
        with quiet, suppress(Interrupted, KeyboardInterrupt), ended_by_signals():
            curses.wrapper(live)
    except curses.error as error:
        fail(FAILED, f"this terminal cannot show it ({error}); use --once")


def _ping(
    command: BaseCommand, *, aliases: Sequence[str], leads: str | None, **options: Any
) -> None:
    Backends(aliases)  # refuses an alias that there is not
    answers = ping(aliases or locks, options["timeout"])
    failed = [alias for alias, answer in answers.items() if answer.problem]
    using = aliases[0] if aliases else DEFAULT_ALIAS
    asked = leads if using not in failed else None
    leader = ask(using, Election(asked, using=using).leader) if asked else None
    led = leader is not None and leader.owner.host == current_owner().host
    if options["json"]:
        said = {alias: {**one.as_json(), "problem": one.problem} for alias, one in answers.items()}
        election = {"election": {"name": leads, "leads": led}} if leads else {}
        ok = not failed and (led or not leads)
        output.write_json(command, {"ok": ok, "backends": said, **election})
    else:
        for alias, answer in answers.items():
            line = answer.problem or f"answered in {answer.seconds * 1000:.0f} ms"
            command.stdout.write(f"{alias}: {line}")
    if failed:
        fail(FAILED, f"no answer from {', '.join(map(repr, failed))}")
    if leads and not led:
        by = f"{output.owner(leader.owner)} does" if leader else "nobody does"
        fail(NOT_HELD, f"no process of this host leads election {leads!r} on {using!r}; {by}")


_ONCE = option("--once", "Print it once, and end.", action="store_true")
_EVERY = option(
    "--every SECONDS",
    "The pause before the backends are asked again (%(default)s).",
    type=seconds,
    default=2.0,
)
TOP = Verb(
    _top,
    (USING, _ONCE, _EVERY, JSON),
)
_ALIASES = option("aliases ALIAS", "Only these backends; all by default.", nargs="*")
_TIMEOUT = option(
    "--timeout SECONDS",
    "How long to wait for the answers (%(default)g).",
    type=seconds,
    default=TIMEOUT,
)
_LEADS = option(
    "--leads ELECTION", "An election in the first ALIAS, or in the default backend.", type=name
)
PING = Verb(
    _ping,
    (_ALIASES, _TIMEOUT, _LEADS, JSON),
    epilog(DONE, FAILED, USAGE, NOT_HELD, meanings={NOT_HELD: "no process of this host leads"}),
)
