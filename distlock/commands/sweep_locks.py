"""``manage.py locks sweep``: clear what nobody will clear any more, once or again and again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from distlock.bell import Bell
from distlock.commands.arguments import add_using, seconds
from distlock.commands.backends import Backends
from distlock.commands.exit_codes import DONE, FAILED, USAGE, epilog

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
    with _stop_signal() as stop:
        while True:
            for problem in _sweep(command, using).report():
                command.stderr.write(problem)
            if stop.wait(every):
                return


def _sweep(command: BaseCommand, using: Collection[str] | None) -> Backends:
    backends = Backends(using)
    for alias in backends:
        with backends.noting(alias):
            swept = backends[alias].sweep()
            command.stdout.write(f"{alias}: {swept.expired} expired, {swept.removed} removed")
    command.stdout.flush()
    return backends


@contextmanager
def _stop_signal() -> Iterator[Bell]:
    """Yield a bell that SIGTERM and SIGINT ring; the second of them has its usual effect."""
    stop = Bell()
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield stop
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    # A shell has what it runs in the background ignore Ctrl-C, which is meant for others then.
    usual = {number: handler for number, handler in usual.items() if handler != signal.SIG_IGN}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: Any) -> None:
        stop.ring()
        restore()

    for number in usual:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
