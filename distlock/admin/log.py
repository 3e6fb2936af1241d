"""The admin's log of what its users did to the things in the backends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DatabaseError
from django.db.models import Model
from django.http import HttpRequest
from django.utils import translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from distlock import audit
from distlock.models import HeldLock
from distlock.templatetags.distlock_admin import visible
from distlock.types.lease import Kind
from distlock.types.printable import escaped

logger = logging.getLogger("distlock")

#: Names in a message, and characters of each.
_MAX_NAMES = 10
_MAX_NAME_LENGTH = 80


def write_log(
    request: HttpRequest,
    alias: str,
    kind: Kind,
    name: str,
    message: Any,
    values: dict[str, Any],
    action: str = "",
    model: type[Model] = HeldLock,
) -> None:
    """Log what the user did to something, or to a whole backend if ``name`` is empty.

    It is written to the admin's log and to the site's own. If the first fails, the user gets a
    message. ``model`` is the one whose pages the entry leads to. With ``action`` it is written to
    the audit log, too; recipes write there themselves what they do.
    """
    user: Any = request.user
    with translation.override(settings.LANGUAGE_CODE):  # whatever the language of the user is
        text = escaped(str(message % values))
    who = user.get_username()
    logger.warning("%r in the admin, %s %r on %r: %s", who, kind, name, alias, text)
    if action:
        audit.record((alias, kind, name), action, text, who=who)
    what = alias if kind is Kind.LOCK else f"{alias}, {kind}"
    try:
        LogEntry.objects.create(
            user_id=user.pk,
            content_type_id=_content_type(model).pk,
            object_id=_log_key(alias, kind, name),
            object_repr=(f"{escaped(name)} ({what})" if name else alias)[:200],
            action_flag=CHANGE,
            change_message=text,
        )
    except DatabaseError:
        logger.exception("the admin's log could not be written")
        problem = _("This could not be written to the admin’s log, only to that of the site:")
        messages.error(request, format_html("{} {}", problem, names_in_message([name or alias])))


def _log_key(alias: str, kind: Kind, name: str) -> str:
    """Return the object id of log entries about a name. No name begins with a space."""
    return f"{alias}:{name}" if kind is Kind.LOCK else f"{alias}: {kind}:{name}"


def parse_log_key(key: str) -> tuple[str, Kind, str]:
    """Return what _log_key() was given; an empty name if it was about a whole backend."""
    alias, _, name = key.partition(":")
    for kind in Kind:
        if name.startswith(f" {kind}:"):
            return alias, kind, name.removeprefix(f" {kind}:")
    return alias, Kind.LOCK, name


def _content_type(model: type[Model]) -> ContentType:
    # Of the proxy model: the links of log entries lead to its pages.
    return ContentType.objects.get_for_model(model, for_concrete_model=False)


def names_in_message(names: Sequence[str]) -> SafeString:
    """Return some names, for a message."""
    short = [[visible(Truncator(name).chars(_MAX_NAME_LENGTH))] for name in names[:_MAX_NAMES]]
    named = format_html_join(", ", "{}", short)
    return format_html("{}, …", named) if len(names) > _MAX_NAMES else named
