"""A worker process of the demo: reads tasks as lines of JSON, and runs them.

It ends at the end of its input, so it never outlives the demo.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

import django


class Controller:
    """The connection to the demo, which has started this process: lines over stdin and stdout."""

    def __init__(self) -> None:
        self._out = sys.stdout
        sys.stdout = sys.stderr  # only messages may go to the demo
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, **message: Any) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def receive(self, timeout: float | None = None) -> str | None:
        """Return the next line; None if there was none for ``timeout`` seconds (None: no limit).

        Raises EOFError at the end of the input.
        """
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if not line:
            self._lines.put(line)  # the next call must raise, too
            raise EOFError
        return line.strip()

    def _listen(self) -> None:
        while line := sys.stdin.readline():
            self._lines.put(line)
        self._lines.put("")


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "locksite.settings")
    controller = Controller()
    django.setup()
    from locksite.demo.tasks import TASKS  # its models need the apps

    controller.send(ready=True)
    try:
        while line := controller.receive():
            task = json.loads(line)
            try:
                controller.send(done=TASKS[task.pop("task")](controller, **task))
            except EOFError:
                raise
            except Exception as error:
                controller.send(error=f"{type(error).__name__}: {error}")
    except (EOFError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
