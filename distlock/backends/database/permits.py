"""A semaphore of which no interrupt can lose a permit, or leave it locked."""

from __future__ import annotations

import threading
from collections import deque
from weakref import ref

from distlock.bell import Bell
from distlock.clock import clock, left

#: Seconds until who waits looks for permits whose holders went without giving them back.
_LONGEST_SLEEP = 1.0


class Permit:
    """The right to be one of so many, for whoever has this object."""

    __slots__ = ("__weakref__", "granted")

    def __init__(self) -> None:
        self.granted = Bell()


class Permits:
    """So many are granted at a time; first come, first served.

    A permit is noted before it is granted and is given back by its own object, so that doing so
    twice does no harm. An interrupt can come in the first moment of giving it back, too: only weak
    references are kept, and what nobody knows any more is free.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._mutex = threading.Lock()
        self._granted: set[ref[Permit]] = set()
        self._waiting: deque[ref[Permit]] = deque()

    def take_at_once(self, permit: Permit) -> None:
        """Grant the permit now, also beyond their number; see take()."""
        with self._mutex:
            self._granted.add(ref(permit))

    def take(self, permit: Permit, timeout: float) -> bool:
        """Wait for the permit to be granted; False if it is not within ``timeout`` seconds.

        It is to be given back in any case.
        """
        until, own = clock() + timeout, ref(permit)
        with self._mutex:
            self._waiting.append(own)
            self._serve()
        while not permit.granted.rung and clock() < until:
            if not permit.granted.wait(left(until, _LONGEST_SLEEP)):
                with self._mutex:
                    self._serve()
        return permit.granted.rung

    def give_back(self, permit: Permit) -> None:
        """Let the next one have it; what an interrupt left undone, the second time does."""
        own = ref(permit)
        with self._mutex:
            self._granted.discard(own)
            if own in self._waiting:
                self._waiting.remove(own)
            self._serve()

    def _serve(self) -> None:
        """Grant what there is to those who wait; an interrupt leaves the rest to the next call."""
        while self._waiting:
            first = self._waiting[0]
            permit = first()
            if permit is not None:
                if first not in self._granted and not self._has_room():
                    return
                self._granted.add(first)
                permit.granted.ring()
            self._waiting.popleft()

    def _has_room(self) -> bool:
        if len(self._granted) >= self._number:
            self._granted = {own for own in self._granted if own() is not None}
        return len(self._granted) < self._number
