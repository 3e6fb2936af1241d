"""The Celery app of the tests; the test run and its workers are told where the broker is."""

from __future__ import annotations

import faulthandler
import json
import os
import signal

import django
from celery import Celery
from django.apps import apps

from locksite import files  # noqa: F401  (broker addresses that begin with files://)

#: What a test run hands to its workers, as JSON: settings of the app.
HANDED = "DISTLOCK_TEST_CELERY"
#: Worker processes write to their log where each of their threads is when they get this signal.
TELL = signal.SIGUSR2

if HANDED in os.environ:
    faulthandler.register(TELL)

if not apps.ready:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()

app = Celery("tests.celery", set_as_current=True)
app.conf.update(
    {
        "broker_connection_retry_on_startup": True,
        "broker_url": "memory://",
        "result_backend": "cache+memory://",
        "task_default_queue": "prefork",
        "include": ["tests.celery.tasks", "distlock.tasks"],
        # By default Celery kills a process of a pool that has not begun within 4 s.
        "worker_proc_alive_timeout": 60.0,
        **json.loads(os.environ.get(HANDED, "{}")),
    }
)
