"""One thread that acts when a time has come: a statement overran, a session was left idle."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from distlock.clock import clock
from distlock.threads import start

logger = logging.getLogger("distlock")

_NEVER = float("inf")
#: The condition variable counts on another clock than ours, which may have slept.
_LONGEST_SLEEP = 60.0


class Watch:
    """Something that is to happen at a time, unless it is called off before."""

    __slots__ = ("action", "due")

    def __init__(self, due: float, action: Callable[[], None]) -> None:
        self.due = due
        self.action = action


class Watchdog:
    """The watches of a process. Nearly all are called off, so that must cost next to nothing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every watch; the thread of the old ones is not ours (any more)."""
        # Entered itself and not through the condition, where Ctrl-C could leave it locked.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._watches: set[Watch] = set()
        self._wakes_at = _NEVER
        self._thread: threading.Thread | None = None

    def add(self, seconds: float, action: Callable[[], None]) -> Watch:
        """Call ``action`` on the watchdog's thread in so many seconds; it should be quick."""
        watch = Watch(clock() + seconds, action)
        with self._mutex:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = start(self._run, "distlock-watchdog")
            elif watch.due < self._wakes_at:
                self._changed.notify()
        return watch

    def call_off(self, watch: Watch) -> bool:
        """Forget a watch; False if it is too late, and the action has been or is being called."""
        with self._mutex:
            if watch in self._watches:
                self._watches.remove(watch)
                return True
            return False

    def _run(self) -> None:
        while True:
            for watch in self._wait():
                try:
                    watch.action()
                except Exception:  # one action must not keep the others from happening
                    logger.exception("the watchdog goes on after an error")

    def _wait(self) -> list[Watch]:
        with self._mutex:
            while True:
                now = clock()
                due = [watch for watch in self._watches if watch.due <= now]
                if due:
                    self._watches.difference_update(due)
                    self._wakes_at = now
                    return due
                self._wakes_at = min((watch.due for watch in self._watches), default=_NEVER)
                self._changed.wait(min(self._wakes_at - now, _LONGEST_SLEEP))


watchdog = Watchdog()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.reset)
