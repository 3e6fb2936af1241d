"""Settings of a project with tenants. Each schema has tables of distlock, as may happen."""

from __future__ import annotations

import json
import os
from typing import Any

#: what tells a process of this project where its database is, as JSON
ENTRY = "DISTLOCK_TEST_TENANTS"

SECRET_KEY = "only for tests"
DATABASES: dict[str, Any] = {"default": json.loads(os.environ.get(ENTRY, "{}"))}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
TENANT_APPS = ["django.contrib.contenttypes", "distlock"]
SHARED_APPS = ["django_tenants", "tests.tenants", *TENANT_APPS]
INSTALLED_APPS = SHARED_APPS
TENANT_MODEL = "tenants.Tenant"
TENANT_DOMAIN_MODEL = "tenants.Domain"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DISTLOCK: dict[str, Any] = {
    "default": {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "OPTIONS": {"idle": 60},
    }
}
