"""The exit codes of the management commands; scripts rely on them, so they never change."""

from __future__ import annotations

from typing import NoReturn

from django.core.management.base import CommandError

DONE = 0
#: a backend could not be asked, or something else went wrong
FAILED = 1
#: the command line was wrong (argparse's own code)
USAGE = 2
#: there is no such hold (any more)
NOT_HELD = 3
#: the person at the terminal said no
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
    BUSY: "the lock is held by someone else, nothing was run",
    LOST: "the lock was lost, and what ran under it was ended",
}


def epilog(*codes: int) -> str:
    """Return the end of a help text: what these codes mean, all by default."""
    meanings = (f"{code} {MEANINGS[code]}" for code in codes or MEANINGS)
    return f"Exit codes: {'; '.join(meanings)}."


EPILOG = epilog()


def leave(code: int, message: str) -> NoReturn:
    """End the command with ``message`` on stderr and ``code``; call_command() sees CommandError."""
    raise CommandError(message, returncode=code)
