"""The shop for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from locksite.shop import sales
from locksite.shop.models import Order

ORDERS = "/api/events/recital/orders/"


def post(client: Client, body: object, content_type: str = "application/json") -> Any:
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return client.post(ORDERS, data, content_type=content_type)


def test_events_are_listed_with_their_seats(client: Client, shop: Any) -> None:
    event = shop(10)
    sales.buy(event.pk, "Ada", 4)
    (listed,) = client.get("/api/events/").json()["events"]
    assert (listed["slug"], listed["price"]) == ("recital", "24.00")
    assert (listed["seats"], listed["seats_left"]) == (10, 6)


def test_an_order_is_answered_with_its_code_and_token(client: Client, shop: Any) -> None:
    event = shop(10)
    answer = post(client, {"quantity": 2, "buyer": "Ada"})
    assert answer.status_code == 201
    order = Order.objects.get()
    event.refresh_from_db()
    assert answer.json() == {
        "code": str(order.code),
        "event": "recital",
        "quantity": 2,
        "buyer": "Ada",
        "token": event.fence,
        "url": f"http://testserver/orders/{order.code}/",
    }
    assert order.channel == "api"


@pytest.mark.parametrize(
    "body",
    [
        " ",
        "nonsense",
        b"\xff",
        "[" * 100_000,
        "[]",
        {},
        {"quantity": 2},
        {"buyer": "Ada"},
        {"quantity": 0, "buyer": "Ada"},
        {"quantity": True, "buyer": "Ada"},
        {"quantity": 1.5, "buyer": "Ada"},
        {"quantity": [1], "buyer": "Ada"},
        {"quantity": 1, "buyer": ["Ada"]},
        {"quantity": 1, "buyer": "\ud800"},
        {"quantity": 1, "buyer": "\x00"},
    ],
    ids=lambda body: str(body)[:40].encode("ascii", "backslashreplace").decode(),
)
def test_bad_input_is_refused_and_sells_nothing(client: Client, shop: Any, body: object) -> None:
    shop(10)
    answer = post(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert not Order.objects.exists()


def test_too_few_seats_are_a_conflict_that_says_how_many(client: Client, shop: Any) -> None:
    shop(1)
    answer = post(client, {"quantity": 2, "buyer": "Ada"})
    assert answer.status_code == 409
    assert answer.json()["seats_left"] == 1


def test_a_busy_shop_says_when_to_come_back(
    client: Client, shop: Any, child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = shop(10)
    monkeypatch.setattr(sales, "WAIT_TIMEOUT", 0.05)
    holder = child("tests.site.holders:hold", f"event:{event.pk}")
    assert holder.line() == "held"
    answer = post(client, {"quantity": 2, "buyer": "Ada"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert not Order.objects.exists()


def test_only_json_is_understood(client: Client, shop: Any) -> None:
    shop(10)
    assert post(client, "quantity=1", "application/x-www-form-urlencoded").status_code == 415
    assert client.get(ORDERS).status_code == 405


def test_an_unknown_event_is_not_found(client: Client, shop: Any) -> None:
    assert post(client, {"quantity": 1, "buyer": "Ada"}).status_code == 404
