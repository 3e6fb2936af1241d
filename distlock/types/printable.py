"""Text of unknown origin, made safe to show: on one line, and with nothing in it that hides."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Return ``text`` on one line, with a visible escape for all that does not print.

    Escape sequences could rewrite a terminal's screen, line breaks forge a line of a log, and
    bidirectional controls make one name look like another.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
