"""Watches on single nodes, each of which ends once and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.connection import DELETED_EVENT
from kazoo.protocol.serialization import GetData

from distlock.backends.zookeeper.requests import RemoveWatches, Reply


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
            self._refuse(path, watch, reply.error)
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
            watch.settle()

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

    def _refuse(self, path: str, watch: Reply, error: Exception | None) -> None:
        if error is not None:
            with self._mutex:
                removed = self._remove(path, watch)
            if removed:
                watch.settle(error=error)

    def _remove(self, path: str, watch: Reply) -> bool:
        """Take a watch out, with the mutex held; False if it has ended. Who takes it settles it."""
        watches = self._by_path.get(path, [])
        if watch not in watches:
            return False
        watches.remove(watch)
        if not watches:
            del self._by_path[path]
        return True
