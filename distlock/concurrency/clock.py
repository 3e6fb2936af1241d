"""The one clock of a process: seconds that only grow.

A lease's local deadline is counted on it. It must therefore not stand still while the machine
sleeps, as ``CLOCK_MONOTONIC`` does on Linux: a laptop that wakes up would believe in a lease that
its server ended long ago. See ``CLOCK_BOOTTIME`` in clock_gettime(2).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

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
