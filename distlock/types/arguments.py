"""Checks the arguments of ``Lock``; those of waiting by the rules of :class:`threading.RLock`."""

from __future__ import annotations

import inspect
import math
import threading

from distlock.types.lease import LONGEST_LEASE

_FOR_EVER = -1


def checked_flag(argument: str, value: object) -> bool:
    """Return a true or false argument; TypeError for anything else."""
    if not isinstance(value, (bool, int)):
        raise TypeError(f"{argument} must be True or False, not {value!r}")
    return bool(value)


def checked_seconds(argument: str, value: object) -> float:
    """Return a length of time in seconds for which a lock may be taken."""
    seconds = _number(argument, value)
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{argument} must be finite and greater than 0, got {value!r}")
    if seconds > LONGEST_LEASE:
        raise ValueError(f"{argument} must be at most {LONGEST_LEASE} seconds, got {value!r}")
    return seconds


def checked_callback(argument: str, value: object) -> None:
    """Refuse what cannot be called from a thread without a result being awaited."""
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{argument} must be callable, not {value!r}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(
            f"{argument} is called on a thread and cannot be a coroutine function like {value!r};"
            " use loop.call_soon_threadsafe() in a plain function"
        )


def waiting_limit(blocking: bool, timeout: float | None) -> tuple[bool, float | None]:
    """Return whether to wait, and for how many seconds (None: for ever).

    ``timeout`` of None or -1 waits for ever. The errors are those of ``threading.RLock.acquire``:
    a timeout goes only with waiting, and must not be negative or beyond ``threading.TIMEOUT_MAX``.
    """
    if timeout is None:
        return blocking, None
    seconds = _number("timeout", timeout)
    if math.isnan(seconds):
        raise ValueError(f"timeout must be a number of seconds, got {timeout!r}")
    if seconds == _FOR_EVER:
        return blocking, None
    if not blocking:
        raise ValueError(
            f"can't specify a timeout for a non-blocking call, got timeout={timeout!r}"
        )
    if seconds < 0:
        raise ValueError(f"timeout must be a non-negative number, got {timeout!r}")
    if seconds > threading.TIMEOUT_MAX:
        raise OverflowError(f"timeout is too large, got {timeout!r}; use None to wait for ever")
    return seconds > 0, seconds


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument} must be a number of seconds, not {value!r}")
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats
        return math.inf if value > 0 else -math.inf
