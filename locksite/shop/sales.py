"""Selling seats and taking them back, so that none is ever sold twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from django.db import router, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from distlock import Lock, LockError, locks
from locksite.shop.models import Event, Order

T = TypeVar("T")

#: Seconds that a buyer waits for those before them.
PATIENCE = 10.0


class SoldOut(Exception):
    """Fewer seats are left than were asked for."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} seats left")
        self.left = left


def free_of_charge(token: int) -> None:
    """Take no payment."""


def buy(
    event_id: int,
    buyer: str,
    quantity: int,
    *,
    channel: str = Order.Channel.WEB,
    pay: Callable[[int], None] = free_of_charge,
    reserved_until: datetime | None = None,
    timeout: float | None = None,
) -> Order:
    """Sell seats to ``buyer`` and return the order.

    ``pay`` takes the money. It may take its time: it runs under the lock but outside of any
    transaction, and is given the fencing token to pass on. With ``reserved_until`` the seats are
    only kept until then, unless the order is confirmed before. ``timeout`` is in seconds,
    :data:`PATIENCE` by default.

    Raises :class:`SoldOut`, ``Event.DoesNotExist``, and :class:`distlock.LockError` when the lock
    could not be had or did not last until the sale was committed; nothing is sold then.
    """

    def sell(lock: Lock) -> Order:
        left = seats_left(event_id)
        if left < quantity:
            raise SoldOut(left)
        pay(lock.token)
        with committing(lock):
            stock = Event.objects.filter(pk=event_id)
            stock.fenced_update(lock.token, seats_left=left - quantity)
            return Order.objects.create(
                event_id=event_id,
                buyer=buyer,
                quantity=quantity,
                channel=channel,
                token=lock.token,
                reserved_until=reserved_until,
            )

    return alone_with(event_id, f"sale of {quantity}", sell, timeout)


def confirm(order: Order) -> bool:
    """Sell for good what was only reserved; False if the time for that is over."""
    orders = Order.objects.filter(pk=order.pk, reserved_until__gt=Now())
    return bool(orders.update(reserved_until=None))


def expired() -> QuerySet[Order]:
    """Return the orders that were not confirmed in time."""
    return Order.objects.filter(reserved_until__lte=Now())


def cancel(order: Order, among: QuerySet[Order] | None = None) -> bool:
    """Take an order back and its seats with it; False if it was taken back already.

    ``among``: or if it is none of these by then. Raises :class:`distlock.LockError` as :func:`buy`
    does.
    """
    orders = Order.objects.all() if among is None else among

    def cancel_with_retry(lock: Lock) -> bool:
        left = seats_left(order.event_id)
        with committing(lock):
            deleted, _ = orders.filter(pk=order.pk).delete()
            if deleted:
                stock = Event.objects.filter(pk=order.event_id)
                stock.fenced_update(lock.token, seats_left=left + order.quantity)
        return bool(deleted)

    return alone_with(order.event_id, f"return of {order.quantity}", cancel_with_retry)


def seats_left(event_id: int) -> int:
    """Return how many seats the event has left; ``Event.DoesNotExist`` if there is no such."""
    return Event.objects.values_list("seats_left", flat=True).get(pk=event_id)


def alone_with(
    event_id: int, description: str, work: Callable[[Lock], T], timeout: float | None = None
) -> T:
    """Do ``work`` while nobody else changes the event's seats, and return what it returns."""
    patience = PATIENCE if timeout is None else timeout
    finished = False
    try:
        with Lock(f"event:{event_id}", timeout=patience, description=description) as lock:
            result = work(lock)
            finished = True
    except LockError:
        if not finished:
            raise
        # Lost only after the commit, on the way out: the work stands.
    return result


@contextmanager
def committing(lock: Lock) -> Iterator[None]:
    """A transaction for what was worked out under ``lock``, which the caller holds.

    With locks in the database it can commit only while the lock is still held. With locks kept
    elsewhere that cannot be promised; there the fenced update refuses what comes too late.
    """
    if locks["default"].capabilities.atomic:
        with lock.atomic(using=router.db_for_write(Event)):
            yield
    else:
        with transaction.atomic(durable=True):
            yield
            lock.check()
