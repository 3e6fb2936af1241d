"""Command lines that can be pasted into a shell, whatever a lock is called."""

from __future__ import annotations

import shlex

from distlock.commands import text
from distlock.types.lease import LockInfo


def show_line(info: LockInfo) -> str:
    """Return the command that shows this lock."""
    return f"manage.py locks show {_using(info)} {_name(info.name)}"


def release_line(info: LockInfo) -> str:
    """Return the command that breaks this hold, and no other."""
    return f"manage.py locks release {_using(info)} --token={info.token} {_name(info.name)}"


def _using(info: LockInfo) -> str:
    return shlex.quote(f"--using={info.using}")


def _name(name: str) -> str:
    quoted = text.quoted(name)
    word = quoted if quoted.startswith("$'") else shlex.quote(quoted)
    return f"-- {word}" if name.startswith("-") else word
