"""A turnstile before each lock of a database that is a file: one process at a time gets through.

The system keeps it, on a byte of a file beside the database that is chosen by the lock's name, and
opens it again when the process dies. It holds no lock: it only says whose turn it is to try.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SUFFIX = "-distlock"
_HIGHEST_BYTE = 2**62


class Turnstile:
    """The turnstile of one lock. Without a file that can be locked, everybody gets through."""

    def __init__(self, database: str, name: str) -> None:
        """``database`` is the path of the database's file."""
        digest = hashlib.sha256(name.encode()).digest()
        self._byte = int.from_bytes(digest[:8], "big") % _HIGHEST_BYTE
        self._file = _file(f"{database}{_SUFFIX}") if _is_file(database) else None
        self.entered = False

    def __enter__(self) -> Turnstile:
        return self

    def __exit__(self, *_: object) -> None:
        if self.entered and self._file is not None:
            self.entered = False
            with suppress(OSError):
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._byte)

    def enter(self) -> bool:
        """Get in if nobody else is; stay until this is left as a context manager."""
        if not self.entered:
            self.entered = self._file is None or self._lock(self._file)
        return self.entered

    def _lock(self, file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._byte)
        except BlockingIOError:
            return False
        except OSError:  # not all file systems can; or it is EACCES, which some say for "not now"
            return True
        return True


def path_of(settings: dict[str, Any]) -> str:
    """Return the path of a database's file by its settings in Django."""
    return str(settings.get("NAME") or "")


def _is_file(database: str) -> bool:
    in_memory = database == ":memory:" or database.startswith("file:")
    return fcntl is not None and not in_memory and Path(database).is_file()


# They are never closed: that would open all turnstiles of the process.
_files: dict[str, int | None] = {}
_mutex = threading.Lock()


def _file(path: str) -> int | None:
    with _mutex:
        if path not in _files:
            _files[path] = None  # nor asked for again
            with suppress(OSError):
                _files[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return _files[path]


def _after_fork() -> None:
    global _mutex
    _mutex = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
