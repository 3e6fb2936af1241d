"""The nodes of the tests' ZooKeeper, apart from all locks' own sessions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.retry import ForceRetryError, KazooRetry

from tests.servers.process import START_LIMIT

#: Below this node are the locks of tests that have no node of their own.
ROOT = "/distlock"


class Nodes:
    """A session with a ZooKeeper, on which nothing is locked."""

    def __init__(self, hosts: str) -> None:
        patient = KazooRetry(max_tries=30, delay=0.1, max_delay=1)
        self._kazoo: Any = KazooClient(hosts=hosts, timeout=10, command_retry=patient)
        self._kazoo.start(START_LIMIT)

    def clear(self) -> None:
        """Remove every lock, whoever holds it."""
        self._kazoo.retry(self._clear)

    def _clear(self) -> None:
        try:
            names = self._kazoo.get_children(ROOT)
        except NoNodeError:
            return
        for name in names:
            try:
                self._kazoo.delete(f"{ROOT}/{name}", recursive=True)
            except NotEmptyError:  # by somebody who has not heard yet that the last test is over
                raise ForceRetryError from None

    @contextmanager
    def taken(self, names: Sequence[str], root: str, *, held: bool = True) -> Iterator[None]:
        """Hold locks of these names below ``root`` meanwhile; or have them just been left."""
        said = {"owner": "crowd", "host": "crowded", "pid": 1, "thread": "t", "description": "d"}
        said |= {"renews": True, "session_timeout": 10.0}
        data, node = json.dumps(said).encode(), f"{uuid.uuid4().hex}-0000000000"

        def take(step: Any, path: str) -> None:
            step.create(path)
            if held:
                step.create(f"{path}/{node}", data, ephemeral=True)

        def leave(step: Any, path: str) -> None:
            if held:
                step.delete(f"{path}/{node}")
            step.delete(path)

        self._kazoo.ensure_path(root)
        paths = [f"{root}/{name}" for name in names]
        self._in_steps(paths, take)
        try:
            yield
        finally:
            self._in_steps(paths, leave)

    def _in_steps(self, paths: Sequence[str], do: Callable[[Any, str], None]) -> None:
        for start in range(0, len(paths), 500):
            step = self._kazoo.transaction()
            for path in paths[start : start + 500]:
                do(step, path)
            step.commit()

    def close(self) -> None:
        self._kazoo.stop()
        self._kazoo.close()
