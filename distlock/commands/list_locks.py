"""``manage.py locks list``: all that is held, or whose lease ended without release.

A row for each holder: a semaphore or a read/write lock may have several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.base import BaseBackend
from distlock.backends.shared import every_kind
from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, add_kind, add_using, prefix
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog
from distlock.core.manager import manager
from distlock.core.waiting_counts import Crowds
from distlock.types.lease import Kind, LockInfo, State

HELP = "List the locks that are held, and those whose lease ended without being released."
HEADING = ("BACKEND", "KIND", "STATE", "OWNER", "SINCE", "LEFT", "TOKEN", "WAITERS", "NAME")
STATES = (State.HELD.value, State.EXPIRED.value)
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
        help="Only locks in this state. May be repeated.",
    )
    add_kind(parser)
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    using: Collection[str] | None,
    prefix: str,
    state: Collection[str] | None,
    kind: Kind | None,
    json: bool,
    **others: object,
) -> None:
    backends = Backends(using)
    states = state or STATES

    def listed(backend: BaseBackend) -> Iterator[LockInfo]:
        crowds: Crowds | None = None
        for part in every_kind(backend):
            for info in part.list(prefix):
                if info.state in states and kind in (None, info.kind):
                    crowds = crowds or Crowds.read(backend, manager.queue)
                    yield crowds.added_to(info)

    found = backends.ask(listed)
    if json:
        entries = [output.json_entry(info) for info in found]
        output.write_json(command, {"locks": entries, "unavailable": backends.failures})
    else:
        rows = list(chain.from_iterable(map(_rows, found)))
        output.write_table(command, HEADING, rows)
        if not rows and not backends.failures:
            command.stderr.write("No locks.")
    backends.finish()


def _rows(info: LockInfo) -> Iterator[tuple[str, ...]]:
    """Return a row for each of those who hold a lock."""
    for holder in info.holders:
        yield (
            info.using,
            output.kind(info),
            info.state.value,
            output.owner(holder.owner),
            output.moment(holder.since),
            output.duration(holder.remaining),
            output.NOTHING if holder.token is None else str(holder.token),
            output.waiting(info),
            output.quoted(info.name),
        )
