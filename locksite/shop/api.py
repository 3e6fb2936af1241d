"""The shop for programs: JSON in, JSON out."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from distlock import LockError
from locksite.shop import pages, sales
from locksite.shop.forms import BuyForm
from locksite.shop.models import Event, Order


@never_cache
@require_safe
def events(request: HttpRequest) -> JsonResponse:
    """List the events with the seats that are left."""
    return JsonResponse(
        {
            "events": [
                {
                    "slug": event.slug,
                    "title": event.title,
                    "venue": event.venue,
                    "starts_at": event.starts_at.isoformat(),
                    "price": str(event.price),
                    "seats": event.seats,
                    "seats_left": event.seats_left,
                }
                for event in pages.events_with_sales()
            ]
        }
    )


# No cookie says who is calling, so there is nothing that another site could misuse; and a form of
# another site cannot send this content type.
@csrf_exempt
@never_cache
@require_POST
def orders(request: HttpRequest, slug: str) -> JsonResponse:
    """Buy seats: ``{"quantity": 2, "buyer": "Ada"}``.

    201 with the order, 400 for bad input, 409 when too few seats are left, 503 when the lock
    could not be had in time (nothing was booked then).
    """
    if request.content_type != "application/json":
        return _error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
    try:
        data = _object(request.body)
    except (ValueError, RecursionError):
        return _error(HTTPStatus.BAD_REQUEST, "The body must be a JSON object.")
    form = BuyForm(data)
    if not form.is_valid():
        return _error(HTTPStatus.BAD_REQUEST, "Not a valid order.", fields=form.errors)
    event = get_object_or_404(Event, slug=slug)
    try:
        order = sales.buy(event.pk, **form.cleaned_data, channel=Order.Channel.API)
    except sales.SoldOut as problem:
        return _error(HTTPStatus.CONFLICT, "Too few seats are left.", seats_left=problem.left)
    except LockError:
        response = _error(HTTPStatus.SERVICE_UNAVAILABLE, "Busy; nothing was booked. Try again.")
        response["Retry-After"] = "1"
        return response
    answer = {
        "code": str(order.code),
        "event": slug,
        "quantity": order.quantity,
        "buyer": order.buyer,
        "token": order.token,
        "url": request.build_absolute_uri(order.get_absolute_url()),
    }
    return JsonResponse(answer, status=HTTPStatus.CREATED)


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in ``body``, only its plain values; ValueError if it is none."""
    data = json.loads(body)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return {key: value for key, value in data.items() if type(value) in (str, int)}


def _error(status: int, message: str, **details: Any) -> JsonResponse:
    return JsonResponse({"error": message, **details}, status=status)
