"""Celery tasks that do not overlap, and are not queued twice."""

from __future__ import annotations

from distlock.celery.queueing import AlreadyQueued
from distlock.celery.results import SKIPPED, LockedResult
from distlock.celery.task import LockedTask, locked_task

__all__ = ["SKIPPED", "AlreadyQueued", "LockedResult", "LockedTask", "locked_task"]
