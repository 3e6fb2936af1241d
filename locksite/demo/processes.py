"""Worker processes, as seen by the demo that starts them, talks to them and ends them."""

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
#: Seconds that a worker may be silent while something is expected of it.
PATIENCE = 60.0
#: Seconds that a worker gets to end by itself.
GRACE = 5.0


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
            env={**os.environ, "DEBUG": "0"},  # with DEBUG, Django remembers every query
        )
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerFailed("a worker has ended") from error

    def start(self, task: str, **arguments: Any) -> None:
        """Give the worker a task; its result is the ``done`` that it says."""
        self.tell(json.dumps({"task": task, **arguments}))

    def expect(self, word: str) -> Any:
        """Return what the worker says of ``word``, which must be the next thing it says."""
        try:
            line = self._heard.get(timeout=PATIENCE)
        except queue.Empty:
            raise WorkerFailed(f"a worker said nothing for {PATIENCE:g} seconds") from None
        if not line:
            raise WorkerFailed(f"a worker ended with exit code {self._process.wait()}")
        message = json.loads(line)
        if word not in message:
            raise WorkerFailed(str(message.get("error", message)))
        return message[word]

    def kill(self) -> None:
        """End the process with SIGKILL: it can neither release nor say anything any more."""
        self._process.kill()
        self._process.wait()

    def dismiss(self) -> None:
        """Let the process end by itself."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def reap(self) -> None:
        """Wait until the process has ended, and make it end if it does not."""
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._listener.join(GRACE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(line)
        self._heard.put("")


class Crew:
    """Some workers, all ready; leaving the ``with`` block ends them all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: list[Worker] = []

    def __enter__(self) -> Crew:
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

    def together(self, task: str, **arguments: Any) -> Sequence[Any]:
        """Have all workers do the same task at the same time; returns their results.

        Raises WorkerFailed, when all have ended the task, if it failed for one of them.
        """
        for worker in self.workers:
            worker.start(task, **arguments)
        return self.results()

    def results(self) -> Sequence[Any]:
        """Wait for what all workers are doing; see :meth:`together`."""
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
            worker.dismiss()
        for worker in self.workers:
            worker.reap()
        self.workers.clear()
