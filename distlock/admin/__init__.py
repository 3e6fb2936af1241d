"""Held locks of every backend in Django's admin.

Registered by the admin's autodiscovery. To see them takes the permission
``distlock.view_databaselock``, to break a hold ``distlock.force_release_lock``, and to sweep
``distlock.sweep_locks``; none of the others stands for these.

views     the pages, and who may open them
query     filters, order and page of the list
overview  what the list shows
detail    what the page of one lock shows, and sentences that explain it
rows      a lock as a row, and a hold as a form field
actions   force release and sweep
messages  what Django shows after these
log       what the admin's log says of them
fan_out   asks several backends at once, and waits for none for long
"""

from __future__ import annotations

from django.contrib import admin

from distlock.admin.views import HeldLockAdmin
from distlock.models import HeldLock

__all__ = ["HeldLockAdmin"]

admin.site.register(HeldLock, HeldLockAdmin)
