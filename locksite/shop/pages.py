"""What the shop's front page shows, in as few queries as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from django.db.models import Sum
from django.db.models.functions import Coalesce

from distlock import LockError, locks
from distlock.recipes import Config, Progress, Report
from distlock.types.lease import LockInfo
from locksite.shop.models import Event, Order

#: what an operator announces, and the progress of who prints tickets
NOTICE = Config("shop:notice")
PRINTING = "shop:printing"
MAX_LOCKS = 12
MAX_ORDERS = 8


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """The locks held at this moment; ``held`` is None if their backend is down."""

    held: Sequence[LockInfo] | None
    backend: str
    lease: float  # seconds a lease of this backend lasts


def held_locks() -> HeldLocks:
    """Ask the backend which locks are held; the page is shown even if the backend is down."""
    backend = locks["default"]
    name = type(backend).__name__.removesuffix("Backend")
    try:
        held = list(islice(backend.list(), MAX_LOCKS))
    except LockError:
        held = None
    return HeldLocks(held, name, backend.settings.lease)


def notice() -> str:
    """Return what is announced to all visitors; an operator sets it for all processes at once."""
    try:
        return str(NOTICE.get("").value)
    except LockError:  # it cannot be asked, and this process has not seen it before
        return ""


def printing() -> Report | None:
    """Return how far the printer of the tickets is, if one is at work."""
    try:
        report = Progress.get(PRINTING)
    except LockError:
        return None
    return report if report is not None and report.state == "running" else None


def events_with_sales() -> list[Event]:
    """Return the events with ``sold``, the seats in orders: counted apart from ``seats_left``."""
    events = Event.objects.annotate(sold=Coalesce(Sum("orders__quantity"), 0))
    return list(events.order_by("starts_at", "pk"))


def oversold(events: Sequence[Event]) -> int:
    """Return how many seats were sold beyond those there are."""
    return sum(max(event.sold - event.seats, 0) for event in events)  # type: ignore[attr-defined]


def recent_orders() -> list[Order]:
    return list(Order.objects.select_related("event")[:MAX_ORDERS])
