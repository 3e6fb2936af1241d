"""Threads that wait: daemons, started when they are needed and gone soon after."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from distlock.threads import start

logger = logging.getLogger("distlock")

#: Seconds that a thread stays for more work. A lock in demand is waited for all the time.
_LINGER = 1.0

Work = Callable[[], None]


class WaitThreads:
    """Runs each piece of work on a thread of its own; starting one takes longer than a wait may."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []

    def run(self, work: Work) -> None:
        """Begin to do some work; RuntimeError if the process can start no more threads."""
        with self._mutex:
            if self._idle:
                self._idle.pop().put(work)
                return
        inbox: SimpleQueue[Work] = SimpleQueue()
        inbox.put(work)
        start(self._member, "distlock-waiter", inbox)

    def _member(self, inbox: SimpleQueue[Work]) -> None:
        while True:
            try:
                work = inbox.get(timeout=_LINGER)
            except Empty:
                with self._mutex:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                # It was given out in this very moment, by one who may have been interrupted.
                try:
                    work = inbox.get_nowait()
                except Empty:
                    return
            try:
                work()
            except Exception:
                logger.exception("a thread that waits for locks goes on after an error")
            del work  # it may be the last to know a lot of things
            with self._mutex:
                self._idle.append(inbox)
