"""A worker process of the demo: reads tasks as lines of JSON, and runs them.

It ends at the end of its input, so it never outlives the demo.
"""

from __future__ import annotations

import json
import os

import django

from locksite.demo.controller import Controller


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
