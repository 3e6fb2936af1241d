"""A user who may see and break locks, and what is built on them, in the admin of the demo."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.contrib.auth.models import Permission, User

NAME = "demo-operator"

#: What an operator need not do: write the tables by hand.
TABLES = ("add_databaselock", "change_databaselock", "delete_databaselock")


@contextmanager
def operator() -> Iterator[str | None]:
    """Let someone sign in as :data:`NAME`; yields a password made up for this once.

    Only with ``DEBUG``: a site that is for others must not have such a user. None otherwise.
    """
    if not settings.DEBUG:
        yield None
        return
    user, _ = User.objects.get_or_create(username=NAME, defaults={"is_staff": True})
    rights = Permission.objects.filter(content_type__app_label="distlock")
    user.user_permissions.set(rights.exclude(codename__in=TABLES))
    password = secrets.token_urlsafe(9)
    user.set_password(password)
    user.save()
    try:
        yield password
    finally:
        user.set_unusable_password()
        user.save(update_fields=["password"])
