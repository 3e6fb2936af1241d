"""A sale is written once, under the lock, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distlock import Lock, LockLost
from locksite.shop import sales
from locksite.shop.models import Event, Order


@pytest.fixture(params=["sqlite", "local"])
def evening(
    request: pytest.FixtureRequest, shop: Any, backend_settings: Any, settings: Any
) -> Event:
    """With locks that can guard a transaction, and with locks that cannot."""
    event = shop(10)
    settings.DISTLOCK = backend_settings(request.param)
    return event


def broken(event: Event) -> Callable[[int], None]:
    """A payment in whose course someone breaks the lock."""

    def pay(token: int) -> None:
        assert Lock(f"event:{event.pk}").force_release(token)

    return pay


def test_a_sale_takes_the_seats_and_keeps_the_token(evening: Event) -> None:
    tokens: list[int] = []
    order = sales.buy(evening.pk, "Ada", 4, pay=tokens.append)
    evening.refresh_from_db()
    assert (evening.seats_left, evening.fence) == (6, order.token)
    assert tokens == [order.token]


def test_seats_that_are_not_there_are_not_paid_for(evening: Event) -> None:
    tokens: list[int] = []
    with pytest.raises(sales.SoldOut) as caught:
        sales.buy(evening.pk, "Ada", 11, pay=tokens.append)
    assert caught.value.left == 10
    assert not tokens


def test_a_sale_whose_lock_was_broken_is_not_written(evening: Event) -> None:
    with pytest.raises(LockLost):
        sales.buy(evening.pk, "Ada", 4, pay=broken(evening))
    evening.refresh_from_db()
    assert evening.seats_left == 10
    assert not Order.objects.exists()


def test_the_shop_sells_on_after_a_lock_was_broken(evening: Event) -> None:
    with pytest.raises(LockLost):
        sales.buy(evening.pk, "Ada", 4, pay=broken(evening))
    assert sales.buy(evening.pk, "Grace", 4).token > 0


def test_a_payment_that_fails_sells_nothing_and_frees_the_lock(evening: Event) -> None:
    def pay(token: int) -> None:
        raise ConnectionError("the bank is away")

    with pytest.raises(ConnectionError):
        sales.buy(evening.pk, "Ada", 4, pay=pay)
    assert not Order.objects.exists()
    assert not Lock(f"event:{evening.pk}").locked()


def test_a_sale_that_was_committed_stands_though_the_lock_is_lost_on_the_way_out(
    evening: Event,
) -> None:
    lock = Lock(f"event:{evening.pk}")

    def sell(held: Lock) -> str:
        with sales.committing(held):
            Order.objects.create(event=evening, buyer="Ada", quantity=1)
        lock.force_release(held.token)
        return "sold"

    assert sales.under_event_lock(evening.pk, "", sell) == "sold"
    assert Order.objects.count() == 1


def test_an_order_is_taken_back_once(evening: Event) -> None:
    order = sales.buy(evening.pk, "Ada", 4)
    assert sales.cancel(order)
    assert not sales.cancel(order)
    evening.refresh_from_db()
    assert evening.seats_left == 10


def test_an_event_that_is_gone_sells_nothing(evening: Event) -> None:
    with pytest.raises(Event.DoesNotExist):
        sales.buy(evening.pk + 1, "Ada", 1)
