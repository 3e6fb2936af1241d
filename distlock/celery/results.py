"""The results of locked tasks, which can tell that one was skipped.

For Celery a skipped task has succeeded: its result is there, chains go on and chords are complete,
which no state of another name would give. That it was skipped is in the traceback.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import states
from celery.result import AsyncResult

from distlock.celery import queueing
from distlock.celery.task_options import queueing_backend
from distlock.exceptions import LockError
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report

logger = logging.getLogger("distlock.celery")

#: What the state of a task is called that was not run because its lock was busy.
SKIPPED = "SKIPPED"

_MARK = f"{SKIPPED}: "


class LockedResult(AsyncResult):  # type: ignore[misc]
    """An ``AsyncResult`` whose ``state`` is ``"SKIPPED"`` for a task that was skipped."""

    #: the task, where it is known
    task: Any = None

    def revoke(self, *args: Any, **kwargs: Any) -> None:
        """See AsyncResult.revoke(). The next call does not find this one queued any more.

        This reads all queueing locks of the task's backend.
        """
        super().revoke(*args, **kwargs)
        if self.task is None or self.task.queueing_name is None:
            return
        try:
            queueing.unqueue_task(queueing_backend(self.task.name, self.task.locking), self.id)
        except LockError as error:
            logger.warning("the queueing lock of task %s is freed later: %s", self.id, error)

    @property
    def skipped(self) -> bool:
        """Whether the task was not run, because its lock was busy."""
        return self.state == SKIPPED

    @property
    def state(self) -> str:
        """See AsyncResult.state."""
        meta = self._get_task_meta()
        if meta["status"] == states.SUCCESS and str(meta.get("traceback")).startswith(_MARK):
            return SKIPPED
        return str(meta["status"])

    status = state

    def progress(self) -> Report | None:
        """Return how far the task is, with ``progress=True``; None if it has not begun.

        LockUnavailable if the backend cannot be asked; TypeError without that option.
        """
        if self.task is None or self.task.locking.progress is not True:
            raise TypeError(f"task {self.name or self.id} was not made with progress=True")
        return Progress.get(f"{self.task.name}[{self.id}]", using=self.task.locking.using)

    def ready(self) -> bool:
        """See AsyncResult.ready()."""
        return self._get_task_meta()["status"] in self.backend.READY_STATES

    def successful(self) -> bool:
        """See AsyncResult.successful(); nothing is wrong with a task that was skipped."""
        return bool(self._get_task_meta()["status"] == states.SUCCESS)


class SkippedBackend:
    """A result backend for the one request that was skipped: it stores why along with the result.

    Celery stores a result with its state in one go, after the task has returned; what is stored
    before or later would be lost, or refused.
    """

    def __init__(self, backend: Any, reason: str) -> None:
        self._backend = backend
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True
    ) -> None:
        """See celery.backends.base.Backend.mark_as_done()."""
        if store_result:
            self._backend.store_result(
                task_id, result, states.SUCCESS, traceback=_MARK + self._reason, request=request
            )
        self._backend.mark_as_done(task_id, result, request=request, store_result=False)
