"""What every driver has to do, and what several of them need for it."""

from __future__ import annotations

import contextlib
import hashlib
import math
import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.timers import call_after

T = TypeVar("T")

#: A statement is worth it to be prepared when a session sends it for this time.
_OFTEN = 3
#: Statements that a session keeps prepared, at the most; and texts that it counts.
_MOST_PREPARED, _MOST_COUNTED = 60, 1000


class TimedOut(Exception):
    """The answer did not come within the time limit. It may come later."""


class RawConnection(ABC):
    """A connection of a driver. It raises the driver's own errors."""

    @abstractmethod
    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """Run the statements of one packet; returns the result of each.

        Raises TimedOut after ``limit`` seconds (None: never).
        """

    #: whether notifications() works
    hears: ClassVar[bool] = False

    def notifications(self) -> list[str]:
        """PostgreSQL: return what NOTIFY has told this session since the last time."""
        raise NotImplementedError


class Prepared(dict[str, T]):
    """What a session has prepared, by text, and how often it has sent other texts.

    What is prepared keeps memory in the server, and most texts are sent once in a while.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[str, int] = {}

    def is_due(self, sql: str) -> bool:
        """Count a text once more that is not prepared; return whether it is worth it now."""
        if len(self._sent) > _MOST_COUNTED:
            self._sent.clear()
        self._sent[sql] = sent = self._sent.get(sql, 0) + 1
        return sent >= _OFTEN and len(self) < _MOST_PREPARED


def name_of(text: bytes) -> str:
    """Return the name of a prepared statement, which is made of its text.

    So even where a pooler that nobody knows of mixes up sessions, no name stands for another one.
    """
    return f"distlock_{hashlib.sha256(text).hexdigest()[:32]}"


def poll_of(fd: int, event: int = select.POLLIN) -> select.poll:
    """Return what waits for an event at a socket."""
    poll = select.poll()
    poll.register(fd, event)
    return poll


def wait(socket: select.poll, until: float | None) -> None:
    """Wait for a socket; TimedOut after the time ``until`` (None: never) of clock()."""
    while True:
        rest = None
        if until is not None:
            # At most an hour: poll() takes no more than 24 days.
            rest = math.ceil(min(max(until - clock(), 0.0), 3600.0) * 1000)
        if socket.poll(rest):
            return
        if until is not None and clock() >= until:
            raise TimedOut


@contextlib.contextmanager
def hung_up_after(limit: float | None, hang_up: Callable[[], object] | None) -> Iterator[None]:
    """Let a timer end what is waited for; TimedOut if it had to."""
    if limit is None or hang_up is None:
        yield
        return
    timer = call_after(limit, hang_up)
    try:
        yield
    except Exception as error:
        if not timer.cancel():
            raise TimedOut from error
        raise
    finally:
        timer.cancel()
