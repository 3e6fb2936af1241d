"""How a worker process of the demo talks with the demo."""

from __future__ import annotations

import json
import queue
import sys
import threading
from typing import Any


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
