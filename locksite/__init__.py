"""A ticket shop that shows distlock at work."""

from __future__ import annotations

from locksite.celery import app as celery_app

__all__ = ["celery_app"]
