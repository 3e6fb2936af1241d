"""Growing pauses between two attempts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Self

from distlock.concurrency.clock import left


class Backoff:
    """Yields pauses in seconds: ``first``, then ``factor`` times the last one, to ``longest``.

    With ``jitter`` each is cut by up to a half at random, so that those who began together do not
    go on together. It never ends; see pauses() for that. Each iteration goes on where the last one
    was: for a new wait make a new one.
    """

    __slots__ = ("_factor", "_jitter", "_longest", "_next")

    def __init__(
        self, first: float, longest: float, factor: float = 1.5, jitter: bool = True
    ) -> None:
        self._next = min(first, longest)
        self._longest = longest
        self._factor = factor
        self._jitter = jitter

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> float:
        pause = self._next
        self._next = min(pause * self._factor, self._longest)
        return pause * random.uniform(0.5, 1.0) if self._jitter else pause

    def pauses(self, deadline: float | None) -> Iterator[float]:
        """Yield pauses until ``deadline`` (None: for ever), for attempts that are made before each.

        The last attempt is made at the deadline itself, before a pause of 0 s::

            for pause in Backoff(0.005, 0.25).pauses(deadline):
                if lease := try_acquire():
                    return lease
                time.sleep(pause)  # or: await asyncio.sleep(pause)
            return None
        """
        while True:
            pause = next(self)
            rest = left(deadline, pause)
            yield rest
            if deadline is not None and rest <= 0:
                return
