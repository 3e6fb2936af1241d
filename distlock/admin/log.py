"""What was done to locks in the admin: entries of its log, and lines of the site's own."""

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
#: Entries of one lock that are shown.
_MOST_SHOWN = 20


def object_id(alias: str, name: str) -> str:
    """Return what a lock is called in the log, whichever backend it is in."""
    return f"{alias}:{name}"


def log(user: Any, alias: str, name: str, message: str) -> bool:
    """Write down what ``user`` did to a lock, or to a backend, if ``name`` is empty.

    Returns False if the database could not take it; the line in the site's own log is there then.
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


def in_the_logs_language(message: Any, values: Mapping[str, Any]) -> str:
    """Return a lazy message, filled in, in the site's own language, whoever is at work."""
    with translation.override(settings.LANGUAGE_CODE):
        return str(message) % values


def entries(alias: str, name: str) -> Sequence[LogEntry]:
    """Return what was done to a lock, newest first; nothing if the database cannot say."""
    key = object_id(alias, name)
    found = LogEntry.objects.filter(content_type=_content_type(), object_id=key).select_related(
        "user"
    )
    # Some databases compare without regard to case.
    return [entry for entry in found[:_MOST_SHOWN] if entry.object_id == key]


def _content_type() -> ContentType:
    # That of the proxy, whose pages the log's links lead to.
    return ContentType.objects.get_for_model(HeldLock, for_concrete_model=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_REPR else f"{text[: _MAX_REPR - 1]}…"
