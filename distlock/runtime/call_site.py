"""Where a lock is asked for: the file and the line, for people who look for its holder."""

from __future__ import annotations

import functools
import sys
from types import FrameType

from distlock.concurrency.work import JOB_FUNCTIONS, runs_a_job
from distlock.types.lease import MAX_DESCRIPTION
from distlock.types.values import escaped

#: Code between a user's line and a lock; none of it is what people look for.
_BETWEEN = (
    "distlock.",
    "asgiref.",
    "asyncio.",
    "billiard.",
    "celery.",
    "concurrent.futures.",
    "contextlib",
    "contextvars",
    "django.core.management",
    "django.utils.asyncio",
    "functools",
    "multiprocessing.",
    "threading",
)
#: Code between a user's line and a warning about it.
_INSIDE = ("distlock.", "django.utils.asyncio", "contextlib")
#: Methods that take a lock and leave it to their caller to release it.
_DOORS = frozenset({"acquire", "__enter__"})


class _Between(dict[str, str]):
    """Which of the packages of _BETWEEN a module is in, "" for others; most are asked for again."""

    def __missing__(self, module: str) -> str:
        self[module] = next((name for name in _BETWEEN if module.startswith(name)), "")
        return self[module]


_between = _Between()


def call_site(description: str) -> tuple[str, str, bool]:
    """Return the user's line that asks for a lock, as ``shop/views.py:42``, "" if there is none.

    Also its label, and whether the asking is all that a job of an executor does, as in
    ``asyncio.to_thread(lock.acquire)``: then nobody could release the lock.
    """
    frame: FrameType | None = sys._getframe(2)
    outermost = ""
    while frame is not None:
        package = _between[frame.f_globals.get("__name__", "")]
        if not package:
            site = f"{shortened(frame.f_code.co_filename)}:{frame.f_lineno}"
            label = f"{description} (at {site})" if description else f"(at {site})"
            return site, label if len(label) <= MAX_DESCRIPTION else description, False
        if package == "distlock.":
            outermost = frame.f_code.co_name
        elif frame.f_code.co_name in JOB_FUNCTIONS and runs_a_job(frame):
            return "", description, outermost in _DOORS
        frame = frame.f_back
    return "", description, False


def callers_level() -> int:
    """Return the ``stacklevel`` of a warning that is to name the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals["__name__"].startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level


@functools.lru_cache(512)
def shortened(path: str) -> str:
    """Return a file and its folder: enough to find it, and short."""
    return escaped("/".join(path.replace("(", "").replace(")", "").split("/")[-2:]))
