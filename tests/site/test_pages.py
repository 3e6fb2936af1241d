"""The shop's pages, as a visitor meets them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from distlock import Lock
from distlock.recipes import Progress
from locksite.shop import sales
from locksite.shop.models import Event, Order
from locksite.shop.pages import NOTICE, PRINTING
from locksite.shop.season import open_season

HOSTILE = '<script>alert("x")</script>'


def order_form(event: Event, **values: object) -> dict[str, object]:
    values = {"quantity": 2, "buyer": "Ada Lovelace", **values}
    return {f"{event.slug}-{name}": value for name, value in values.items()}


def test_an_empty_shop_says_how_to_open_the_season(client: Client, shop: Any) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "demo --serve" in page.content.decode()


def test_the_season_can_be_opened_twice(client: Client, shop: Any) -> None:
    assert open_season() == 6
    assert open_season() == 0
    assert client.get("/").content.decode().count("Get seats") == 6


def test_events_are_shown_in_the_order_of_their_dates(client: Client, shop: Any) -> None:
    open_season()
    shown = [event.slug for event, _ in client.get("/").context["cards"]]
    assert shown == list(Event.objects.order_by("starts_at").values_list("slug", flat=True))


def test_the_page_shows_seats_and_orders(client: Client, shop: Any) -> None:
    event = shop(10)
    sales.buy(event.pk, "Grace Hopper", 3)
    text = client.get("/").content.decode()
    assert "<strong>7</strong> of 10 seats left" in text
    assert "3 seats · Recital" in text
    assert "Grace H." in text
    assert "Hopper" not in text  # strangers see no more than that


def test_the_page_shows_who_holds_a_lock_right_now(client: Client, shop: Any) -> None:
    with Lock("event:1", description="sale of 2"):
        text = client.get("/").content.decode()
    assert "event:1" in text
    assert "sale of 2" in text
    assert "event:1" not in client.get("/").content.decode()


def test_what_an_operator_announces_is_on_the_page(client: Client, shop: Any) -> None:
    NOTICE.set(f"Doors at seven {HOSTILE}")
    text = client.get("/").content.decode()
    assert "Doors at seven" in text
    assert HOSTILE not in text


def test_the_page_shows_how_far_the_printer_is_while_it_prints(client: Client, shop: Any) -> None:
    with Progress(PRINTING, total=8, unit="orders"):
        text = client.get("/").content.decode()
        assert re.search(
            r'<progress max="8(.0)?" value="0(.0)?" aria-label="Tickets printed">', text
        )
        assert "0 of 8 orders" in text
    assert "Tickets printed" not in client.get("/").content.decode()


def test_hostile_names_do_no_harm(client: Client, shop: Any) -> None:
    event = shop(10)
    with Lock(HOSTILE, description=HOSTILE):
        page = client.post("/events/recital/buy/", order_form(event, buyer=HOSTILE), follow=True)
        assert HOSTILE not in page.content.decode()
        assert HOSTILE not in client.get("/").content.decode()


def test_buying_leads_to_the_ticket(client: Client, shop: Any) -> None:
    event = shop(10)
    page = client.post("/events/recital/buy/", order_form(event), follow=True)
    order = Order.objects.get()
    assert page.redirect_chain == [(f"/orders/{order.code}/", 302)]
    assert "Ada Lovelace" in page.content.decode()
    assert (order.quantity, order.channel) == (2, "web")
    event.refresh_from_db()
    assert (event.seats_left, event.fence) == (8, order.token)


@pytest.mark.parametrize(
    "values",
    [
        {"quantity": 0},
        {"quantity": 7},
        {"quantity": -1},
        {"quantity": "two"},
        {"buyer": ""},
        {"buyer": "  "},
        {"buyer": "Ada\x07"},
        {"buyer": "A" * 61},
    ],
)
def test_what_cannot_be_an_order_is_refused_with_a_reason(
    client: Client, shop: Any, values: dict[str, object]
) -> None:
    event = shop(10)
    page = client.post("/events/recital/buy/", order_form(event, **values))
    assert page.status_code == 422
    assert 'role="alert"' in page.content.decode()
    assert not Order.objects.exists()


def test_too_few_seats_are_a_conflict(client: Client, shop: Any) -> None:
    event = shop(1)
    page = client.post("/events/recital/buy/", order_form(event, quantity=2))
    assert page.status_code == 409
    assert "Only 1 seat is left." in page.content.decode()


def test_a_sold_out_evening_takes_no_more_orders(client: Client, shop: Any) -> None:
    event = shop(1)
    client.post("/events/recital/buy/", order_form(event, quantity=1))
    assert "Get seats" not in client.get("/").content.decode()
    page = client.post("/events/recital/buy/", order_form(event, quantity=1))
    assert page.status_code == 409
    assert "Sold out" in page.content.decode()
    assert Order.objects.count() == 1


def test_a_buyer_who_cannot_wait_longer_is_told_so(
    client: Client, shop: Any, child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = shop(10)
    monkeypatch.setattr(sales, "WAIT_TIMEOUT", 0.05)
    holder = child("tests.site.holders:hold", f"event:{event.pk}")
    assert holder.line() == "held"
    page = client.post("/events/recital/buy/", order_form(event))
    assert page.status_code == 503
    assert "Nothing was booked" in page.content.decode()
    assert not Order.objects.exists()


def test_a_lock_backend_that_is_away_spoils_no_page(
    client: Client, shop: Any, settings: Any, backend_settings: Any, proxied: Any
) -> None:
    event = shop(10)
    settings.DISTLOCK = backend_settings("postgresql")
    proxied("postgresql").refuse()
    page = client.get("/")
    assert page.status_code == 200
    assert "cannot be asked" in page.content.decode()
    assert client.post("/events/recital/buy/", order_form(event)).status_code == 503


def test_nothing_is_bought_by_looking(client: Client, shop: Any) -> None:
    shop(10)
    assert client.get("/events/recital/buy/").status_code == 405
    assert client.get("/orders/00000000-0000-0000-0000-000000000000/").status_code == 404
    assert client.post("/events/other/buy/").status_code == 404


def test_a_form_of_another_site_buys_nothing(shop: Any) -> None:
    event = shop(10)
    stranger = Client(enforce_csrf_checks=True)
    assert stranger.post("/events/recital/buy/", order_form(event)).status_code == 403
