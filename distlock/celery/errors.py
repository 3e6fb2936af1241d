"""What can go wrong with a locked task beside what goes wrong with its lock."""

from __future__ import annotations

from distlock.exceptions import LockError


class AlreadyQueued(LockError):
    """A task under the same queueing lock is queued already, so this call queued nothing.

    ``task_id`` is that of the task that is queued; None where that is not known.
    """

    def __init__(self, message: str, task_id: str | None = None) -> None:
        super().__init__(message, task_id)  # both: result backends make it anew from its args
        self.task_id = task_id

    def __str__(self) -> str:
        return str(self.args[0])
