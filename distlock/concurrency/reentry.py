"""Refuses operations that a signal handler, or a destructor, begins in the middle of another one.

Python runs signal handlers, destructors, callbacks of weak references and audit hooks at nearly any
bytecode of a thread. If that one is inside an operation of this package, it may have a mutex, of
ours or of a library, and code that waits for it on the same thread waits forever. So each public
operation looks up the stack first, before anything is begun. It takes no mutex for that, and keeps
no state that an interrupt could leave wrong.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from distlock.exceptions import ReentrantCall

F = TypeVar("F", bound=Callable[..., Any])

_FINALIZE = weakref.finalize.__call__.__code__

#: Modules and packages that take mutexes, or wait for a backend. Where another one is interrupted,
#: and none of these is below it, an operation can begin as usual.
ROOMS = (
    "backends",
    "concurrency",
    "conf",
    "runtime.acquiring",
    "runtime.events",
    "runtime.hold",
    "runtime.local_queue",
    "runtime.manager",
    "runtime.holds",
    "runtime.renewal",
    "recipes.membership",
    "records",
)
#: But these: what takes no mutex (who asks, and whether this is another process), this module, and
#: where a transaction of the caller begins and ends, with all that is to be done on its commit.
EXCEPT = (
    "concurrency.fork",
    "concurrency.work",
    "concurrency.reentry",
    "backends.open_transactions",
    "backends.database.transactions",
)

_PACKAGE = os.path.dirname(os.path.dirname(sys._getframe().f_code.co_filename)) + os.sep
#: the ids of the code of functions that call other people's code, see calls_others()
_calling_others: set[int] = set()


class _InRooms(dict[str, bool]):
    """Whether the code of a file is in the ROOMS, by its name. Most names are asked for again."""

    def __missing__(self, filename: str) -> bool:
        module = filename.removeprefix(_PACKAGE).removesuffix(".py").replace(os.sep, ".")
        inside = filename.startswith(_PACKAGE) and _is_in(module, ROOMS)
        self[filename] = inside and not _is_in(module, EXCEPT)
        return self[filename]


def _is_in(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


_in_rooms = _InRooms()


def calls_others(function: F) -> F:
    """Mark a function of the ROOMS that calls what may use locks: receivers, callbacks, bodies.

    That is no interrupt. The function itself has no mutex then.
    """
    _calling_others.add(id(function.__code__))
    return function


def refuse_reentry(depth: int = 1) -> None:
    """Raise ReentrantCall if this thread was interrupted inside an operation of this package.

    ``depth`` is 2 for a function of the ROOMS themselves, which must not take itself for that.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:  # a loop of its own: each `with Lock` comes by here, on a deep stack
        code = frame.f_code
        if _in_rooms[code.co_filename]:
            if id(code) in _calling_others:
                return
            raise _error(frame)
        frame = frame.f_back


def must_leave_elsewhere(*, closed: bool = False) -> bool:
    """Return whether what the caller is to leave has to be left by another thread.

    It has to be where a destructor, or the like, has interrupted an operation: nobody would get an
    error of it. ReentrantCall in a signal handler, which can end what it has interrupted; unless it
    has only ``closed`` a generator, perhaps by forgetting it.
    """
    interrupted = interrupted_frame()
    if interrupted is None:
        return False
    if not closed and _is_in_signal_handler(sys._getframe(1), interrupted):
        raise _error(interrupted)
    return True


def interrupted_frame() -> FrameType | None:
    """Return where this thread was interrupted inside an operation of this package, else None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _in_rooms[frame.f_code.co_filename]:
            return None if id(frame.f_code) in _calling_others else frame
        frame = frame.f_back
    return None


def _is_in_signal_handler(frame: FrameType, interrupted: FrameType) -> bool:
    """Return whether a frame was called by a signal handler: that gets the interrupted frame."""
    while frame is not interrupted:
        before, code = frame.f_back, frame.f_code
        if before is None or code.co_name == "__del__" or code is _FINALIZE:
            return False
        if not code.co_filename.startswith(_PACKAGE):
            for value in frame.f_locals.values():
                if any(one is before for one in (value if type(value) is tuple else (value,))):
                    return True
        frame = before
    return False


def _error(interrupted: FrameType) -> ReentrantCall:
    where = interrupted.f_code.co_filename.removeprefix(_PACKAGE)
    return ReentrantCall(
        f"this thread was interrupted inside distlock ({where}, line {interrupted.f_lineno}),"
        f" where no other operation can begin. In a signal handler `raise SystemExit`, and"
        f" `with` releases"
        " the lock; or let another thread do this, without waiting for it"
    )
