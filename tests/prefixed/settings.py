from __future__ import annotations

import json
import os
from typing import Any

#: what tells a process of this project where its database is, as JSON
ENTRY = "DISTLOCK_TEST_PREFIXED"

SECRET_KEY = "only for tests"
DATABASES: dict[str, Any] = {"default": json.loads(os.environ.get(ENTRY, "{}"))}
APPS = ["django.contrib.contenttypes", "django.contrib.auth", "distlock"]
INSTALLED_APPS = ["tests.prefixed", *APPS]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
