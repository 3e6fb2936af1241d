"""The Django app of the reports."""

from __future__ import annotations

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    name = "locksite.reports"
    label = "reports"
