"""Seats that were only reserved come back, once, by whichever machine's cron was first."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from distlock import Lock, locks
from distlock.commands.exit_codes import BUSY
from locksite.shop import sales
from locksite.shop.models import Event, Order

NAME = "release_expired_orders:*"


@pytest.fixture
def evening(shop: Any) -> Event:
    event: Event = shop(10)
    return event


def reserve(event: Event, seconds: float) -> Order:
    until = timezone.now() + timedelta(seconds=seconds)
    return sales.buy(event.pk, "Ada", 2, reserved_until=until)


def release() -> str:
    out = io.StringIO()
    call_command("release_expired_orders", stdout=out)
    return out.getvalue()


def test_only_what_was_not_confirmed_in_time_comes_back(evening: Event) -> None:
    late, paid, sold = reserve(evening, -1), reserve(evening, 600), reserve(evening, 600)
    reserve(evening, 600)
    Order.objects.filter(pk=sold.pk).update(reserved_until=None)
    assert sales.confirm(paid)
    assert not sales.confirm(late)
    assert release() == "2 seats are on sale again.\n"
    evening.refresh_from_db()
    assert evening.seats_left == 4
    assert not Order.objects.filter(pk=late.pk).exists()


def test_what_is_confirmed_at_the_last_moment_is_not_taken_back(evening: Event) -> None:
    order = reserve(evening, -1)
    late = sales.expired()
    assert late.get() == order
    Order.objects.filter(pk=order.pk).update(reserved_until=None)
    assert not sales.cancel(order, among=late)
    evening.refresh_from_db()
    assert evening.seats_left == 8


def test_a_machine_that_is_late_does_not_do_it_again(evening: Event) -> None:
    release()
    with pytest.raises(CommandError, match="was left by") as raised:
        release()
    assert raised.value.returncode == BUSY
    assert locks["default"].inspect(NAME).remaining > 20


def test_when_it_loses_its_lock_it_stops(evening: Event, monkeypatch: Any) -> None:
    orders = [reserve(evening, -1), reserve(evening, -1)]
    cancel = sales.cancel

    def cancel_and_break(order: Order, **more: Any) -> bool:
        done = cancel(order, **more)
        assert Lock(NAME).force_release(Lock(NAME).info().token or 0)
        return done

    monkeypatch.setattr(sales, "cancel", cancel_and_break)
    with pytest.raises(CommandError, match="was broken"):
        release()
    assert Order.objects.count() == len(orders) - 1
