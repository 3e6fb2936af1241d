"""Django's settings for the tests; the servers fill in where they are once they run."""

from __future__ import annotations

import json
import os
from typing import Any

from locksite import settings as site
from tests.other_drivers import use_if_asked

use_if_asked()

#: What a test run hands to its child processes, as JSON.
INHERITED = "DISTLOCK_TEST_SETTINGS"

_inherited: dict[str, Any] = json.loads(os.environ.get(INHERITED, "{}"))

SECRET_KEY = "only for tests"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "distlock",
    "locksite.shop",
    "locksite.reports",
    "locksite.demo",
    "tests",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "Asia/Kathmandu"  # a quarter of an hour off: nothing may depend on it
ROOT_URLCONF = site.ROOT_URLCONF
MIDDLEWARE = site.MIDDLEWARE
TEMPLATES = site.TEMPLATES
STATIC_URL = site.STATIC_URL

#: The name of a database whose server no test has asked for yet.
NOT_STARTED = "not started"
#: Nobody listens on port 1: an entry that no fixture has filled in refuses connections.
_NOT_STARTED = {"NAME": NOT_STARTED, "HOST": "127.0.0.1", "PORT": "1"}
DATABASES: dict[str, dict[str, Any]] = _inherited.get(
    "DATABASES",
    {
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        "mariadb": {"ENGINE": "django.db.backends.mysql", **_NOT_STARTED},
        "postgresql": {"ENGINE": "django.db.backends.postgresql", **_NOT_STARTED},
    },
)
DISTLOCK: dict[str, Any] = _inherited.get(
    "DISTLOCK",
    {
        "default": {"BACKEND": "distlock.backends.database.DatabaseBackend"},
        "local": {"BACKEND": "distlock.backends.local.LocalBackend"},
    },
)
DISTLOCK_GROUPS: dict[str, str] = _inherited.get("DISTLOCK_GROUPS", {})
