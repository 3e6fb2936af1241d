"""The demo's worker processes: start them, give them tasks, end them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

#: Where the packages ``locksite`` and ``distlock`` are.
PROJECT = Path(__file__).resolve().parents[2]
#: The lease of the locks of a worker, in seconds, where a lock may have a lease of its own length.
#: Who dies is to be missed soon; on a very busy machine ``LEASE`` may have to be longer.
LEASE = float(os.environ.get("LEASE") or 4)
#: Seconds within which a worker must send the next message.
ANSWER_TIMEOUT = 60.0
#: Seconds that a worker gets to end by itself.
END_TIMEOUT = 5.0


class WorkerFailed(Exception):
    """A worker reported an error, ended, or was silent for too long."""


class Worker:
    """A process that runs :mod:`locksite.demo.worker`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "locksite.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C is for the demo alone; it then ends its workers in order
            cwd=PROJECT,
            # With DEBUG, Django remembers every query.
            env={**os.environ, "LEASE": str(LEASE), "DEBUG": "0"},
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send_line(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerFailed("a worker has ended") from error

    def start(self, task: str, **arguments: Any) -> None:
        """Give the worker a task; it sends the result as ``done``."""
        self.send_line(json.dumps({"task": task, **arguments}))

    def expect(self, word: str) -> Any:
        """Return the value of ``word``, which the worker's next message must contain."""
        try:
            line = self._lines.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            raise WorkerFailed(f"a worker sent nothing for {ANSWER_TIMEOUT:g} seconds") from None
        if not line:
            raise WorkerFailed(f"a worker ended with exit code {self._process.wait()}")
        message = json.loads(line)
        if word not in message:
            raise WorkerFailed(str(message.get("error", message)))
        return message[word]

    def kill(self) -> None:
        """End the process with SIGKILL: it can release nothing."""
        self._process.kill()
        self._process.wait()

    def close_input(self) -> None:
        """Let the process end by itself."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the process, and wait for it."""
        self.close_input()
        self.join()

    def join(self) -> None:
        """Wait until the process has ended, and make it end if it does not."""
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        self._listener.join(END_TIMEOUT)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


class WorkerPool:
    """Some workers; the ``with`` block begins when all are ready, and its end ends them all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: list[Worker] = []

    def __enter__(self) -> WorkerPool:
        try:
            for _ in range(self.size):
                self.workers.append(Worker())
            for worker in self.workers:
                worker.expect("ready")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def run_all(self, task: str, **arguments: Any) -> Sequence[Any]:
        """Have all workers do the same task at the same time; returns their results.

        Raises WorkerFailed, when all have ended the task, if it failed for one of them.
        """
        for worker in self.workers:
            worker.start(task, **arguments)
        return self.results()

    def results(self) -> Sequence[Any]:
        """Wait for what all workers are doing; see :meth:`run_all`."""
        results, failures = [], []
        for worker in self.workers:
            try:
                results.append(worker.expect("done"))
            except WorkerFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return results

    def end(self) -> None:
        for worker in self.workers:
            worker.close_input()
        for worker in self.workers:
            worker.join()
        self.workers.clear()
