"""Who did what to a lock: entries of the admin's log, and lines of the site's own log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError
from django.utils import translation

from distlock.models import HeldLock
from distlock.types.printable import escaped

logger = logging.getLogger("distlock")

_MAX_REPR = 200
#: Entries that the page of a lock shows.
_MAX_ENTRIES = 20


def object_id(alias: str, name: str) -> str:
    """Return the object id of a lock in the admin's log."""
    return f"{alias}:{name}"


def write_log(user: Any, alias: str, name: str, message: str) -> bool:
    """Log what ``user`` did to a lock, or to a whole backend if ``name`` is empty.

    Returns False if the entry could not be saved; then only the site's own log has a line.
    """
    logger.warning("%r in the admin, lock %r on %r: %s", user.get_username(), name, alias, message)
    try:
        LogEntry.objects.create(
            user_id=user.pk,
            content_type_id=_content_type().pk,
            object_id=object_id(alias, name),
            object_repr=_shortened(f"{escaped(name)} ({escaped(alias)})" if name else alias),
            action_flag=CHANGE,
            change_message=message,
        )
    except DatabaseError:
        logger.exception("the admin's log could not be written")
        return False
    return True


def in_site_language(message: Any, values: Mapping[str, Any]) -> str:
    """Return a lazy message in the site's own language, whatever the user's language is."""
    with translation.override(settings.LANGUAGE_CODE):
        return str(message) % values


def log_entries(alias: str, name: str) -> Sequence[LogEntry]:
    """Return the latest entries about a lock, newest first."""
    key = object_id(alias, name)
    found = LogEntry.objects.filter(content_type=_content_type(), object_id=key).select_related(
        "user"
    )
    # Some databases compare without regard to case, so compare again.
    return [entry for entry in found[:_MAX_ENTRIES] if entry.object_id == key]


def _content_type() -> ContentType:
    # Of the proxy model: the links of log entries lead to its pages.
    return ContentType.objects.get_for_model(HeldLock, for_concrete_model=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 1]}…"
