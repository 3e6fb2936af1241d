"""The run of a task in the current thread or greenlet."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlock.celery.execution import Run

innermost: ContextVar[Run | None] = ContextVar("distlock_celery_run", default=None)


def current_run(task_id: str) -> Run | None:
    """Return the run of the task ``task_id`` if that is what goes on here."""
    run = innermost.get()
    return run if run is not None and run.task_id == task_id else None
