"""How the management commands end; scripts rely on the exit codes, so they never change.

NOT_EXECUTABLE and NOT_FOUND are those of a shell.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NoReturn

from django.core.management.base import BaseCommand, CommandError

from distlock.supervisor.processes import NOT_EXECUTABLE as NOT_EXECUTABLE
from distlock.supervisor.processes import NOT_FOUND as NOT_FOUND

DONE = 0
#: a backend could not be asked, or something else went wrong
FAILED = 1
#: the command line was wrong (argparse's own code)
USAGE = 2
#: there is no such hold (any more)
NOT_HELD = 3
#: the question was not answered with yes
DECLINED = 4
#: the backend could not be asked whether the lock is free (EX_UNAVAILABLE of sysexits.h)
UNAVAILABLE = 69
#: someone else has the lock (EX_TEMPFAIL of sysexits.h: try again later)
BUSY = 75
#: the lock was lost before the work under it was done
LOST = 79

MEANINGS = {
    DONE: "done",
    FAILED: "a backend could not be asked, or another error",
    USAGE: "wrong use",
    NOT_HELD: "the lock is not held, or not under that token any more",
    DECLINED: "not confirmed, nothing was done",
    UNAVAILABLE: "a backend could not be asked for the lock, nothing was run",
    BUSY: "the lock is held by someone else, nothing was run (--busy-code changes it)",
    LOST: "the lock was lost, and what ran under it was ended",
    NOT_EXECUTABLE: "the program could not be executed",
    NOT_FOUND: "the program was not found",
}


def epilog(*codes: int, more: str = "", meanings: Mapping[int, str] = MEANINGS) -> str:
    """Return the end of a command's help text: what its exit codes mean.

    ``meanings`` are those that differ there from ``MEANINGS``; ``more`` comes after the codes.
    """
    meanings = {**MEANINGS, **meanings}
    return f"Exit codes: {'; '.join(f'{code} {meanings[code]}' for code in codes)}{more}."


def fail(code: int, message: str) -> NoReturn:
    """End the command with ``message`` on stderr and ``code``; call_command() sees CommandError."""
    raise CommandError(message, returncode=code)


def confirm(command: BaseCommand, interactive: bool, question: str) -> None:
    """Go on if ``interactive`` is False, or the question is answered with yes; end otherwise."""
    if not interactive:
        return
    if not sys.stdin.isatty():
        fail(USAGE, "there is no terminal to ask at; say --yes to do it without a question")
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, KeyboardInterrupt):
        command.stdout.write("")
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        fail(DECLINED, "nothing was done")
