"""Values of unknown origin: as JSON that can be read again, and shown in a safe message."""

from __future__ import annotations

import json
import re
import reprlib
from dataclasses import dataclass
from typing import Any, NoReturn

#: How deep lists and dictionaries of a value may be nested. A reader may be deep in its own calls
#: already, and Python then reads little more than this.
MAX_DEPTH = 100
#: How deep a record may be nested: a value, and what is kept around it.
MAX_RECORD_DEPTH = MAX_DEPTH + 8

#: made once: json.dumps() would make an encoder for each value
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')


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
    walk: few have so many brackets, and most are equal to what is read.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH or json.loads(text) != record:
        _walk(value)


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
