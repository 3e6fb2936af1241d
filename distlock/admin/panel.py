"""What all pages of the admin here share: who may open them, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import django
from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from distlock.conf import locks
from distlock.types.values import escaped

View = Callable[..., HttpResponse]


class PanelAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # no subscript at run time
    """Pages about what is in the backends; ``view_permission`` is needed for all of them."""

    view_permission: str

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(self.view_permission))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def _page(self, address: str, view: View, name: str, permission: str = "") -> URLPattern:
        """Return the address of a page that takes a permission, beside that to view."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(address, self._with_permission(view, permission), name=name)

    def _with_permission(self, view: View, permission: str) -> View:
        @wraps(view)
        def checked(request: HttpRequest, **more: str) -> HttpResponse:
            may = not permission or request.user.has_perm(permission)
            if not (may and self.has_view_permission(request)):
                raise PermissionDenied
            return view(request, **more)

        inner = self.admin_site.admin_view(checked)
        # What is changed in a backend is changed at once, on another connection, so its log entry
        # must not be rolled back with the request. On SQLite the two connections would also wait
        # for each other.
        for database in connections:
            inner = transaction.non_atomic_requests(using=database)(inner)
        return inner

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
