"""``manage.py locks list``: all that is held, or whose lease ended without release.

A row for each holder: a semaphore or a read/write lock may have several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.base import BaseBackend
from distlock.backends.shared import every_kind
from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, add_kind, add_using, prefix
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog
from distlock.types.lease import LockInfo, State
from distlock.types.query import DisplayStatus, status_of

HELP = "List the locks that are held, and those whose lease ended without being released."
_FIRST = ("NAME", "STATE", "AGE", "LEFT", "WAITERS", "OWNER")
HEADING = (*_FIRST, "DESCRIPTION", "BACKEND", "KIND", "TOKEN")
#: What is left out first where the terminal is narrow.
OPTIONAL = ("TOKEN", "KIND", "BACKEND", "DESCRIPTION", "LEFT", "WAITERS")
STATES = (DisplayStatus.HELD.value, DisplayStatus.EXPIRING.value, DisplayStatus.EXPIRED.value)
COLOURS = {DisplayStatus.EXPIRING: output.WARNING, DisplayStatus.EXPIRED: output.ALARM}
ORDERS: dict[str, Callable[[LockInfo], Any]] = {
    "name": lambda info: info.name,
    "age": lambda info: info.since or datetime.max.replace(tzinfo=UTC),
    "left": lambda info: math.inf if info.remaining is None else info.remaining,
    "waiters": lambda info: -waiting(info),
}
EPILOG = epilog(DONE, FAILED, USAGE)


def add_arguments(parser: CommandParser) -> None:
    add_using(parser)
    parser.add_argument(
        "--prefix", type=prefix, default="", help="Only locks whose names begin with this."
    )
    parser.add_argument(
        "--state",
        action="append",
        choices=STATES,
        help="Only locks in this state. Those that are expiring, because a renewal was missed or"
        " there will be none, are held, too. May be repeated.",
    )
    parser.add_argument(
        "--sort",
        choices=tuple(ORDERS),
        default="name",
        help="Sort by name, the oldest first, the least time left first, or the most waiters first"
        " (%(default)s).",
    )
    add_kind(parser)
    add_json(parser)


def run(
    command: BaseCommand, *, using: Collection[str] | None, prefix: str, json: bool, **options: Any
) -> None:
    states, kind = {*(options["state"] or STATES)}, options["kind"]

    def wanted(info: LockInfo) -> bool:
        return kind in (None, info.kind) and not states.isdisjoint((info.state, status_of(info)))

    backends = Backends(using)
    found = backends.ask(lambda backend: filter(wanted, locks_in_use(backend, prefix)))
    found.sort(key=ORDERS[options["sort"]])
    if json:
        entries = [output.json_entry(info) for info in found]
        output.write_json(command, {"locks": entries, "unavailable": backends.failures})
    else:
        rows, colours = rows_of(found)
        output.write_table(command, HEADING, rows, optional=OPTIONAL, colours=colours)
        if not rows and not backends.failures:
            command.stderr.write("No locks.")
    backends.finish()


def locks_in_use(backend: BaseBackend, prefix: str = "") -> Iterator[LockInfo]:
    """Return the locks of all kinds that are held, or whose lease ended without release."""
    for part in every_kind(backend):
        yield from (info for info in part.list(prefix) if info.state is not State.FREE)


def waiting(info: LockInfo) -> int:
    """Return how many wait for a lock; 0 where that is not known."""
    return len(info.waiters or ())


def rows_of(infos: Iterable[LockInfo]) -> tuple[list[output.Row], list[str]]:
    """Return a row for each of those who hold the locks, and the colours of these rows."""
    rows: list[output.Row] = []
    colours: list[str] = []
    for info, holder in ((each, holder) for each in infos for holder in each.holders):
        status = status_of(info.of(holder))
        colours.append(COLOURS.get(status, ""))
        rows.append(
            (
                output.quoted(info.name),
                status.value,
                output.duration(holder.held_for),
                output.duration(holder.remaining),
                output.NOTHING if info.waiters is None else str(waiting(info)),
                output.owner(holder.owner),
                output.escaped(holder.description) or output.NOTHING,
                info.using,
                output.kind(info),
                output.NOTHING if holder.token is None else str(holder.token),
            )
        )
    return rows, colours
