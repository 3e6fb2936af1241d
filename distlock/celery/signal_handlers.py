"""Frees the queueing lock of a task that ends before its body is reached."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.signals import task_postrun, task_revoked

from distlock.celery import queueing
from distlock.celery.headers import LockHeader


def _on_revoked(*, sender: Any, request: Any, terminated: bool = False, **kwargs: Any) -> None:
    """Free the queueing lock of a task that will not start."""
    if not terminated and hasattr(sender, "locking"):
        note = LockHeader.read(request.headers, request.id)
        if note is not None and note.ticket is not None:
            queueing.free_soon(note.ticket)


def _on_postrun(*, sender: Any, task: Any, state: str, **kwargs: Any) -> None:
    """Free the queueing lock of a task that has ended before its body was reached."""
    if not hasattr(sender, "locking") or hasattr(task.request, "distlock_ran"):
        return
    note = LockHeader.read(task.request.headers, task.request.id)
    if note is not None and note.ticket is not None and state != states.RETRY:
        queueing.free(note.ticket)


def watch() -> None:
    """Be told of the ends of tasks, in this process and in those that it forks."""
    task_revoked.connect(_on_revoked, dispatch_uid="distlock.celery")
    task_postrun.connect(_on_postrun, dispatch_uid="distlock.celery")
