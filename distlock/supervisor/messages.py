"""Lines of JSON between the one that runs a program and its guard."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any


class Line:
    """One end of the line. Sending never waits: the other side may be stopped."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._unread = b""
        self._unsent = b""
        #: whether the other side has gone
        self.over = False

    def fileno(self) -> int:
        return self._end.fileno()

    def say(self, word: str, *values: Any) -> None:
        """Send a word and its values."""
        self._unsent += json.dumps([word, *values]).encode() + b"\n"
        with suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]

    def hear(self) -> list[list[Any]]:
        """Return what has come by now."""
        with suppress(BlockingIOError, ConnectionError):
            while received := self._end.recv(65536):
                self._unread += received
            self.over = True
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._end.close()
