"""The pages of the admin about locks: the list, one lock, force release, sweep."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from distlock import audit
from distlock.admin.actions import (
    ReasonForm,
    consequences,
    current_rows,
    force_release,
    sweep,
)
from distlock.admin.detail import lock_detail
from distlock.admin.log import parse_log_key
from distlock.admin.overview import overview
from distlock.admin.panel import PanelAdmin, known_aliases
from distlock.admin.query import HELD_FOR_CHOICES, Query
from distlock.admin.rows import KINDS, LABELS, HoldRef
from distlock.types.arguments import MAX_NAME
from distlock.types.lease import LOCK_KINDS, Kind
from distlock.types.printable import escaped
from distlock.types.query import DisplayStatus, Order

VIEW = "distlock.view_databaselock"
RELEASE = "distlock.force_release_lock"
SWEEP = "distlock.sweep_locks"


class HeldLockAdmin(PanelAdmin):
    """The pages about held locks. Only a POST changes anything, each with its own permission."""

    view_permission = VIEW

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of these pages, in place of those of a model."""

        page = self._page
        return [
            page("", require_safe(self.list_view), "changelist"),
            page("lock/", require_safe(self.lock_view), "lock"),
            page("<path:object_id>/change/", require_safe(self.logged_view), "change"),
            page("release/", require_POST(self.release_view), "release", RELEASE),
            page("sweep/", require_POST(self.sweep_view), "sweep", SWEEP),
        ]

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Show all backends and one page of the locks in them."""
        query = Query.parse(request.GET, known_aliases(request))
        return self._render(
            request,
            "list",
            title=_("Held locks"),
            query=query,
            overview=overview(query, wait_for_silent="retry" in request.GET),
            statuses=[(status, LABELS[status]) for status in DisplayStatus],
            kinds=[(kind, KINDS[kind] or _("Lock")) for kind in LOCK_KINDS],
            held_for_choices=HELD_FOR_CHOICES,
            by_name=query.url(order=Order.NAME, start=None),
            by_age=query.url(order=Order.AGE, start=None),
        )

    def lock_view(self, request: HttpRequest) -> HttpResponse:
        """Show one lock: ``?backend=…&name=…``."""
        alias, name = request.GET.get("backend", ""), request.GET.get("name", "")
        kind = next((each for each in LOCK_KINDS if each == request.GET.get("kind")), Kind.LOCK)
        # Only the length: someone who writes the table by hand can use names that Lock refuses.
        if not 0 < len(name) <= MAX_NAME or alias not in known_aliases(request):
            raise Http404
        return self._render(
            request,
            "lock",
            title=KINDS[kind] or _("Lock"),
            subtitle=escaped(name),
            detail=lock_detail(alias, kind, name, wait_for_silent="retry" in request.GET),
            log=audit.entries(alias, kind, name),
        )

    def logged_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect from the object id of a log entry to the page about that lock."""
        alias, kind, name = parse_log_key(unquote(object_id))
        page = "lock" if name else "changelist"
        url = self._url(page)
        values = {"backend": alias, "name": name}
        if kind is not Kind.LOCK:
            values["kind"] = kind
        return HttpResponseRedirect(f"{url}?{urlencode(values)}" if name else url)

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a reason and a confirmation; then break the selected holds."""
        came_from = QueryDict(request.POST.get("back", "").removeprefix("?"))
        query = Query.parse(came_from, known_aliases(request))
        back = self._url("changelist") + query.url()
        try:
            refs = HoldRef.parse_all(request.POST.getlist("hold"))
        except ValueError as error:
            messages.warning(request, str(error))
            return HttpResponseRedirect(back)
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            force_release(request, refs, form.cleaned_data["reason"])
            return HttpResponseRedirect(back)
        unchanged, changed = current_rows(refs)
        return self._render(
            request,
            "release",
            title=_("Force release"),
            form=form,
            unchanged=unchanged,
            changed=changed,
            consequences=consequences(unchanged),
            back=back,
            query=query,
        )

    def sweep_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a confirmation; then sweep all backends."""
        back = self._url("changelist")
        if "confirmed" in request.POST:
            sweep(request, known_aliases(request))
            return HttpResponseRedirect(back)
        query = Query(aliases=tuple(known_aliases(request)))
        return self._render(request, "sweep", title=_("Sweep"), overview=overview(query), back=back)

    def _render(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        rights = {
            "may_release": request.user.has_perm(RELEASE),
            "may_sweep": request.user.has_perm(SWEEP),
        }
        return super()._render(request, f"heldlock/{template}", **rights, **context)
