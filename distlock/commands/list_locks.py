"""``manage.py locks list``: every lock that is held, or whose lease ended without release."""

from __future__ import annotations

from collections.abc import Collection

from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import output
from distlock.commands.arguments import Backends, add_json, add_using, prefix
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog
from distlock.types.lease import LockInfo, State

HELP = "List the locks that are held, and those whose lease ended without being released."
HEADING = ("BACKEND", "STATE", "OWNER", "SINCE", "LEFT", "TOKEN", "WAITERS", "NAME")
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
    add_json(parser)


def run(
    command: BaseCommand,
    *,
    using: Collection[str] | None,
    prefix: str,
    state: Collection[str] | None,
    json: bool,
    **others: object,
) -> None:
    backends = Backends(using)
    states = state or STATES
    found = backends.ask(
        lambda backend: (info for info in backend.list(prefix) if info.state in states)
    )
    if json:
        output.write_json(found, backends.failures, command.stdout.write)
    else:
        lines = output.table_lines(HEADING, map(_row, found))
        for line in lines:
            command.stdout.write(line)
        if not lines and not backends.failures:
            command.stderr.write("No locks.")
    backends.finish()


def _row(info: LockInfo) -> tuple[str, ...]:
    return (
        info.using,
        info.state.value,
        output.owner(info.owner),
        output.moment(info.since),
        output.duration(info.remaining),
        output.NOTHING if info.token is None else str(info.token),
        output.NOTHING if info.waiters is None else str(len(info.waiters)),
        output.quoted(info.name),
    )
