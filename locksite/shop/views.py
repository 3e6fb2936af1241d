"""The shop's pages."""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from distlock import LockError
from locksite.shop import pages, sales
from locksite.shop.forms import BuyForm
from locksite.shop.models import Event, Order

BUSY = "Everyone wants these seats right now. Nothing was booked; please try again."


@never_cache
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    return _home(request)


@never_cache
@require_POST
def buy(request: HttpRequest, slug: str) -> HttpResponse:
    event = get_object_or_404(Event, slug=slug)
    form = BuyForm(request.POST, prefix=slug)
    if not form.is_valid():
        return _home(request, event, form, status=HTTPStatus.UNPROCESSABLE_ENTITY)
    try:
        order = sales.buy(event.pk, **form.cleaned_data)
    except sales.SoldOut as problem:
        form.add_error("quantity", _left(problem.left))
        return _home(request, event, form, status=HTTPStatus.CONFLICT)
    except LockError:
        form.add_error(None, BUSY)
        return _home(request, event, form, status=HTTPStatus.SERVICE_UNAVAILABLE)
    return redirect(order)


@never_cache
@require_safe
def ticket(request: HttpRequest, code: str) -> HttpResponse:
    order = get_object_or_404(Order.objects.select_related("event"), code=code)
    return render(request, "shop/ticket.html", {"order": order, "event": order.event})


def _home(
    request: HttpRequest,
    wanted: Event | None = None,
    filled_in: BuyForm | None = None,
    status: int = HTTPStatus.OK,
) -> HttpResponse:
    events = pages.events_with_sales()
    cards = [
        (event, filled_in if filled_in and event == wanted else BuyForm(prefix=event.slug))
        for event in events
    ]
    context = {
        "cards": cards,
        "wanted": wanted,
        "orders": pages.recent_orders(),
        "locks": pages.held_locks(),
        "notice": pages.notice(),
        "printing": pages.printing(),
        "seats_sold": sum(event.sold for event in events),  # type: ignore[attr-defined]
        "seats": sum(event.seats for event in events),
        "oversold": pages.oversold(events),
    }
    return render(request, "shop/home.html", context, status=status)


def _left(left: int) -> str:
    if left == 0:
        return "Sold out: the last seat has just gone."
    return f"Only {left} {'seat is' if left == 1 else 'seats are'} left."
