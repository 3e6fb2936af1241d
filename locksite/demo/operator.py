"""A user who may see, break and sweep locks in the admin while the demo runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.contrib.auth.models import Permission, User

NAME = "demo-operator"

#: All that it takes; an operator need not be a superuser.
RIGHTS = ("view_databaselock", "force_release_lock", "sweep_locks")


@contextmanager
def operator() -> Iterator[str | None]:
    """Let someone sign in as :data:`NAME`; yields a password made up for this once.

    Only with ``DEBUG``: a site that is for others must not have such a user. None otherwise.
    """
    if not settings.DEBUG:
        yield None
        return
    user, _ = User.objects.get_or_create(username=NAME, defaults={"is_staff": True})
    rights = Permission.objects.filter(content_type__app_label="distlock", codename__in=RIGHTS)
    user.user_permissions.set(rights)
    password = secrets.token_urlsafe(9)
    user.set_password(password)
    user.save()
    try:
        yield password
    finally:
        user.set_unusable_password()
        user.save(update_fields=["password"])
