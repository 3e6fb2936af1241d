"""The one clock of a process, whose seconds only grow; and what is counted on it.

That is the time left until a deadline, and growing pauses between attempts.

A lease's local deadline is counted on it. It must therefore not stand still while the machine
sleeps, as ``CLOCK_MONOTONIC`` does on Linux: a laptop that wakes up would believe in a lease that
its server ended long ago. See ``CLOCK_BOOTTIME`` in clock_gettime(2).
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator

#: how much longer than the last one a pause is
_FACTOR = 1.5

#: Returns seconds since the machine was started, sleep included. Without a frame of Python's: it is
#: called a dozen times for each lock.
clock: Callable[[], float] = functools.partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)


def left(deadline: float | None, at_most: float) -> float:
    """Return the seconds until ``deadline`` (None: never), within 0 and ``at_most``."""
    if deadline is None:
        return at_most
    return min(max(deadline - clock(), 0.0), at_most)


def backoff(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds forever, each half as long again as the last one, to ``longest``.

    Each is cut by up to a half at random, so that those who began together do not go on together.
    """
    pause = min(first, longest)
    while True:
        yield pause * (0.5 + random.random() / 2)
        pause = min(pause * _FACTOR, longest)


def backoff_until(deadline: float | None, first: float, longest: float) -> Iterator[float]:
    """Yield pauses until ``deadline`` (None: forever), for attempts that are made before each.

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
