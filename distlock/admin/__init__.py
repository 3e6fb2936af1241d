"""Held locks of every backend in Django's admin.

Registered by the admin's autodiscovery. To see them takes the permission
``distlock.view_databaselock``, to break a hold ``distlock.force_release_lock``, and to sweep
``distlock.sweep_locks``; none of the others stands for these.
"""

from __future__ import annotations

from django.contrib import admin

from distlock.admin.views import HeldLockAdmin
from distlock.models import HeldLock

__all__ = ["HeldLockAdmin"]

admin.site.register(HeldLock, HeldLockAdmin)
