"""The program of one worker process: does the tasks that come in as lines of JSON.

It ends when its input does, so that none outlives the demo, however that ended.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

import django


class Boss:
    """The demo that started this process, as seen from here."""

    def __init__(self) -> None:
        self._out = sys.stdout
        sys.stdout = sys.stderr  # nothing but messages goes to the demo
        self._heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, **message: Any) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def hear(self, timeout: float | None = None) -> str | None:
        """Return the next line; None if there was none for ``timeout`` seconds (None: no limit).

        Raises EOFError when the demo has gone or has dismissed this worker.
        """
        try:
            line = self._heard.get(timeout=timeout)
        except queue.Empty:
            return None
        if not line:
            self._heard.put(line)  # for whoever asks again
            raise EOFError
        return line.strip()

    def _listen(self) -> None:
        while line := sys.stdin.readline():
            self._heard.put(line)
        self._heard.put("")


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "locksite.settings")
    boss = Boss()
    django.setup()
    from locksite.demo.tasks import TASKS  # its models need the apps

    boss.say(ready=True)
    try:
        while line := boss.hear():
            task = json.loads(line)
            try:
                boss.say(done=TASKS[task.pop("task")](boss, **task))
            except EOFError:
                raise
            except Exception as error:
                boss.say(error=f"{type(error).__name__}: {error}")
    except (EOFError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
