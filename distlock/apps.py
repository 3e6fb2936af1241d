"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.translation import gettext_lazy as _


class DistlockConfig(AppConfig):
    name = "distlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from distlock import activity, checks  # noqa: F401  (the checks register themselves)
        from distlock.backends.open_transactions import watch_connections
        from distlock.conf import GROUPS_SETTING

        activity.watch()
        watch_connections()
        if getattr(settings, GROUPS_SETTING, None):
            from distlock import process_members

            process_members.watch()
