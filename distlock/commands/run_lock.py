"""``manage.py locks run NAME -- COMMAND …``: run a program under a lock, as flock(1) does.

With ``--elect`` the program is run while this process leads an election.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any, get_args

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser

from distlock.commands import arguments, output
from distlock.commands.acquire import from_command_line, run_command, stay
from distlock.commands.elected import ElectedLock
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
    fail,
)
from distlock.concurrency.clock import clock
from distlock.conf import locks
from distlock.core.base_lock import BaseLock
from distlock.exceptions import LockLost
from distlock.recipes.candidates import Order
from distlock.recipes.election import Election
from distlock.recipes.shared import Slots, lock_or_slot
from distlock.supervisor.signal_handling import Interrupted, program_signals
from distlock.supervisor.supervisor import Outcome, ProgramSupervisor, ShutdownTiming
from distlock.types.lease import MAX_DESCRIPTION

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
    arguments.add_alias(parser)
    parser.add_argument(
        "--timeout",
        type=arguments.waiting_time,
        metavar="SECONDS",
        help="Wait for the lock no longer than that; 0 tries once. Waits for ever by default.",
    )
    parser.add_argument(
        "--slots",
        type=arguments.slots,
        metavar="N",
        help="Let N such programs run at a time, in the seats of a semaphore of this name; all have"
        " to say the same number. `agreed` takes what `locks resize` has said last.",
    )
    parser.add_argument(
        "--elect",
        action="store_true",
        help="Run the program while this process leads the election NAME, and end it when another"
        " one is to lead: of those who run it so, one does at a time, and the next one takes over.",
    )
    parser.add_argument(
        "--candidate", metavar="TEXT", help="With --elect: by which name this one can be appointed."
    )
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="With --elect: see --order."
    )
    parser.add_argument(
        "--order",
        choices=get_args(Order),
        default="first",
        help="With --elect, who is next: who came first (the default), who has the greatest"
        " --priority, or who was appointed; all have to say the same.",
    )
    for option, meaning in {
        "--at-least": "Let the lock stay taken for that long after it was granted, even if the"
        " program ends earlier.",
        "--lease": "How long the lock lasts without a renewal; the backend's LEASE by default.",
        "--grace": "How long the program gets between SIGTERM and SIGKILL; at most"
        f" {ShutdownTiming.MOST:g} of the lease.",
    }.items():
        parser.add_argument(option, type=arguments.seconds, metavar="SECONDS", help=meaning)
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
    slots: Slots | None,
    elect: bool,
    candidate: str | None,
    priority: int,
    order: Order,
    at_least: float | None,
    lease: float | None,
    grace: float | None,
    description: str,
    busy_code: int,
    verbosity: int,
    **others: Any,
) -> None:
    if threading.current_thread() is not threading.main_thread():
        fail(USAGE, "only the main thread can run a program, because it gets the signals")
    alone = from_command_line(command)
    try:
        if elect:
            _refuse_with_elect(slots=slots, at_least=at_least, lease=lease, description=description)
            lock: BaseLock = ElectedLock(
                Election(name, candidate, priority=priority, order=order, using=using)
            )
        else:
            if candidate or priority or order != "first":
                raise ValueError("--candidate, --priority and --order go with --elect")
            lock = lock_or_slot(
                name,
                slots,
                using=using,
                at_least=at_least,
                lease=lease,
                # The arguments are not shown, because they may be secret.
                description=description or output.escaped(program[0])[:MAX_DESCRIPTION],
            )
        backend = locks[using]
        _timing(lease or backend.settings.lease, grace)
    except (ValueError, TypeError, ImproperlyConfigured) as error:
        fail(USAGE, output.escaped(str(error)))
    outcome = Outcome(code=DONE)  # so it stays if the lock is busy and --busy-code is 0

    def body() -> None:
        nonlocal outcome
        granted_at = clock()
        # ZooKeeper's servers decide how long a session is, so this is known only now.
        timing = _timing(lease or backend.settings.lease, grace)
        environment = {
            **os.environ,
            "DISTLOCK_NAME": name,
            "DISTLOCK_TOKEN": str(lock.token),
        }
        outcome = ProgramSupervisor(lock, timing, signals, alone=alone).run(program, environment)
        if alone and at_least and not outcome.lost:
            signals.forward = None
            with suppress(Interrupted):
                stay(lock, granted_at + at_least)

    def on_lost(error: LockLost) -> None:
        if not outcome.lost:
            why = output.escaped(str(error))
            fail(LOST, f"{program[0]!r} ended with exit code {outcome.code}, but {why}")

    try:
        with program_signals() as signals:
            run_command(
                command,
                lock,
                body,
                on_lost,
                timeout=timeout,
                busy_code=busy_code,
                verbosity=verbosity,
                ensure_schema=True,
            )
    except LockLost as error:
        fail(LOST, f"{program[0]!r} was not started: {output.escaped(str(error))}")
    _end(outcome, program, alone=alone)


def _refuse_with_elect(**others: object) -> None:
    for option, value in others.items():
        if value:
            raise ValueError(f"--{option.replace('_', '-')}={value} does not go with --elect")


def _timing(lease: float, grace: float | None) -> ShutdownTiming:
    try:
        return ShutdownTiming.of(lease, grace)
    except ValueError as error:
        fail(USAGE, f"--{error}")


def _end(outcome: Outcome, program: list[str], *, alone: bool) -> None:
    what = repr(program[0])
    if outcome.lost:
        fail(
            LOST, f"{what} was ended, with exit code {outcome.code}: {output.escaped(outcome.lost)}"
        )
    if outcome.problem:
        fail(outcome.code, f"{what}: {outcome.problem}")
    if outcome.code and alone:
        sys.exit(outcome.code)
    if outcome.code:
        fail(outcome.code, f"{what} ended with exit code {outcome.code}")
