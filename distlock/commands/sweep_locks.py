"""``manage.py locks sweep``: free expired locks and remove old rows, once or repeatedly."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from django.core.management.base import BaseCommand, CommandParser

from distlock.backends.shared import sweep_every_kind
from distlock.commands.acquire import sleep_until
from distlock.commands.arguments import Backends, add_using, seconds
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog
from distlock.concurrency.clock import clock
from distlock.supervisor.signal_handling import Interrupted, ended_by_signals

HELP = (
    "Free the locks whose lease ended without being released, and remove the rows of locks that"
    " have been free for long. Never touches a hold whose lease still runs."
)
EPILOG = epilog(DONE, FAILED, USAGE)


def add_arguments(parser: CommandParser) -> None:
    add_using(parser)
    parser.add_argument(
        "--every",
        type=seconds,
        metavar="SECONDS",
        help="Sweep again and again with this pause, until SIGTERM or SIGINT.",
    )


def run(
    command: BaseCommand,
    *,
    using: Collection[str] | None,
    every: float | None,
    **others: object,
) -> None:
    if every is None:
        _sweep(command, using).finish()
        return
    with suppress(Interrupted, KeyboardInterrupt), ended_by_signals():
        while True:
            for problem in _sweep(command, using).report():
                command.stderr.write(problem)
            sleep_until(clock() + every)


def _sweep(command: BaseCommand, using: Collection[str] | None) -> Backends:
    backends = Backends(using)
    for alias, swept in backends.work(lambda backend: [(backend.alias, sweep_every_kind(backend))]):
        command.stdout.write(f"{alias}: {swept.expired} expired, {swept.removed} removed")
    command.stdout.flush()
    return backends
