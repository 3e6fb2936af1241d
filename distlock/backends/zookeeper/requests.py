"""Requests to ZooKeeper that kazoo does not have, replies to requests, and watches on nodes."""

from __future__ import annotations

import struct
import threading
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import (
    EXCEPTIONS,
    APIError,
    ConnectionLoss,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.connection import DELETED_EVENT
from kazoo.protocol.serialization import (
    Create,
    Create2,
    GetChildren,
    GetData,
    MultiHeader,
    SetData,
    Transaction,
    int_struct,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

from distlock.concurrency.pending import Latch
from distlock.concurrency.threads import thread_logger

#: Requests that are on their way at once; more only fill the queues of client and servers.
BATCH = 200

_CONTAINER = 4
_ANY_WATCH = struct.pack("!i", 3)
#: The server's codes for the other parts of a request when one part fails.
_UNDONE, _NOT_TRIED = 0, -2

#: The connection broke before the answer came: the request may have been carried out or not.
LOST = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server removes some time after its last child has gone (since 3.5.3)."""

    type = 19

    def __new__(cls, path: str, acl: Any) -> CreateContainer:
        return super().__new__(cls, path, b"", acl, _CONTAINER)  # type: ignore[no-any-return]


class RemoveWatches(namedtuple("RemoveWatches", "path")):
    """Forget that this session watches a node, its data or its children (since 3.5)."""

    type = 18

    def serialize(self) -> bytes:
        return bytes(write_string(self.path)) + _ANY_WATCH

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        return True


class GetEphemerals(namedtuple("GetEphemerals", "prefix")):
    """List the paths of this session's ephemeral nodes that begin with a prefix (since 3.6)."""

    type = 103

    def serialize(self) -> bytes:
        return bytes(write_string(self.prefix))

    #: the answer is a list of texts, too
    deserialize = GetChildren.deserialize


class Multi:
    """Several writes that the server makes in one step, or none of them."""

    type = 14

    def __init__(self, operations: Sequence[Any]) -> None:
        self._body = bytes(Transaction(operations).serialize())

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return len(self._body)

    def serialize(self) -> bytes:
        return self._body

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """Return the stats of the nodes that were set; raises the error of the part that failed.

        kazoo's own fails with errors that kazoo does not know.
        """
        stats = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == Create.type:
                _, offset = read_string(data, offset)
            elif header.type == SetData.type:
                stats.append(ZnodeStat._make(stat_struct.unpack_from(data, offset)))
                offset += stat_struct.size
            elif header.type == -1:
                (code,) = int_struct.unpack_from(data, offset)
                offset += int_struct.size
                if code not in (_UNDONE, _NOT_TRIED):
                    raise error_of(code)
            header, offset = MultiHeader.deserialize(data, offset)
        return stats


class NotSent(ConnectionLoss):  # type: ignore[misc]
    """The request was not sent: there was no connection."""


def error_of(code: int) -> Exception:
    """Return the error that a server's code stands for."""
    error = EXCEPTIONS.get(code)
    return APIError(f"error {code}") if error is None else error()  # type: ignore[no-any-return]


class Reply:
    """The outcome of a request, or of a wait for the servers; there is one callback at most.

    The callback runs on the thread that settles it, which is mostly the connection thread.
    """

    __slots__ = ("_callbacks", "done", "error", "repeated", "value")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Reply], object]] = []
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

    def then(self, callback: Callable[[Reply], object]) -> None:
        """Call back when the answer is there, which may be now; then its errors are raised."""
        self._callbacks.append(callback)
        if self.done:
            self._call_back(raises=True)

    def wait(self, seconds: float) -> bool:
        """Block until the answer is there; False if it is not in time."""
        answered = Latch()
        self.then(lambda _: answered.set())
        return answered.wait(seconds)

    def settle(
        self, value: Any = None, error: Exception | None = None, *, raises: bool = False
    ) -> None:
        """Give the answer, once. Errors of the callback are logged; raised with ``raises``."""
        self.value, self.error, self.done = value, error, True
        self._call_back(raises=raises)

    def _call_back(self, *, raises: bool = False) -> None:
        # Both settle() and then() may come here; pop() decides which of them makes the call. It
        # takes the lock of the list, as append() does: so one of the two sees what the other did.
        while True:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            try:
                callback(self)
            except Exception:  # or the connection would break for everyone
                if raises:
                    raise
                thread_logger.exception("a callback of the ZooKeeper client failed")


class NodeWatches:
    """The watches of a client, by path. A watch is a Reply that is settled when it ends.

    It ends without an error when the node has changed, or the watch is cancelled; with NoNodeError
    when the node is deleted, or was not there; with the server's error when that refuses to watch
    it; and with ConnectionLoss when the connection breaks.

    """

    def __init__(self, send: Callable[[Sequence[Any]], list[Reply]]) -> None:
        self._send = send
        # While it is held requests are sent, too: the last one has to be what is noted here.
        self._mutex = threading.Lock()
        self._by_path: dict[str, list[Reply]] = {}

    def add(self, path: str, on_read: Callable[[Reply], object] | None = None) -> Reply:
        """Watch a node; ``on_read`` is called with the reply that has what the node says.

        It is watched by reading it: ``exists`` on a node that has gone would leave a watch on a
        name that never comes again.
        """
        watch, (reply,) = self.register(path, [GetData(path, True)])

        def read(reply: Reply) -> None:
            if reply.error is not None:
                with self._mutex:
                    removed = self._remove(path, watch)
                if removed:
                    watch.settle(error=reply.error)
            if on_read is not None:
                on_read(reply)

        reply.then(read)
        return watch

    def register(self, path: str, requests: Sequence[Any]) -> tuple[Reply, list[Reply]]:
        """Watch a node by requests of the caller, whose replies do not end the watch."""
        watch = Reply()
        with self._mutex:
            self._by_path.setdefault(path, []).append(watch)
            replies = self._send(requests)
        return watch, replies

    def cancel(self, path: str, watch: Reply) -> None:
        """End a watch, unless it has ended."""
        with self._mutex:
            if (removed := self._remove(path, watch)) and path not in self._by_path:
                self._send([RemoveWatches(path)])
        if removed:
            # An interrupt of the callback, as by Celery's soft time limit, is the caller's.
            watch.settle(raises=True)

    def on_event(self, type: int, path: str) -> None:
        """End the watches of ``path``: the server has sent their event."""
        with self._mutex:
            ended = self._by_path.pop(path, [])
        for watch in ended:
            watch.settle(error=NoNodeError() if type == DELETED_EVENT else None)

    def on_disconnect(self) -> None:
        """End all watches: with the connection the server has forgotten them."""
        with self._mutex:
            ended = [watch for watches in self._by_path.values() for watch in watches]
            self._by_path.clear()
        for watch in ended:
            watch.settle(error=ConnectionLoss())

    def _remove(self, path: str, watch: Reply) -> bool:
        """Take a watch out, with the mutex held; False if it has ended. Who takes it settles it."""
        watches = self._by_path.get(path, [])
        if watch not in watches:
            return False
        watches.remove(watch)
        if not watches:
            del self._by_path[path]
        return True
