"""Watches on single nodes, each of which ends once and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from kazoo.exceptions import NoNodeError

from distlock.backends.zookeeper.requests import GetData, RemoveDataWatch, Reply

Send = Callable[[Any], Reply]

_DELETED = 2  # see Watcher.Event.EventType


class News(Enum):
    """What ends a watch."""

    GONE = auto()  # the node is deleted, or was not there
    CHANGED = auto()
    LOST = auto()  # the connection broke
    REFUSED = auto()


class Watch:
    """Waits for news of one node; ``reply`` is what the server said when it was asked to watch."""

    __slots__ = ("_callback", "path", "reply")

    def __init__(self, path: str, callback: Callable[[News], None]) -> None:
        self.path = path
        self.reply: Reply | None = None
        self._callback: list[Callable[[News], None]] = [callback]

    @property
    def ended(self) -> bool:
        return not self._callback

    def end(self) -> Callable[[News], None] | None:
        """Take the callback away; None if it has been taken before."""
        try:
            return self._callback.pop()
        except IndexError:
            return None


class Watches:
    """The watches of a client, by path.

    A node is watched by reading it: ``exists`` on a node that has gone would leave a watch on a
    name that never comes again.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._mutex = threading.Lock()
        self._by_path: dict[str, list[Watch]] = {}

    def begin(self, watch: Watch) -> None:
        """Watch a node; ``watch`` gets its news once, on the connection thread."""
        with self._mutex:
            if watch.ended:
                return
            self._by_path.setdefault(watch.path, []).append(watch)
            reply = watch.reply = self._send(GetData(watch.path, True))
        reply.then(lambda reply: self._on_reply(watch, reply))

    def cancel(self, watch: Watch) -> bool:
        """End a watch without news; False if there has been news already."""
        with self._mutex:
            if watch.end() is None:
                return False
            if self._forget(watch):
                self._send(RemoveDataWatch(watch.path))
        return True

    def on_event(self, type: int, path: str) -> None:
        """Tell those who watch ``path``."""
        with self._mutex:
            ended = self._by_path.pop(path, [])
        for watch in ended:
            self._tell(watch, News.GONE if type == _DELETED else News.CHANGED)

    def lose(self) -> None:
        """Tell everyone that the connection broke: the server has forgotten all watches."""
        with self._mutex:
            ended = [watch for watches in self._by_path.values() for watch in watches]
            self._by_path.clear()
        for watch in ended:
            self._tell(watch, News.LOST)

    def _forget(self, watch: Watch) -> bool:
        """Drop a watch, under the mutex; True if it was the last one on its path."""
        watches = self._by_path.get(watch.path, [])
        if watch not in watches:
            return False
        watches.remove(watch)
        if not watches:
            del self._by_path[watch.path]
        return not watches

    def _on_reply(self, watch: Watch, reply: Reply) -> None:
        if reply.error is None:
            return
        with self._mutex:
            self._forget(watch)
        if isinstance(reply.error, NoNodeError):
            self._tell(watch, News.GONE)
        else:
            self._tell(watch, News.LOST if reply.lost else News.REFUSED)

    def _tell(self, watch: Watch, news: News) -> None:
        if callback := watch.end():
            callback(news)
