"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DistlockConfig(AppConfig):
    name = "distlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from distlock import activity, checks  # noqa: F401  (the checks register themselves)
        from distlock.backends import testcase

        activity.watch_requests()
        testcase.watch()
