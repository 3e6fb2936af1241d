"""Values of unknown origin: checked, as JSON that can be read again, and shown in a safe message.

A wrong argument (a name, a time, a callback) raises an error that names it. The arguments of
waiting follow the rules of :class:`threading.RLock`.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import reprlib
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar, get_args

from distlock.types.lease import ALL_SEATS, LONGEST_LEASE, MAX_DESCRIPTION

T = TypeVar("T")

#: The column's width; four bytes a character still fit the index of every supported database.
MAX_NAME = 564
MAX_OWNER = 200
#: Bytes of JSON that a member of a group says of itself: all who look read it.
MAX_DATA = 4096

#: When a lock that is left inside a transaction is freed: now, or when the transaction has ended.
Release = Literal["now", "commit"]

#: The reaction to a busy lock: wait, raise LockBusy, or do without it.
OnBusy = Literal["wait", "raise", "skip"]

#: Seconds, a week: a sweep forgets rate limiters that nobody has used for longer.
LONGEST_PERIOD = 7 * 86400

#: A rate such as 30/m or 10/30s, and the seconds of its units.
_RATE = re.compile(r"([0-9]{1,10})/([0-9]{0,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: Control characters, and halves of surrogate pairs, which no database can store.
_REFUSED = frozenset({"Cc", "Cs"})

#: How deep lists and dictionaries of a value may be nested. A reader may be deep in its own calls
#: already, and Python then reads little more than this.
MAX_DEPTH = 100
#: How deep a record may be nested: a value, and what is kept around it.
MAX_RECORD_DEPTH = MAX_DEPTH + 8

#: made once: json.dumps() would make an encoder for each value
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')


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
    """Return a text for people, which may be empty; TypeError or ValueError if it is not valid."""
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
        size = len(text.encode())
        check_value(dict(data), dict(data), text)
    except (TypeError, ValueError, RecursionError) as error:
        raise not_json("data", data, error) from error
    if size > MAX_DATA:
        raise ValueError(f"data must have at most {MAX_DATA} bytes of JSON, got {size}")
    return json.loads(text)  # type: ignore[no-any-return]


def not_json(argument: str, value: object, error: Exception) -> Exception:
    """Return the error for an argument that JSON cannot say, for this reason."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{argument} must be JSON, got {shortened(value)}: {error}")


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
    """Return whether to wait, and for how many seconds (None: forever).

    ``timeout`` of None or -1 waits forever. The errors are those of ``threading.RLock.acquire``:
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
        raise OverflowError(f"timeout is too large, got {got}; use None to wait forever")
    return seconds > 0, seconds


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument} must be a number of seconds, not {value!r}")
    try:
        return float(value)
    except OverflowError:  # an int beyond all floats
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that is stored and cannot be read: its text, and why."""

    text: str
    reason: str

    def __getitem__(self, key: object) -> NoReturn:
        raise ValueError(f"a stored value cannot be read: {self.reason}")


def encoded(value: object) -> str:
    """Return a record in JSON; ValueError or TypeError if it is none, or is nested too deeply."""
    text = _encode(value)
    if _is_deeper(text, MAX_RECORD_DEPTH):
        raise ValueError(f"lists and dictionaries are nested more than {MAX_DEPTH} deep")
    return text


def plain(value: object, encoder: type[json.JSONEncoder]) -> Any:
    """Return a copy of a value as ``encoder`` writes it; TypeError or ValueError if it cannot."""
    text = json.dumps(value, cls=encoder, allow_nan=False)
    _walk(value)
    return json.loads(text)


def decoded(data: str | bytes) -> Any:
    """Return what encoded() was given; Unreadable if a reader could fail."""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    if _is_deeper(text, MAX_RECORD_DEPTH):
        return Unreadable(text, f"it is nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(text)
    except ValueError as error:
        return Unreadable(text, str(error))


def check_value(value: object, record: object, text: str) -> None:
    """Raise ValueError if a value would not be read as it was written.

    ``record`` is the value, or has it in it; ``text`` is the record in JSON. Most values need no
    walk.
    """
    if not is_flat(text, record):
        _walk(value)


def is_flat(text: str, record: object) -> bool:
    """Return whether a record has few brackets in JSON, and is equal to what is read of that."""
    return text.count("[") + text.count("{") <= MAX_DEPTH and bool(json.loads(text) == record)


def shortened(value: object) -> str:
    """Return a value for an error message, also one that is too large or too deep for repr()."""
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"


def _walk(value: object) -> None:
    rest = [(value, 1)]
    while rest:
        one, depth = rest.pop()
        if not isinstance(one, (dict, list, tuple)):
            continue
        if depth > MAX_DEPTH:
            raise ValueError(f"lists and dictionaries are nested more than {MAX_DEPTH} deep")
        if isinstance(one, dict):
            keys = json.loads(json.dumps(dict.fromkeys(one)))
            if len(keys) < len(one):
                raise ValueError(f"some of the keys {list(one)[:10]!r} are the same in JSON")
            one = list(one.values())
        rest.extend((each, depth + 1) for each in one)


def _is_deeper(text: str, most: int) -> bool:
    """Return whether arrays and objects are nested deeper, without recursion."""
    if text.count("[") + text.count("{") <= most:
        return False
    depth = 0
    for mark in _MARKS.findall(text):
        if mark in "[{":
            depth += 1
            if depth > most:
                return True
        elif mark in "]}":
            depth -= 1
    return False


def escaped(text: str) -> str:
    """Return ``text`` with each unprintable character written as an escape of Python and of bash.

    Escape sequences could rewrite a terminal's screen, line breaks forge a line of a log, and
    bidirectional controls make one name look like another.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def text_of(error: BaseException) -> str:
    """Return the class and the text of an error; the class alone if it cannot say its text."""
    name = type(error).__name__
    try:
        return f"{name}: {error}".removesuffix(": ")
    except Exception:  # its own __str__() has failed
        return name


def quoted(name: str) -> str:
    """Return ``name`` so that it is unmistakable, if need be in bash's ``$'…'`` quotes.

    Pasted into a shell between the quotes it is the same name again.
    """
    if name.isprintable() and "  " not in name and not name.startswith("$'"):
        return name
    inner = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{escaped(inner)}'"


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    # Bash reads \xa0 as a byte, and \u00a0 as the character.
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of ``size``; the last one may be shorter."""
    every = [*items]
    for start in range(0, len(every), size):
        yield every[start : start + size]
