"""Watches on single nodes, each of which ends once and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from kazoo.exceptions import NoNodeError

from distlock.backends.zookeeper.requests import GetData, RemoveDataWatch, Reply

_DELETED_EVENT = 2  # see Watcher.Event.EventType


class WatchEnd(Enum):
    """What ended a watch."""

    DELETED = auto()  # the node is deleted, or was not there
    CHANGED = auto()
    DISCONNECTED = auto()
    REFUSED = auto()


class NodeWatch:
    """Waits for a change of one node; ``reply`` is the server's answer to the request for it."""

    __slots__ = ("_callback", "path", "reply")

    def __init__(self, path: str, callback: Callable[[WatchEnd], None]) -> None:
        self.path = path
        self.reply: Reply | None = None
        self._callback: list[Callable[[WatchEnd], None]] = [callback]

    @property
    def ended(self) -> bool:
        return not self._callback

    def end(self) -> Callable[[WatchEnd], None] | None:
        """Take the callback away; None if it has been taken before."""
        try:
            return self._callback.pop()
        except IndexError:
            return None


class NodeWatches:
    """The watches of a client, by path. Each ends once and leaves nothing behind.

    A node is watched by reading it: ``exists`` on a node that has gone would leave a watch on a
    name that never comes again.
    """

    def __init__(self, send: Callable[[Any], Reply]) -> None:
        self._send = send
        self._mutex = threading.Lock()
        self._by_path: dict[str, list[NodeWatch]] = {}

    def __len__(self) -> int:
        """Return how many nodes are watched."""
        return len(self._by_path)

    def add(self, watch: NodeWatch) -> None:
        """Watch a node; the callback is called once, on the connection thread."""
        with self._mutex:
            if watch.ended:
                return
            self._by_path.setdefault(watch.path, []).append(watch)
            reply = watch.reply = self._send(GetData(watch.path, True))
        reply.then(lambda reply: self._on_reply(watch, reply))

    def cancel(self, watch: NodeWatch) -> bool:
        """End a watch without calling back; False if that has been done already."""
        with self._mutex:
            if watch.end() is None:
                return False
            if self._drop(watch):
                self._send(RemoveDataWatch(watch.path))
        return True

    def on_event(self, type: int, path: str) -> None:
        """Call back those who watch ``path``."""
        with self._mutex:
            ended = self._by_path.pop(path, [])
        for watch in ended:
            self._end(watch, WatchEnd.DELETED if type == _DELETED_EVENT else WatchEnd.CHANGED)

    def on_disconnect(self) -> None:
        """Call back everyone: with the connection the server has forgotten all watches."""
        with self._mutex:
            ended = [watch for watches in self._by_path.values() for watch in watches]
            self._by_path.clear()
        for watch in ended:
            self._end(watch, WatchEnd.DISCONNECTED)

    def _drop(self, watch: NodeWatch) -> bool:
        """Drop a watch, under the mutex; True if it was the last one on its path."""
        watches = self._by_path.get(watch.path, [])
        if watch not in watches:
            return False
        watches.remove(watch)
        if not watches:
            del self._by_path[watch.path]
        return not watches

    def _on_reply(self, watch: NodeWatch, reply: Reply) -> None:
        if reply.error is None:
            return
        with self._mutex:
            self._drop(watch)
        if isinstance(reply.error, NoNodeError):
            self._end(watch, WatchEnd.DELETED)
        else:
            self._end(watch, WatchEnd.DISCONNECTED if reply.lost else WatchEnd.REFUSED)

    def _end(self, watch: NodeWatch, reason: WatchEnd) -> None:
        if callback := watch.end():
            callback(reason)
