"""The site's Celery app.

    celery --app locksite worker --beat

Without further settings its messages are files in a folder, which is enough for one machine.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import crontab
from django.conf import settings

from locksite import files

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "locksite.settings")

app = Celery("locksite")
app.set_default()  # in the threads of a server, too
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_schedule = {
    "nightly report": {
        "task": "locksite.reports.tasks.nightly_report",
        "schedule": crontab(hour=0, minute=5),
    },
    "sweep": {"task": "distlock.sweep", "schedule": timedelta(minutes=5)},
}
app.autodiscover_tasks()


def make_folders(**kwargs: Any) -> None:
    """Make the folders that messages and results are kept in, if they are files."""
    if app.conf.broker_url == f"{files.SCHEME}://":
        for folder in ("messages", "done"):
            Path(settings.CELERY_FOLDER, folder).mkdir(parents=True, exist_ok=True)  # type: ignore[misc]


app.on_after_configure.connect(make_folders)
