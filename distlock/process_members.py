"""The setting ``DISTLOCK_GROUPS``: Celery workers and web processes join a group by themselves.

    DISTLOCK_GROUPS = {"celery": "workers", "web": "web", "using": "default"}

Each process joins after it was forked: one of a Celery pool when it has started, a web process with
its first request. ``AppConfig.ready()`` would be too early: it runs in the parent of servers that
fork, and in every management command. It joins on a thread of its own, so that a backend that does
not answer keeps neither a worker nor a request waiting. It leaves when the process ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started

from distlock.apps import GROUPS_SETTING
from distlock.backends.open_transactions import in_test_environment
from distlock.concurrency import fork
from distlock.concurrency.clock import backoff
from distlock.concurrency.threads import start, thread_logger
from distlock.conf import configured_groups
from distlock.exceptions import LockError, LockUnavailable
from distlock.recipes.group import Group

logger = logging.getLogger("distlock")

#: Seconds between two attempts to join while the backend does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
#: Seconds that the end of a process waits for its leaving.
_AT_EXIT = 2.0
#: Queues that a worker tells of, at most.
_MOST_QUEUES = 20


#: The groups that this process has joined for the sake of the setting, by role.
_groups: fork.PerProcess[dict[str, Group]] = fork.PerProcess(dict)


def _join_soon(role: str, data: Mapping[str, Any]) -> None:
    """Join the group of a role soon, unless it has been joined; errors go to the log."""
    joined = _groups()
    if role in joined:
        return
    try:
        groups = configured_groups()
        group = Group(groups[role], data={"role": role, **data}, using=groups["using"])
        if joined.setdefault(role, group) is group:
            start(_join, "distlock-member", role, group)
    except RuntimeError as error:  # no more threads: the next request tries again
        joined.pop(role, None)
        logger.warning("could not join the group for %r yet: %s", role, error)
    except Exception:
        logger.exception("could not join the group for %r of %s", role, GROUPS_SETTING)


def _join(role: str, group: Group) -> None:
    for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
        if _groups().get(role) is not group:
            return
        try:
            group.join()
            fork.at_exit(_on_end)  # now, so that it comes before backends close
            break
        except LockUnavailable as error:
            thread_logger.warning("%r cannot be joined yet: %s", group, error)
        except Exception:
            thread_logger.exception("%r cannot be joined", group)
            return
        time.sleep(pause)
    if _groups().get(role) is not group:  # the process is about to end
        _leave(group)


def _leave(group: Group) -> None:
    try:
        group.leave(timeout=_AT_EXIT)
    except LockError as error:
        logger.warning("%r could not be left: %s", group, error)


def watch() -> None:
    """Follow requests, and Celery's workers, if the setting says so."""
    try:
        groups = configured_groups()
    except ImproperlyConfigured:
        return  # the system checks tell of it
    if "web" in groups:
        request_started.connect(_on_request, dispatch_uid=__name__)
    if "celery" in groups:
        from celery import signals

        signals.worker_process_init.connect(_on_pool_process, dispatch_uid=__name__)
        signals.worker_ready.connect(_on_worker, dispatch_uid=__name__)
        signals.worker_process_shutdown.connect(_on_end, dispatch_uid=__name__)


def _on_request(**kwargs: Any) -> None:
    if not in_test_environment():  # nor with the requests of a test client
        _join_soon("web", {})


def _on_pool_process(*, sender: Any, **kwargs: Any) -> None:
    """Join as a process of a prefork pool, or as the one of a solo pool."""
    _join_soon("celery", _worker_data(sender))


def _on_worker(*, sender: Any, **kwargs: Any) -> None:
    """Join as the one process of any other pool."""
    from celery.concurrency.prefork import TaskPool

    if not isinstance(sender.pool, TaskPool):
        _join_soon("celery", _worker_data(sender.hostname))


def _on_end(**kwargs: Any) -> None:
    """Leave all groups, for the process ends; it gets a moment for each."""
    joined = _groups()
    for role in joined.copy():
        if (group := joined.pop(role, None)) is not None:
            _leave(group)


def _worker_data(worker: Any) -> dict[str, Any]:
    from celery import current_app

    queues = sorted(current_app.amqp.queues.consume_from)
    return {"worker": str(worker)[:255], "queues": queues[:_MOST_QUEUES]}
