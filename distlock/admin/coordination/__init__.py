"""The coordination family in Django's admin: elections, groups and the like, of every backend.

Each kind has pages of its own, with a permission to see them and one for each thing that may be
done there.

views    the list, the page of one name, and the page that asks before something is done
pages    what each kind of recipe says of its pages, as values that are ready to be drawn
plain    the kinds that are only looked at
elections, queues, …   a module for each of the others
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from distlock.admin.coordination.configs import ConfigPages
from distlock.admin.coordination.elections import ElectionPages
from distlock.admin.coordination.pages import RecipePages
from distlock.admin.coordination.plain import (
    BarrierPages,
    DoubleBarrierPages,
    EventPages,
    GroupPages,
    NamesPages,
    TopicPages,
)
from distlock.admin.coordination.progress import ProgressPages
from distlock.admin.coordination.queues import QueuePages
from distlock.admin.coordination.views import RecipeAdmin

__all__ = ["PAGES", "RecipeAdmin", "register"]

PAGES: tuple[RecipePages[Any], ...] = (
    ElectionPages(),
    GroupPages(),
    BarrierPages(),
    DoubleBarrierPages(),
    EventPages(),
    QueuePages(),
    ConfigPages(),
    TopicPages(),
    NamesPages(),
    ProgressPages(),
)


def register(site: admin.AdminSite) -> None:
    """Add the pages of the family to a site of the admin."""
    for pages in PAGES:
        site.register(
            pages.model, type(f"{pages.model.__name__}Admin", (RecipeAdmin,), {"pages": pages})
        )
