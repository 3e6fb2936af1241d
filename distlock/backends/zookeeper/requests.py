"""Requests to ZooKeeper: those of kazoo and two more; and their replies."""

from __future__ import annotations

import logging
import struct
import threading
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
from kazoo.protocol.serialization import (
    Create,
    Create2,
    Delete,
    GetChildren,
    GetData,
    SetData,
    Sync,
    write_string,
)

from distlock.concurrency.pending import Latch

__all__ = [
    "CreateContainer",
    "Delete",
    "GetChildren",
    "GetData",
    "RemoveDataWatch",
    "Reply",
    "SetData",
    "Sync",
    "create_ephemeral",
    "create_persistent",
    "error_of",
]

logger = logging.getLogger("distlock")

_INT = struct.Struct("!i")
_EPHEMERAL_SEQUENTIAL = 1 | 2
_CONTAINER = 4
_DATA_WATCH = _INT.pack(2)

#: The connection broke before the answer came: the request may have been carried out or not.
_LOST = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)


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


def create_persistent(path: str, acl: Any) -> Any:
    """Return the request for a node that stays."""
    return Create(path, b"", acl, 0)


def create_ephemeral(prefix: str, data: bytes, acl: Any) -> Any:
    """Return the request for a numbered node of the session; answered by its path and stat."""
    return Create2(prefix, data, acl, _EPHEMERAL_SEQUENTIAL)


def error_of(code: int) -> Exception:
    """Return the error that a server's code stands for."""
    if code in EXCEPTIONS:
        return EXCEPTIONS[code]()  # type: ignore[no-any-return]
    return APIError(f"error {code}")  # type: ignore[no-any-return]


class Reply:
    """What comes of a request; the callbacks run on the connection thread."""

    __slots__ = ("_callbacks", "_mutex", "done", "error", "repeated", "value")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._callbacks: list[Callable[[Reply], None]] = []
        self.done = False
        self.repeated = False  # the request was sent before, and its answer lost
        self.value: Any = None
        self.error: Exception | None = None

    @property
    def lost(self) -> bool:
        """Whether the connection broke: the request may have been carried out or not."""
        return isinstance(self.error, _LOST)

    def then(self, callback: Callable[[Reply], None]) -> None:
        """Call back when the answer is there, which may be now."""
        with self._mutex:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, seconds: float) -> bool:
        """Block until the answer is there; False if it is not in time."""
        answered = Latch()
        self.then(lambda _: answered.set())
        return answered.wait(seconds)

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """Give the answer; only the first one counts."""
        with self._mutex:
            if self.done:
                return
            self.value, self.error, self.done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # or the connection would break for everyone
                logger.exception("a callback of the ZooKeeper client failed")
