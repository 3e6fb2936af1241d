"""The pages about held locks: their list, one of them, releasing some, sweeping."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

import django
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from distlock.admin.detail import subject
from distlock.admin.explanations import consequences
from distlock.admin.force_release import look_at, release
from distlock.admin.hold_ref import Chosen
from distlock.admin.lock_row import LABELS
from distlock.admin.messages import shortened, tell_released, tell_swept
from distlock.admin.overview import overview
from distlock.admin.query import SPANS, Query
from distlock.admin.reason import ReasonForm
from distlock.admin.sweep import sweep
from distlock.conf import locks
from distlock.models import HeldLock
from distlock.types.names import MAX_NAME
from distlock.types.printable import escaped
from distlock.types.query import DisplayStatus, Order

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[HeldLock]
else:
    _Base = admin.ModelAdmin

VIEW = "distlock.view_databaselock"
RELEASE = "distlock.force_release_lock"
SWEEP = "distlock.sweep_locks"

#: What an address says where a silent backend is to be waited for.
AGAIN = "again"

View = Callable[..., HttpResponse]


class HeldLockAdmin(_Base):
    """The panel. Nothing is changed but by POST, and nothing at all without its permission."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(VIEW))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of the panel, in place of those of a model."""

        def page(address: str, view: View, name: str, permission: str = VIEW) -> URLPattern:
            name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
            return path(address, self._guarded(view, permission), name=name)

        return [
            page("", require_safe(self.list_view), "changelist"),
            page("lock/", require_safe(self.lock_view), "lock"),
            page("<path:object_id>/change/", require_safe(self.logged_view), "change"),
            page("release/", require_POST(self.release_view), "release", RELEASE),
            page("sweep/", require_POST(self.sweep_view), "sweep", SWEEP),
        ]

    def _guarded(self, view: View, permission: str) -> View:
        def guarded(request: HttpRequest, **more: str) -> HttpResponse:
            if not (self.has_view_permission(request) and request.user.has_perm(permission)):
                raise PermissionDenied
            return view(request, **more)

        inner = update_wrapper(self.admin_site.admin_view(guarded), view)
        # What is done to locks is done at once, so its trace must not be rolled back either; and
        # SQLite would have the transaction of a request wait for the sessions of the locks.
        for database in connections:
            inner = transaction.non_atomic_requests(using=database)(inner)
        return inner

    # Looking

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Show all backends and one page of the locks in them."""
        query = Query.read(request.GET, _aliases(request))
        return self._render(
            request,
            "list",
            title=_("Held locks"),
            query=query,
            overview=overview(query, patient=_again(request)),
            again=query.url() + ("&" if query.url() != "?" else "") + f"{AGAIN}=1",
            statuses=[(status, LABELS[status]) for status in DisplayStatus],
            spans=SPANS,
            by_name=query.sorted_by(Order.NAME),
            by_age=query.sorted_by(Order.AGE),
            now=timezone.now(),
        )

    def lock_view(self, request: HttpRequest) -> HttpResponse:
        """Show one lock: ``?backend=…&name=…``."""
        alias, name = request.GET.get("backend", ""), request.GET.get("name", "")
        # Who can write the table by hand may have called a lock what no code can call it.
        if not 0 < len(name) <= MAX_NAME or alias not in _aliases():
            raise Http404
        return self._render(
            request,
            "lock",
            title=_("Lock"),
            subtitle=shortened(name),
            subject=subject(alias, name, patient=_again(request)),
            again="?" + urlencode({"backend": alias, "name": name, AGAIN: "1"}),
            now=timezone.now(),
        )

    def logged_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go to the page about what the admin's log names by backend and name."""
        alias, _, name = unquote(object_id).partition(":")
        page = "lock" if name else "changelist"
        url = reverse(f"admin:distlock_heldlock_{page}", current_app=self.admin_site.name)
        query = f"?{urlencode({'backend': alias, 'name': name})}" if name else ""
        return HttpResponseRedirect(url + query)

    # Doing

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whether the chosen holds are to be released; once confirmed, release them."""
        query = Query.read(QueryDict(request.POST.get("back", "").removeprefix("?")), _aliases())
        back = reverse("admin:distlock_heldlock_changelist", current_app=self.admin_site.name)
        back += query.url()
        try:
            chosen = Chosen.read_all(request.POST.getlist("hold"))
        except ValueError as error:
            messages.warning(request, str(error))
            return HttpResponseRedirect(back)
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            tell_released(request, release(chosen, request.user, form.cleaned_data["reason"]))
            return HttpResponseRedirect(back)
        sightings = look_at(chosen)
        current = [sighting for sighting in sightings if sighting.is_current]
        return self._render(
            request,
            "release",
            title=_("Force release"),
            form=form,
            current=current,
            others=[sighting for sighting in sightings if not sighting.is_current],
            consequences=consequences(one.listed for one in current if one.listed),
            back=back,
            query=query,
        )

    def sweep_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whether to sweep; once confirmed, sweep all backends."""
        back = reverse("admin:distlock_heldlock_changelist", current_app=self.admin_site.name)
        if "confirmed" in request.POST:
            tell_swept(request, sweep(_aliases(), request.user))
            return HttpResponseRedirect(back)
        query = Query.read(QueryDict(), _aliases())
        return self._render(request, "sweep", title=_("Sweep"), overview=overview(query), back=back)

    def _render(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"admin/distlock/heldlock/{template}.html",
            {
                **self.admin_site.each_context(request),
                "subtitle": None,
                "opts": self.opts,
                "may_release": request.user.has_perm(RELEASE),
                "may_sweep": request.user.has_perm(SWEEP),
                "breadcrumbs_are_a_list": django.VERSION >= (6, 1),
                **context,
            },
        )


def _again(request: HttpRequest) -> bool:
    """Return whether someone wants a backend to be waited for that has lately not answered."""
    return AGAIN in request.GET


def _aliases(request: HttpRequest | None = None) -> list[str]:
    """Return the aliases of all backends; none if the setting itself is wrong, which is told."""
    try:
        return list(locks)
    except ImproperlyConfigured as error:
        if request is not None:
            messages.error(request, escaped(str(error)))
        return []
