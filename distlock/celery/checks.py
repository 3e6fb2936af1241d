"""Finds tasks whose queueing locks are where they cannot be kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from distlock.celery.options import Options, queueing_backend
from distlock.checks import TAG
from distlock.exceptions import NotSupported

#: The tasks with a queueing lock that are known, by name.
_declared: dict[str, Options] = {}


def declare(task: str, locking: Options) -> None:
    """LockHeader a task that has a queueing lock; NotSupported if its backend cannot keep that.

    Tasks may be declared before the settings or the models are ready: then nothing can be said yet,
    and the first call is what is refused, or ``manage.py check`` finds it.
    """
    _declared[task] = locking
    if settings.configured and apps.models_ready:
        with suppress(ImproperlyConfigured):  # reported by the check of the settings
            queueing_backend(task, locking)


@register(TAG)
def check_tasks(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the tasks that have been imported."""
    return list(_messages())


def _messages() -> Iterator[CheckMessage]:
    for task, locking in sorted(_declared.items(), key=lambda item: item[0]):
        try:
            queueing_backend(task, locking)
        except NotSupported as error:
            yield Error(
                str(error).removeprefix(f"task {task}: "), obj=f"task {task}", id="distlock.E008"
            )
        except ImproperlyConfigured:
            continue  # reported by the check of the settings, or by the first call
