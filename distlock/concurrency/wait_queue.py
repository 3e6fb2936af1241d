"""The queue in which threads of this package wait for work.

It is ``queue.SimpleQueue``, in plain Python. From Python 3.13 on, a thread that waits in that one
is in a list of the interpreter, by an entry on its own stack. The child of a fork that calls no
hooks, as uWSGI's workers are, has the list and not the stack: it crashes when one of its threads
wakes another one whose entry would be in the same part of the list.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import Generic, TypeVar

from distlock.concurrency.clock import clock

T = TypeVar("T")

#: Seconds between two looks for an item where a thread cannot be woken.
_PAUSE = 0.01


class WaitQueue(Generic[T]):
    """First in, first out. It takes no mutex: the garbage collector may call put() at any time."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        #: a lock for each thread that waits: who releases it wakes the thread
        self._waiting: deque[threading.Lock] = deque()

    def empty(self) -> bool:
        """Return whether there is nothing to get; a moment later it may be otherwise."""
        return not self._items

    def put(self, item: T) -> None:
        """Add an item, and wake a thread that waits; interrupted, it may have woken none."""
        # Who waits is in the list before it looks for an item; here it is the other way round. So
        # one of the two sees the other.
        self._items.append(item)
        self._wake()

    def get(self, timeout: float) -> T:
        """Return the next item; queue.Empty if none comes within so many seconds."""
        until = clock() + timeout
        while True:
            with suppress(IndexError):
                item = self._items.popleft()
                if self._items:  # it may have been added when this thread was awake already
                    self._wake()
                return item
            if (left := until - clock()) <= 0.0:
                raise Empty
            try:
                lock = threading.Lock()
            except (MemoryError, RuntimeError):  # memory is short, for a time
                time.sleep(min(left, _PAUSE))
                continue
            lock.acquire()
            self._waiting.append(lock)
            try:
                if not self._items:
                    lock.acquire(timeout=left)
            finally:
                self._waiting.remove(lock)

    def _wake(self) -> None:
        for lock in self._waiting.copy():
            with suppress(RuntimeError):  # that thread was woken before
                lock.release()
                return
