"""Growing pauses between two attempts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from distlock.concurrency.clock import left

_FACTOR = 1.5


def backoff(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds for ever, each half as long again as the last one, to ``longest``.

    Each is cut by up to a half at random, so that those who began together do not go on together.
    """
    pause = min(first, longest)
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * _FACTOR, longest)


def backoff_until(deadline: float | None, first: float, longest: float) -> Iterator[float]:
    """Yield pauses until ``deadline`` (None: for ever), for attempts that are made before each.

    The last attempt is made at the deadline itself, before a pause of 0 s::

        for pause in backoff_until(deadline, 0.005, 0.25):
            if lease := try_acquire():
                return lease
            time.sleep(pause)  # or: await asyncio.sleep(pause)
        return None
    """
    for pause in backoff(first, longest):
        rest = left(deadline, pause)
        yield rest
        if deadline is not None and rest <= 0:
            return
