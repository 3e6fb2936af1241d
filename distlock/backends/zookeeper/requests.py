"""Replies to requests, and two requests to ZooKeeper that kazoo does not have."""

from __future__ import annotations

import logging
import struct
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import (
    EXCEPTIONS,
    APIError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.serialization import Create2, write_string

from distlock.concurrency.pending import Latch

logger = logging.getLogger("distlock")

_CONTAINER = 4
_DATA_WATCH = struct.pack("!i", 2)

#: The connection broke before the answer came: the request may have been carried out or not.
LOST = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server removes some time after its last child has gone (since 3.5.3)."""

    type = 19

    def __new__(cls, path: str, acl: Any) -> CreateContainer:
        return super().__new__(cls, path, b"", acl, _CONTAINER)  # type: ignore[no-any-return]


class RemoveDataWatch(namedtuple("RemoveDataWatch", "path")):
    """Forget that this session watches a node (since 3.5)."""

    type = 18

    def serialize(self) -> bytes:
        return bytes(write_string(self.path)) + _DATA_WATCH

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        return True


def error_of(code: int) -> Exception:
    """Return the error that a server's code stands for."""
    error = EXCEPTIONS.get(code)
    return APIError(f"error {code}") if error is None else error()  # type: ignore[no-any-return]


class Reply:
    """What comes of a request, or of a wait for the servers; there is one callback at most.

    The callback runs on the thread that settles it, which is mostly the connection thread.
    """

    __slots__ = ("_callbacks", "done", "error", "repeated", "value")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Reply], None]] = []
        self.done = False
        self.repeated = False  # the request was sent before, and its answer lost
        self.value: Any = None
        self.error: Exception | None = None

    @property
    def lost(self) -> bool:
        """Whether the connection broke: the request may have been carried out or not."""
        return isinstance(self.error, LOST)

    def get(self) -> Any:
        """Return the answer, or raise the error that it is."""
        if self.error is not None:
            raise self.error
        return self.value

    def then(self, callback: Callable[[Reply], None]) -> None:
        """Call back when the answer is there, which may be now."""
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def wait(self, seconds: float) -> bool:
        """Block until the answer is there; False if it is not in time."""
        answered = Latch()
        self.then(lambda _: answered.set())
        return answered.wait(seconds)

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """Give the answer, once."""
        self.value, self.error, self.done = value, error, True
        self._call_back()

    def _call_back(self) -> None:
        # Both settle() and then() may come here; pop() decides which of them makes the call.
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            try:
                callback(self)
            except Exception:  # or the connection would break for everyone
                logger.exception("a callback of the ZooKeeper client failed")
