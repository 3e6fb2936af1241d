"""The pages of the admin about locks: the list, one lock, force release, sweep; the front page."""

from __future__ import annotations

from dataclasses import replace

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import get_language
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
from distlock.admin.locks import KINDS, LABELS, BrokenHold, HoldRef, lock_detail
from distlock.admin.overview import HELD_FOR_CHOICES, BackendCard, Overview, Query, overview
from distlock.admin.panel import PanelAdmin, known_aliases
from distlock.concurrency.clock import clock
from distlock.conf import locks
from distlock.models import HeldLock
from distlock.types.lease import LOCK_KINDS, Kind, LockKey
from distlock.types.query import DisplayStatus, Order
from distlock.types.values import MAX_NAME, escaped

RELEASE = "distlock.force_release_lock"
SWEEP = "distlock.sweep_locks"
#: Holds that are broken at once, of all that a filter finds.
MOST_AT_ONCE = 200
#: Characters of what an address says beside the name of a lock.
_MAX_PARAMETER = 2000
#: Seconds for which the front page of the admin shows what it has found out.
HEALTH_SECONDS = 5.0
#: The results of the front page, and their times, by language and aliases.
_health: dict[tuple[str | None, tuple[str, ...]], tuple[float, list[BackendCard]]] = {}


class HeldLockAdmin(PanelAdmin):
    """The pages about held locks. Only a POST changes anything, each with its own permission."""

    view_permission = "distlock.view_databaselock"

    def __init__(self, model: type[HeldLock], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        if admin_site.index_template is None:  # else the site draws its front page by itself
            admin_site.index_template = "admin/distlock/index.html"

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
            "heldlock/list",
            title=_("Held locks"),
            query=query,
            overview=overview(query, wait_for_silent="retry" in request.GET),
            statuses=[(status, LABELS[status]) for status in DisplayStatus],
            kinds=[(kind, KINDS[kind] or _("Lock")) for kind in LOCK_KINDS],
            held_for_choices=HELD_FOR_CHOICES,
            most_at_once=MOST_AT_ONCE,
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
            "heldlock/lock",
            title=KINDS[kind] or _("Lock"),
            subtitle=escaped(name),
            detail=lock_detail(
                LockKey(alias, kind, name),
                BrokenHold.parse(request.GET.get("broken", "")),
                wait_for_silent="retry" in request.GET,
            ),
            back=self._url("changelist") + self._list_query(request, request.GET).url(),
            log=audit.entries(alias, kind, name),
        )

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a reason and a confirmation; then break the selected holds."""
        query = self._list_query(request, request.POST)
        back = self._url("changelist") + query.url()
        found: Overview | None = None
        try:
            if "all" in request.POST and "confirmed" not in request.POST:
                found = overview(replace(query, size=MOST_AT_ONCE, start=None, backwards=False))
                if not found.rows and query.start:  # a search that goes on from page to page
                    found = overview(replace(query, size=MOST_AT_ONCE))
                rows = [row for row in found.rows if not row.suspended]
                holds = HoldRef.parse_all(str(row.ref) for row in rows)
            else:
                holds = HoldRef.parse_all(request.POST.getlist("hold"))
        except ValueError as error:
            messages.warning(request, str(error))
            return HttpResponseRedirect(back)
        form = ReasonForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            return HttpResponseRedirect(
                self._release(request, holds, form.cleaned_data["reason"], query)
            )
        unchanged, changed = (rows, []) if found else current_rows(holds)
        return self._render(
            request,
            "heldlock/release",
            title=_("Force release"),
            form=form,
            unchanged=unchanged,
            changed=changed,
            consequences=consequences(unchanged),
            left_out=found.found - found.shown if found else 0,
            found=found,
            back=back,
            query=query,
        )

    def _release(self, request: HttpRequest, refs: list[HoldRef], reason: str, query: Query) -> str:
        """Break these holds; return the address of the list, or of the lock if it is one."""
        before = current_rows(refs)[0] if len(refs) == 1 else []
        released = force_release(request, refs, reason)
        if len(refs) > 1:
            return self._url("changelist") + query.url()
        more = {"back": query.url()}
        if released and before and (broken := BrokenHold.of(before[0])):
            more["broken"] = broken.signed()
        return self._address(refs[0].key, **more)

    def _list_query(self, request: HttpRequest, sent: QueryDict) -> Query:
        """Return the list from which somebody came to a page, as ``back`` says."""
        return Query.parse(
            QueryDict(sent.get("back", "").removeprefix("?")), known_aliases(request)
        )

    def _address(self, key: LockKey, **more: str) -> str:
        alias, kind, name = key
        values = {"backend": alias, "name": name, **({} if kind is Kind.LOCK else {"kind": kind})}
        # No browser or proxy takes an address of any length, and names may be long.
        values |= {key: value for key, value in more.items() if len(value) <= _MAX_PARAMETER}
        return f"{self._url('lock')}?{urlencode(values)}"

    def sweep_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a confirmation; then sweep all backends."""
        back = self._url("changelist")
        if "confirmed" in request.POST:
            sweep(request, known_aliases(request))
            return HttpResponseRedirect(back)
        query = Query(aliases=tuple(known_aliases(request)))
        return self._render(
            request, "heldlock/sweep", title=_("Sweep"), overview=overview(query), back=back
        )


def health() -> list[BackendCard]:
    """Return the cards of all backends, some seconds old at most; see call_backends().

    ImproperlyConfigured if the setting is wrong.
    """
    aliases = tuple(locks)
    key = get_language(), aliases
    if key not in _health or clock() - _health[key][0] >= HEALTH_SECONDS:
        cards = overview(Query(aliases=aliases, size=1), wait_for_silent=False).cards
        _health[key] = clock(), cards
    return _health[key][1]
