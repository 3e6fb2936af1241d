"""Text of unknown origin, made safe to show: on one line, with no hidden characters."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Return ``text`` with each unprintable character written as an escape of Python and of bash.

    Escape sequences could rewrite a terminal's screen, line breaks forge a line of a log, and
    bidirectional controls make one name look like another.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    # Bash reads \xa0 as a byte, and \u00a0 as the character.
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
