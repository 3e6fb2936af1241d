"""``manage.py locks run NAME -- COMMAND …``: run a program under a lock, as flock(1) does."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser

from distlock.clock import clock, left
from distlock.commands import arguments, text
from distlock.commands.acquire import Busy, has_entered, take
from distlock.commands.exit_codes import (
    BUSY,
    DONE,
    FAILED,
    LOST,
    NOT_EXECUTABLE,
    NOT_FOUND,
    UNAVAILABLE,
    USAGE,
    epilog,
    leave,
)
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import LockError, LockLost, LockNotHeld
from distlock.lock import Lock
from distlock.supervisor.run import Outcome, Run, Times
from distlock.supervisor.signals import Signals
from distlock.types.names import MAX_DESCRIPTION

_LONGEST_SLEEP = 60.0

HELP = (
    "Run a program under a lock. Its exit code is passed on, 128+N if signal N ended it. When the"
    " lock cannot be kept, the program and all that it started are ended before someone else can"
    " take it."
)
EPILOG = epilog(
    *(DONE, FAILED, USAGE, UNAVAILABLE, BUSY, LOST, NOT_EXECUTABLE, NOT_FOUND),
    failed="another error",
    more="; else those of the program, and 128+N if signal N ended it, or the wait for the lock",
)


def add_arguments(parser: CommandParser) -> None:
    arguments.add_name(parser)
    parser.add_argument(
        "program",
        nargs="+",
        metavar="-- COMMAND",
        help="The program and its arguments; it sees DISTLOCK_NAME and DISTLOCK_TOKEN.",
    )
    parser.add_argument(
        "--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="The backend's alias in DISTLOCK."
    )
    parser.add_argument(
        "--timeout",
        type=arguments.patience,
        metavar="SECONDS",
        help="Wait for the lock no longer than that; 0 tries once. Waits for ever by default.",
    )
    parser.add_argument(
        "--at-least",
        type=arguments.seconds,
        metavar="SECONDS",
        help="Let the lock stay taken until so long after it was granted, even if the program"
        " ends earlier.",
    )
    parser.add_argument(
        "--lease",
        type=arguments.seconds,
        metavar="SECONDS",
        help="How long the lock outlives this process; the backend's LEASE by default.",
    )
    parser.add_argument(
        "--grace",
        type=arguments.seconds,
        metavar="SECONDS",
        help="How long the program gets between SIGTERM and SIGKILL; at most"
        f" {Times.MOST:g} of the lease.",
    )
    parser.add_argument(
        "--description",
        type=arguments.description,
        default="",
        metavar="TEXT",
        help="Shown to those who look at the lock; by default the name of the program.",
    )
    arguments.add_busy_code(parser)


def run(
    command: BaseCommand,
    *,
    name: str,
    program: list[str],
    using: str,
    timeout: float | None,
    at_least: float | None,
    lease: float | None,
    grace: float | None,
    description: str,
    busy_code: int,
    verbosity: int,
    **others: Any,
) -> None:
    if threading.current_thread() is not threading.main_thread():
        leave(USAGE, "only the main thread can run a program, because it gets the signals")
    alone = bool(getattr(command, "_called_from_command_line", False))
    with Signals() as signals:
        try:
            lock = Lock(
                name,
                using=using,
                at_least=at_least,
                lease=lease,
                # Its arguments may be secret.
                description=description or text.escaped(program[0])[:MAX_DESCRIPTION],
                on_lost=lambda lost: signals.ring(),
            )
            backend = locks[using]
            _times(backend.settings.lease if lease is None else lease, grace)
        except (ValueError, TypeError, ImproperlyConfigured) as error:
            leave(USAGE, text.escaped(str(error)))
        duration = backend.settings.lease if lease is None else lease
        outcome, lost, entered_before = Outcome(), "", has_entered(lock)
        try:
            take(lock, timeout, prepare=True)
            granted_at, entered_before = clock(), False
            if lease is None:
                duration = backend.settings.lease  # ZooKeeper's servers had a say in that
            environment = {
                **os.environ,
                "DISTLOCK_NAME": name,
                "DISTLOCK_TOKEN": str(lock.token),
            }
            run = Run(lock, _times(duration, grace), signals, alone=alone)
            outcome = run(program, environment)
            if not backend.capabilities.outlives_process and at_least and not outcome.lost:
                _stay(signals, granted_at + at_least)
        except Busy as busy:
            busy.leave(command, busy_code, verbosity)
            return
        except LockLost as error:
            leave(LOST, f"{program[0]!r} was not started: {text.escaped(str(error))}")
        finally:
            if not entered_before:
                lost = _leave(command, lock, duration)
    if lost and not outcome.lost:
        leave(LOST, f"{program[0]!r} ended with exit code {outcome.code}, but {text.escaped(lost)}")
    _end(outcome, program, alone=alone)


def _times(lease: float, grace: float | None) -> Times:
    try:
        return Times.of(lease, grace)
    except ValueError as error:
        leave(USAGE, f"--{error}")


def _stay(signals: Signals, until: float) -> None:
    """Hold the lock until then, by the local clock, or until a signal would end the program."""
    while (rest := left(until, _LONGEST_SLEEP)) and not signals.come():
        select.select([signals], [], [], rest)


def _leave(command: BaseCommand, lock: Lock, duration: float) -> str:
    """Leave the lock, if it was had; return why it was lost, if it was."""
    ends_now = False
    try:
        rest = lock.remaining
        if ends_now := rest <= Times.of(duration, None).margin:
            # At its very end a lease frees the lock sooner than a silent server answers.
            time.sleep(rest)
    except LockNotHeld:
        return ""
    except LockLost:
        pass  # It must be left all the same: else this process could not take it again.
    try:
        lock.release()
    except LockLost as error:
        return "" if ends_now else str(error)
    except LockError as error:
        command.stderr.write(f"the lock is freed when its lease ends: {error}")
    return ""


def _end(outcome: Outcome, program: list[str], *, alone: bool) -> None:
    what = repr(program[0])
    if outcome.lost:
        leave(
            LOST, f"{what} was ended, with exit code {outcome.code}: {text.escaped(outcome.lost)}"
        )
    if outcome.problem:
        leave(outcome.code, f"{what}: {outcome.problem}")
    if outcome.code and alone:
        sys.exit(outcome.code)
    if outcome.code:
        leave(outcome.code, f"{what} ended with exit code {outcome.code}")
