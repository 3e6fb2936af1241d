"""The Django app."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Tags, register
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

#: The tag of the checks, and the setting that says which groups a process joins.
CHECKS_TAG, GROUPS_SETTING = "distlock", "DISTLOCK_GROUPS"


class DistlockConfig(AppConfig):
    """Each process of a project runs ready(): this imports nothing that only locks need."""

    name = "distlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from distlock import activity
        from distlock.backends.open_transactions import watch_connections

        activity.watch()
        watch_connections()
        register(partial(_check, "check_settings"), CHECKS_TAG)
        register(partial(_check, "check_databases"), CHECKS_TAG, Tags.database)
        register(partial(_check, "check_deployment"), CHECKS_TAG, deploy=True)
        if getattr(settings, GROUPS_SETTING, None):
            from distlock import process_members

            process_members.watch()


def _check(name: str, *args: Any, **kwargs: Any) -> list[CheckMessage]:
    """Make a check of distlock.checks, which is imported then."""
    return import_string(f"distlock.checks.{name}")(*args, **kwargs)  # type: ignore[no-any-return]
