"""A bell that a thread waits for, which Ctrl-C can interrupt at any moment."""

from __future__ import annotations

import threading
from contextlib import suppress

from distlock.clock import clock, left

#: Seconds. Python can miss a Ctrl-C that comes in the moment in which it begins to sleep.
_LONGEST_SLEEP = 1.0


class Bell:
    """Rings once, for one thread.

    Unlike a ``threading.Event``, whose inside is Python code that an interrupt may leave locked:
    everyone who came to ring or to wait would then hang. Here is nothing but a plain lock.
    """

    __slots__ = ("_lock", "rung")

    def __init__(self) -> None:
        self.rung = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake who waits. Doing it twice does no harm."""
        self.rung = True
        with suppress(RuntimeError):  # it had been rung before
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Block until it is rung; False if it is not within so many ``seconds``."""
        if self.rung:
            return True
        until = clock() + seconds
        while not self.rung:
            # Who rings may be interrupted before the lock is released: look now and then.
            if not self._lock.acquire(timeout=left(until, _LONGEST_SLEEP)) and clock() >= until:
                break
        return self.rung
