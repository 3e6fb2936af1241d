"""The nodes of the tests' ZooKeeper, apart from all locks' own sessions."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

#: Below this node are the locks of tests that have no node of their own.
ROOT = "/distlock"


class Nodes:
    """A session with a ZooKeeper, on which nothing is locked."""

    def __init__(self, hosts: str) -> None:
        patient = KazooRetry(max_tries=30, delay=0.1, max_delay=1)
        self._kazoo: Any = KazooClient(hosts=hosts, timeout=10, command_retry=patient)
        self._kazoo.start()

    def clear(self) -> None:
        """Remove every lock, whoever holds it."""
        self._kazoo.retry(self._clear)

    def _clear(self) -> None:
        try:
            names = self._kazoo.get_children(ROOT)
        except NoNodeError:
            return
        for name in names:
            self._kazoo.delete(f"{ROOT}/{name}", recursive=True)

    def close(self) -> None:
        self._kazoo.stop()
        self._kazoo.close()
