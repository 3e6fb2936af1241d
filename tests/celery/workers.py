"""Celery workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.celery.app import HANDED, TELL
from tests.children import environment_of_child
from tests.servers.guard import descendants, guard

ROOT = Path(__file__).parents[2]
#: Seconds in which a worker has to do what is expected of it next.
LIMIT = 60.0


class Worker:
    """``celery worker`` that takes tasks from the queue of its name, and from that of many."""

    def __init__(
        self,
        queue: str,
        pool: str = "prefork",
        concurrency: int = 4,
        *arguments: str,
        conf: dict[str, Any],
        env: dict[str, str] | None = None,
    ) -> None:
        self.queue = queue
        self._log = tempfile.NamedTemporaryFile(prefix="worker-")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.celery.app:app", "worker",
             f"--pool={pool}", f"--concurrency={concurrency}", f"--queues={queue},many",
             f"--hostname={queue}@tests", "--loglevel=INFO", "--without-gossip",
             "--without-mingle", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            env={
                **os.environ,
                **environment_of_child(),
                HANDED: json.dumps(conf),
                "DISTLOCK_TEST_QUEUE": queue,
                **(env or {}),
            },
        )  # fmt: skip
        guard().watch(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def last_words(self) -> str:
        """Return the end of the log, and where its processes are; nothing once the log is gone."""
        if self._log.file.closed:
            return ""
        log = self.log[-8000:]
        if self._process.poll() is None:
            start = len(self.log)
            for pid in (self.pid, *descendants(self.pid)):
                os.kill(pid, TELL)
            time.sleep(0.5)
            log += "\n" + self.log[start:]
        return log

    def await_log(self, text: str, timeout: float = LIMIT) -> str:
        """Wait until it has logged a line with ``text``; returns the whole log."""
        until = time.monotonic() + timeout
        while text not in (log := self.log).rpartition("\n")[0]:
            assert self._process.poll() is None, f"the worker ended:\n{log}"
            assert time.monotonic() < until, f"the worker did not log {text!r}:\n{log}"
            time.sleep(0.02)
        return log

    def ready(self) -> Worker:
        self.await_log(" ready.")
        return self

    def signal(self, signum: int) -> None:
        self._process.send_signal(signum)

    def wait(self, timeout: float = LIMIT) -> int:
        """Return its exit code."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker still runs:\n{self.log}") from None
        guard().forget(self.pid)
        return code

    def kill(self) -> None:
        """End it and its pool at once."""
        for pid in reversed(descendants(self.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.kill()
        self.wait()

    def close(self) -> None:
        """End it, if it still runs, and its log."""
        if self._process.poll() is None:
            self.kill()
        self._log.close()
