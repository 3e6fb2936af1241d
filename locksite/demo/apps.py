"""The Django app of the demo."""

from __future__ import annotations

from django.apps import AppConfig


class DemoConfig(AppConfig):
    name = "locksite.demo"
    label = "demo"
