"""The common part of all pages of the admin here: who may open them, how they are drawn, and the
log.

The log says what users did to the things in the backends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import django
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from distlock import audit
from distlock.conf import locks
from distlock.models import SHOWN, HeldLock
from distlock.templatetags.distlock_admin import visible
from distlock.types.lease import Kind, LockKey
from distlock.types.values import escaped

logger = logging.getLogger("distlock")

View = Callable[..., HttpResponse]

#: Names in a message, and characters of each.
_MAX_NAMES = 10
_MAX_NAME_LENGTH = 80


class PanelAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no subscript at run time
    """Pages about what is in the backends; ``view_permission`` is needed for all of them."""

    view_permission: str

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(self.view_permission))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def logged_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect from the object id of a log entry to the page about that name."""
        key = parse_log_key(unquote(object_id))
        return HttpResponseRedirect(self._address(key) if key.name else self._url("changelist"))

    def _address(self, key: LockKey, **more: str) -> str:
        """Return the address of the page about a name."""
        raise NotImplementedError

    def _page(self, address: str, view: View, name: str, permission: str = "") -> URLPattern:
        """Return the address of a page that takes a permission, beside that to view."""

        @wraps(view)
        def checked(request: HttpRequest, **more: str) -> HttpResponse:
            may = not permission or request.user.has_perm(permission)
            if not (may and self.has_view_permission(request)):
                raise PermissionDenied
            return view(request, **more)

        inner = self.admin_site.admin_view(checked)
        # A change in a backend happens at once, on another connection, so its log entry must not be
        # rolled back with the request. On SQLite the two connections would also wait for each
        # other.
        for database in connections:
            inner = transaction.non_atomic_requests(using=database)(inner)
        name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(address, inner, name=name)

    def _url(self, page: str) -> str:
        """Return the address of a page, in the site that shows it."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, current_app=self.admin_site.name)

    def _render(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"admin/distlock/{template}.html",
            {
                **self.admin_site.each_context(request),
                "subtitle": None,
                "opts": self.opts,
                "parameters": request.GET,
                "breadcrumbs_are_a_list": django.VERSION >= (6, 1),
                "list_url": self._url("changelist"),
                "other_lists": [
                    (other.opts.verbose_name_plural, other._url("changelist"))
                    for other in self.admin_site._registry.values()
                    if isinstance(other, PanelAdmin) and other is not self
                    if other.has_view_permission(request)
                ],
                **context,
            },
        )


def error_text(request: HttpRequest, text: str) -> str:
    """Return the text of an error; nothing if the user may not see it: it may have addresses."""
    return text if request.user.has_perm("distlock.view_error_text") else ""


def known_aliases(request: HttpRequest) -> list[str]:
    """Return all aliases. If the setting is wrong, return none and add a message."""
    try:
        return list(locks)
    except ImproperlyConfigured as error:
        text = _("The setting DISTLOCK is wrong.")
        messages.error(request, error_text(request, escaped(str(error))) or text)
        return []


def write_log(
    request: HttpRequest, key: LockKey, message: Any, values: dict[str, Any], action: str
) -> None:
    """Log what the user did to something, or to a whole backend if the name is empty.

    It is written to the admin's log and to the site's own. If the first fails, the user gets a
    message. With an ``action`` it is written to the audit log, too; without one, as recipes write
    there themselves what they do.
    """
    user: Any = request.user
    alias, kind, name = key
    with translation.override(settings.LANGUAGE_CODE):  # whatever the language of the user is
        text = escaped(str(message % values))
    who = user.get_username()
    logger.warning("%r in the admin, %s %r on %r: %s", who, kind, name, alias, text)
    if action:
        audit.record(key, action, text, who=who)
    what = alias if kind is Kind.LOCK else f"{alias}, {kind}"
    try:
        # Of the proxy model: the links of log entries lead to its pages.
        shown = SHOWN.get(kind, HeldLock)
        content_type = ContentType.objects.get_for_model(shown, for_concrete_model=False)
        LogEntry.objects.create(
            user_id=user.pk,
            content_type_id=content_type.pk,
            object_id=_log_key(key),
            object_repr=(f"{escaped(name)} ({what})" if name else alias)[:200],
            action_flag=CHANGE,
            change_message=text,
        )
    except DatabaseError:
        logger.exception("the admin's log could not be written")
        problem = _("This could not be written to the admin’s log, only to that of the site:")
        messages.error(request, format_html("{} {}", problem, names_in_message([name or alias])))


def _log_key(key: LockKey) -> str:
    """Return the object id of log entries about a name. No name begins with a space."""
    space = "" if key.kind is Kind.LOCK else " "
    return f"{key.alias}:{space}{key.backend_name}"


def parse_log_key(text: str) -> LockKey:
    """Return what _log_key() was given; an empty name if it was about a whole backend."""
    alias, _, name = text.partition(":")
    if name.startswith(" "):
        with suppress(ValueError):
            return LockKey.of_directory(alias, name[1:])
    return LockKey(alias, Kind.LOCK, name)


def names_in_message(names: Sequence[str]) -> SafeString:
    """Return some names, for a message."""
    short = [[visible(Truncator(name).chars(_MAX_NAME_LENGTH))] for name in names[:_MAX_NAMES]]
    named = format_html_join(", ", "{}", short)
    return format_html("{}, …", named) if len(names) > _MAX_NAMES else named
