"""The table of the database backend, for those who look for it: to be read, not written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from distlock.backends.database import DatabaseBackend
from distlock.handler import locks
from distlock.models import DatabaseLock
from distlock.printable import escaped
from distlock.templatetags.distlock_admin import visible

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[DatabaseLock]
else:
    _Base = admin.ModelAdmin

_PARAMETER = "database"


class DatabaseFilter(admin.SimpleListFilter):
    """Chooses among the databases that have locks; there is no choice if it is only one."""

    title = _("database")
    parameter_name = _PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        databases = _databases()
        return [(alias, alias) for alias in databases] if len(databases) > 1 else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset  # the admin has chosen the database already, for all of its pages


def _shown(name: str) -> Callable[[DatabaseLock], str]:
    """Return what shows a field whose text may be anybody's."""

    field: Any = DatabaseLock._meta.get_field(name)

    @admin.display(description=field.verbose_name, ordering=name)
    def show(lock: DatabaseLock) -> str:
        return visible(getattr(lock, name))

    show.__name__ = f"shown_{name}"
    return show


class DatabaseLockAdmin(_Base):
    """Rows as they are. What can be done to locks is done on the pages about held locks."""

    list_display = (_shown("lock"), _shown("host"), "process", "token", "acquired_at", "expires_at")
    list_filter = (DatabaseFilter,)
    list_per_page = 50
    search_fields = ("lock",)
    ordering = ("lock",)
    show_full_result_count = False
    fields: ClassVar[Any] = (
        *map(_shown, ("lock", "description", "owner", "nonce", "host")),
        "process",
        _shown("thread"),
        "token",
        "acquired_at",
        "expires_at",
    )
    readonly_fields: ClassVar[Any] = fields

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[DatabaseLock]:
        """Return the rows of the database that is asked for, or of the first that has locks."""
        return super().get_queryset(request).using(_database(request))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """List the rows; a database that cannot be asked is a message, and no error."""
        try:
            response = super().changelist_view(request, extra_context)
            if isinstance(response, TemplateResponse):
                response.render()  # that is when the rows are read
        except DatabaseError as error:
            text = _("The database %(database)s could not be asked: %(problem)s")
            values = {"database": _database(request), "problem": escaped(str(error))}
            messages.error(request, text % values)
            return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))
        return response

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show a row; what the log calls by backend and name is on a page of its own."""
        alias, colon, name = unquote(object_id).partition(":")
        if colon:
            return self._lock_page(alias, name)
        return super().change_view(request, object_id, form_url, extra_context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Go to the page about the lock, which has its history."""
        lock = self.get_object(request, unquote(object_id))
        alias = _databases().get(_database(request))
        if lock is None or alias is None:
            return super().history_view(request, object_id, extra_context)
        return self._lock_page(alias, lock.lock)

    def _lock_page(self, alias: str, name: str) -> HttpResponse:
        page = "lock" if name else "changelist"
        url = reverse(f"admin:distlock_heldlock_{page}", current_app=self.admin_site.name)
        query = f"?{urlencode({'backend': alias, 'name': name})}" if name else ""
        return HttpResponseRedirect(url + query)


def _databases() -> dict[str, str]:
    """Return the databases that have locks, and for each the alias of a backend that uses it."""
    found: dict[str, str] = {}
    with suppress(ImproperlyConfigured):
        for alias in locks:
            with suppress(ImproperlyConfigured):
                if isinstance(backend := locks[alias], DatabaseBackend):
                    found.setdefault(backend.database, alias)
    return found


def _database(request: HttpRequest) -> str:
    """Return the database that a page is about; a page about a row remembers its list's."""
    databases = _databases() or {DEFAULT_DB_ALIAS: ""}
    came_from = parse_qs(request.GET.get("_changelist_filters", "")).get(_PARAMETER, [""])[0]
    wanted = request.GET.get(_PARAMETER, came_from)
    return wanted if wanted in databases else next(iter(databases))
