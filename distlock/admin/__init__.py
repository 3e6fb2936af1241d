"""Held locks of every backend in Django's admin, and the coordination family.

Registered by the admin's autodiscovery. All pages need the permission
``distlock.view_databaselock``; to break a hold takes ``distlock.force_release_lock``, too, and to
sweep ``distlock.sweep_locks``.

views     the pages, and who may open them
overview  what the list shows: filters, order and page, from an address
locks     a lock in a row, on its own page, and after a break; a hold as a form field
actions   force release, sweep, and what may be done with recipes; and what the messages say of them
panel     what all pages share: permissions, how they are drawn, and the log of what was done
recipes   the pages about one kind of recipe, of its description

Sentences that explain a lock's status are in the templates.
"""

from __future__ import annotations

from django.contrib import admin

from distlock.admin.recipes import RecipeAdmin
from distlock.admin.views import HeldLockAdmin
from distlock.models import SHOWN, HeldLock
from distlock.registry import ENTRIES

__all__ = ["HeldLockAdmin", "RecipeAdmin"]

admin.site.register(HeldLock, HeldLockAdmin)
for entry in ENTRIES:
    pages = type(f"{entry.model}Admin", (RecipeAdmin,), {"entry": entry})
    admin.site.register(SHOWN[entry.kind], pages)
