"""Checks of arguments: names, times, callbacks. Wrong ones raise an error that names the argument.

The arguments of waiting follow the rules of :class:`threading.RLock`.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import threading
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal, get_args

from distlock.types.lease import ALL_SEATS, LONGEST_LEASE, MAX_DESCRIPTION
from distlock.types.values import check_value, shortened

#: The column's width; four bytes a character still fit the index of every supported database.
MAX_NAME = 564
MAX_OWNER = 200
#: Bytes of JSON that a member of a group says of itself: all who look read it.
MAX_DATA = 4096

#: When a lock that is left inside a transaction is freed: now, or when the transaction has ended.
Release = Literal["now", "commit"]

#: What becomes of who finds a lock busy: it waits, it gets LockBusy, or it does without.
OnBusy = Literal["wait", "raise", "skip"]

#: Seconds, a week: a sweep forgets rate limiters that nobody has used for longer.
LONGEST_PERIOD = 7 * 86400

#: A rate such as 30/m or 10/30s, and the seconds of its units.
_RATE = re.compile(r"([0-9]{1,10})/([0-9]{0,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: Control characters, and halves of surrogate pairs, which no database can store.
_REFUSED = frozenset({"Cc", "Cs"})


def checked_name(name: object, argument: str = "name") -> str:
    """Return ``name``; TypeError or ValueError if no lock can have this name."""
    return _checked(argument, name, MAX_NAME)


def checked_label(argument: str, value: object) -> str:
    """Return what somebody is called by; TypeError or ValueError if nobody can be called so."""
    return _checked(argument, value, MAX_OWNER)


def checked_description(description: object) -> str:
    """Return ``description``, which may be empty; TypeError or ValueError if it is refused."""
    return checked_text("description", description)


def checked_text(argument: str, text: object) -> str:
    """Return what is said to people, which may be empty; TypeError or ValueError if refused."""
    return "" if text == "" else _checked(argument, text, MAX_DESCRIPTION, spaces=True)


def _checked(argument: str, value: object, longest: int, *, spaces: bool = False) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {value!r}")
    if not value:
        raise ValueError(f"{argument} must not be empty, got {value!r}")
    if len(value) > longest:
        raise ValueError(
            f"{argument} must have at most {longest} characters, got {len(value)}: {value[:40]!r}…"
        )
    if not value.isprintable() and any(
        unicodedata.category(character) in _REFUSED for character in value
    ):
        raise ValueError(f"{argument} must not contain control characters, got {value!r}")
    if not spaces and value != value.strip():
        raise ValueError(f"{argument} must not begin or end with space, got {value!r}")
    return str.__str__(value)  # str() of a member of an enumeration may be another text


def checked_flag(argument: str, value: object) -> bool:
    """Return a true or false argument; TypeError for anything else."""
    if not isinstance(value, int) or value not in (0, 1):
        raise TypeError(f"{argument} must be True or False, not {value!r}")
    return bool(value)


def checked_release(argument: str, value: object) -> Release:
    """Return when a lock is freed that is left inside a transaction; ValueError for others."""
    return checked_choice(argument, value, get_args(Release))  # type: ignore[no-any-return]


def checked_choice(argument: str, value: object, allowed: tuple[str, ...]) -> Any:
    """Return ``value``; ValueError unless it is one of those that are ``allowed``."""
    if value not in allowed:
        choices = " or ".join([", ".join(map(repr, allowed[:-1])), repr(allowed[-1])])
        raise ValueError(f"{argument} must be {choices.removeprefix(' or ')}, not {value!r}")
    return value


def checked_token(token: object) -> int:
    """Return ``token``; TypeError for what is none."""
    return checked_int("token", token)


def checked_count(argument: str, count: object) -> int:
    """Return how many of something; TypeError or ValueError that names the argument for others."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{argument} must be a whole number, not {count!r}")
    if not 1 <= count < ALL_SEATS:
        got = shortened(count)
        raise ValueError(f"{argument} must be at least 1 and less than {ALL_SEATS}, got {got}")
    return count


def checked_int(argument: str, value: object) -> int:
    """Return a whole number; TypeError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{argument} must be an int, not {value!r}")
    return value


def checked_data(data: object) -> dict[str, Any]:
    """Return a copy of ``data``, a mapping that others are to read, None being an empty one.

    TypeError or ValueError unless it is JSON of at most MAX_DATA bytes.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a mapping, not {data!r}")
    try:
        text = json.dumps(dict(data), ensure_ascii=False, allow_nan=False)
        check_value(dict(data), dict(data), text)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = TypeError if isinstance(error, TypeError) else ValueError
        raise wrong(f"data must be JSON, got {shortened(data)}: {error}") from error
    if (size := len(text.encode(errors="surrogatepass"))) > MAX_DATA:
        raise ValueError(f"data must have at most {MAX_DATA} bytes of JSON, got {size}")
    return json.loads(text)  # type: ignore[no-any-return]


def checked_seconds(argument: str, value: object) -> float:
    """Return the seconds for which a lock may be taken; TypeError or ValueError for others."""
    seconds = _number(argument, value)
    if not math.isfinite(seconds) or seconds <= 0:
        got = shortened(value)
        raise ValueError(f"{argument} must be finite and greater than 0, got {got}")
    if seconds > LONGEST_LEASE:
        raise ValueError(f"{argument} must be at most {LONGEST_LEASE} seconds, got {value!r}")
    return seconds


def checked_rate(argument: str, value: object) -> tuple[int, float]:
    """Return how many in how many seconds: 30 and 60.0 for "30/m", 10 and 30.0 for "10/30s".

    TypeError or ValueError for what is no rate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a text like '30/m', not {value!r}")
    match = _RATE.fullmatch(value)
    permits, periods = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
    if match is None or not permits or not periods:
        raise ValueError(
            f"{argument} must be a number, a slash and s, m, h or d, as in '30/m' or '10/30s',"
            f" not {value!r}"
        )
    said = f"{argument}={value!r}"
    period = checked_period(f"{said}: period", periods * _SECONDS[match[3]])
    return checked_count(f"{said}: permits", permits), period


def checked_period(argument: str, value: object) -> float:
    """Return the seconds in which there are so many; TypeError or ValueError for others."""
    seconds = checked_seconds(argument, value)
    if seconds > LONGEST_PERIOD:
        raise ValueError(f"{argument} must be at most {LONGEST_PERIOD} seconds, got {value!r}")
    return seconds


def checked_callback(argument: str, value: object, *, required: bool = False) -> None:
    """Raise TypeError unless ``value`` can be called on a thread, without awaiting.

    None is right, too, unless it is ``required``.
    """
    if value is None and not required:
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
    if seconds == -1:
        return blocking, None
    if not blocking:
        raise ValueError(
            f"can't specify a timeout for a non-blocking call, got timeout={timeout!r}"
        )
    if seconds < 0:
        raise ValueError(f"timeout must be a non-negative number, got {shortened(timeout)}")
    if seconds > threading.TIMEOUT_MAX:
        got = shortened(timeout)
        raise OverflowError(f"timeout is too large, got {got}; use None to wait for ever")
    return seconds > 0, seconds


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument} must be a number of seconds, not {value!r}")
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats
        return math.inf if value > 0 else -math.inf
