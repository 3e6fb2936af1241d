"""``manage.py locks run NAME -- COMMAND …``: run a program under a lock, as flock(1) does.

With ``--elect`` the program is run while this process leads an election.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand

from distlock.commands.arguments import (
    ALIAS,
    NAME,
    argument,
    busy_code,
    description,
    option,
    seconds,
    waiting_time,
)
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
    from_command_line,
    run_command,
    stay,
)
from distlock.commands.output import escaped
from distlock.commands.verbs import Verb
from distlock.concurrency.clock import clock
from distlock.conf import locks
from distlock.exceptions import BodyEnded, LockLost
from distlock.locking.base_lock import BaseLock
from distlock.locking.lock import Lock
from distlock.locking.run_under import AGREED, Slots, checked_slots, lock_or_slot
from distlock.recipes.candidates import Order
from distlock.recipes.election import Election
from distlock.supervisor.processes import Interrupted, ProgramSignals, program_signals
from distlock.supervisor.supervisor import Outcome, ProgramSupervisor, ShutdownTiming
from distlock.types.lease import MAX_DESCRIPTION, Owner


@argument
def _slots(value: str) -> Slots:
    """Return a number of slots, or AGREED."""
    digits = value.removeprefix("-")
    number = int(value) if digits.isascii() and digits.isdecimal() else value
    checked_slots("it", number, at_least=None)
    return AGREED if isinstance(number, str) else number


def _run(command: BaseCommand, **options: Any) -> None:
    if threading.current_thread() is not threading.main_thread():
        fail(USAGE, "only the main thread can run a program, because it gets the signals")
    run = _ProgramRun(options, alone=from_command_line(command))
    if_busy = {option: options[option] for option in ("timeout", "busy_code", "verbosity")}
    try:
        with program_signals() as run.signals:
            run_command(command, run.lock, run.body, run.on_lost, ensure_schema=True, **if_busy)
    except BodyEnded:  # of a lock around this one
        raise
    except LockLost as error:
        fail(LOST, f"{run.program!r} was not started: {escaped(str(error))}")
    run.finish()


class _ProgramRun:
    """A program under a lock, and how it ended."""

    signals: ProgramSignals

    def __init__(self, options: Mapping[str, Any], *, alone: bool) -> None:
        """``alone``: the process was started for this, and ends as the program does."""
        self._command: Sequence[str] = options["program"]
        self._name, self._at_least, self._alone = options["name"], options["at_least"], alone
        self._lease, self._grace = options["lease"], options["grace"]
        #: it stays so if the lock is busy and --busy-code is 0
        self._outcome = Outcome(code=DONE)
        self.program = self._command[0]
        try:
            self.lock = _lock(**options)
            self._backend = locks[options["using"]]
            self._timing()
        except (ValueError, TypeError, ImproperlyConfigured) as error:
            fail(USAGE, escaped(str(error)))

    def _timing(self) -> ShutdownTiming:
        try:
            return ShutdownTiming.of(self._lease or self._backend.settings.lease, self._grace)
        except ValueError as error:
            fail(USAGE, f"--{error}")

    def body(self) -> None:
        """Run the program, under the lock."""
        granted_at = clock()
        timing = self._timing()  # ZooKeeper's servers have decided how long a session is
        token = str(self.lock.token)
        environment = {**os.environ, "DISTLOCK_NAME": self._name, "DISTLOCK_TOKEN": token}
        supervisor = ProgramSupervisor(self.lock, timing, self.signals, alone=self._alone)
        self._outcome = supervisor.run(self._command, environment)
        if self._alone and self._at_least and not self._outcome.lost:
            self.signals.forward = None
            with suppress(Interrupted):
                stay(self.lock, granted_at + self._at_least)

    def on_lost(self, error: LockLost) -> None:
        """End the command: the lock was lost, and the program did not end for that."""
        if not self._outcome.lost:
            ended = f"{self.program!r} ended with exit code {self._outcome.code}"
            fail(LOST, f"{ended}, but {escaped(str(error))}")

    def finish(self) -> None:
        """End the command as the program has ended."""
        outcome = self._outcome
        if outcome.lost:
            ended = f"{self.program!r} was ended, with exit code {outcome.code}"
            fail(LOST, f"{ended}: {escaped(outcome.lost)}")
        if outcome.problem:
            fail(outcome.code, f"{self.program!r}: {outcome.problem}")
        if outcome.code and self._alone:
            sys.exit(outcome.code)
        if outcome.code:
            fail(outcome.code, f"{self.program!r} ended with exit code {outcome.code}")


def _lock(
    *, name: str, using: str, program: Sequence[str], elect: bool, **options: Any
) -> BaseLock:
    """Return what a program runs under; ValueError if options do not go together."""
    election = {option: options[option] for option in ("candidate", "priority", "order")}
    lock = {option: options[option] for option in ("slots", "at_least", "lease", "description")}
    if elect:
        for option, value in lock.items():
            if value:
                raise ValueError(f"--{option.replace('_', '-')}={value} does not go with --elect")
        return ElectedLock(Election(name, using=using, **election))
    if options["candidate"] or options["priority"] or options["order"] != "first":
        raise ValueError("--candidate, --priority and --order go with --elect")
    # The arguments are not shown, because they may be secret.
    lock["description"] = lock["description"] or escaped(program[0])[:MAX_DESCRIPTION]
    return lock_or_slot(name, using=using, **lock)


class ElectedLock(Lock):
    """The lock of an election: who takes it stands, and has it while its candidate leads."""

    def __init__(self, election: Election) -> None:
        super().__init__(election._directory, using=election.using)
        self._election = election

    def _acquire(self, blocking: bool | None = None, timeout: float | None = None) -> Owner | None:
        """Stand, and wait until the candidate leads."""
        leads = self._election.campaign(blocking is not False, timeout)
        return self._current_owner if leads else None

    def release(self) -> None:
        """Resign."""
        self._election.resign()

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any, frame: Any = None) -> None:
        """Resign; an error of that becomes a note of the error of the block."""
        self._election.__exit__(exc_type, exc, traceback)

    def check(self) -> None:
        """Raise LockLost also if the leader was asked to step down."""
        self._election.check()

    @property
    def _current_owner(self) -> Owner:
        return self._election._candidacy.lock.owner


_PROGRAM = option(
    "program -- COMMAND",
    "The program and its arguments; it sees DISTLOCK_NAME and DISTLOCK_TOKEN.",
    nargs="+",
)
_TIMEOUT = option(
    "--timeout SECONDS",
    "Wait for the lock no longer than that; 0 tries once. Waits forever by default.",
    type=waiting_time,
)
_SLOTS = option(
    "--slots N",
    "Let N such programs run at a time, in the seats of a semaphore of this name; all have to"
    " give the same number. `agreed` takes the number that `locks resize` has set last.",
    type=_slots,
)
_ELECTION = (
    option(
        "--elect",
        "Run the program while this process leads the election NAME, and end it when another one"
        " is to lead: one process runs it at a time, and the next one takes over.",
        action="store_true",
    ),
    option("--candidate TEXT", "With --elect: the name under which this one can be appointed."),
    option("--priority N", "With --elect: see --order.", type=int, default=0),
    option(
        "--order",
        "With --elect, the next leader: the first to come (the default), the greatest"
        " --priority, or the appointed one; all have to give the same.",
        choices=get_args(Order),
        default="first",
    ),
)
_TIMES = [
    option(f"{name} SECONDS", help, type=seconds)
    for name, help in {
        "--at-least": "Let the lock stay taken for this long after it was granted, even if the"
        " program ends earlier.",
        "--lease": "The time it lasts without a renewal; the backend's LEASE by default.",
        "--grace": "The program's time between SIGTERM and SIGKILL; at most"
        f" {ShutdownTiming.MOST:g} of the lease.",
    }.items()
]
_DESCRIPTION = option(
    "--description TEXT",
    "Shown to operators; by default the name of the program.",
    type=description,
    default="",
)
_CODES = (DONE, FAILED, USAGE, UNAVAILABLE, BUSY, LOST, NOT_EXECUTABLE, NOT_FOUND)
RUN = Verb(
    _run,
    (NAME, _PROGRAM, ALIAS, _TIMEOUT, _SLOTS, *_ELECTION, *_TIMES, _DESCRIPTION, busy_code()),
    epilog(
        *_CODES,
        meanings={FAILED: "another error"},
        more="; else those of the program, and 128+N if signal N ended it, or the wait for the"
        " lock",
    ),
)
