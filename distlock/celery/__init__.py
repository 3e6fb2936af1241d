"""Celery tasks that do not overlap, and are not queued twice."""

from __future__ import annotations

from distlock.celery.execution import SKIPPED
from distlock.celery.queueing import AlreadyQueued
from distlock.celery.task import LockedResult, LockedTask, locked_task

__all__ = ["SKIPPED", "AlreadyQueued", "LockedResult", "LockedTask", "locked_task"]
