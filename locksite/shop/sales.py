"""Sell seats and take them back. No seat is ever sold twice."""

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

#: Seconds that a buyer waits for the lock.
WAIT_TIMEOUT = 10.0


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

    ``pay`` takes the money. It may be slow: it runs under the lock but outside of any transaction,
    and gets the fencing token to pass on. With ``reserved_until`` the seats are only reserved
    until then, unless the order is confirmed before. ``timeout`` is the time to wait for the lock,
    in seconds; :data:`WAIT_TIMEOUT` by default.

    Raises :class:`SoldOut`, ``Event.DoesNotExist``, and :class:`distlock.LockError` if the lock
    could not be taken, or was lost before the sale was committed. Nothing is sold then.
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

    return under_event_lock(event_id, f"sale of {quantity}", sell, timeout)


def confirm(order: Order) -> bool:
    """Sell for good what was only reserved; False if the time for that is over."""
    orders = Order.objects.filter(pk=order.pk, reserved_until__gt=Now())
    return bool(orders.update(reserved_until=None))


def expired() -> QuerySet[Order]:
    """Return the orders that were not confirmed in time."""
    return Order.objects.filter(reserved_until__lte=Now())


def cancel(order: Order, among: QuerySet[Order] | None = None) -> bool:
    """Delete an order and put its seats on sale again; False if that was done already.

    With ``among``, also False if the order is not one of these any more. Raises
    :class:`distlock.LockError` as :func:`buy` does.
    """
    orders = Order.objects.all() if among is None else among

    def take_back(lock: Lock) -> bool:
        left = seats_left(order.event_id)
        with committing(lock):
            deleted, _ = orders.filter(pk=order.pk).delete()
            if deleted:
                stock = Event.objects.filter(pk=order.event_id)
                stock.fenced_update(lock.token, seats_left=left + order.quantity)
        return bool(deleted)

    return under_event_lock(order.event_id, f"return of {order.quantity}", take_back)


def seats_left(event_id: int) -> int:
    """Return how many seats the event has left; ``Event.DoesNotExist`` if there is no such."""
    return Event.objects.values_list("seats_left", flat=True).get(pk=event_id)


def under_event_lock(
    event_id: int, description: str, work: Callable[[Lock], T], timeout: float | None = None
) -> T:
    """Call ``work(lock)`` under the lock of the event, and return its result."""
    if timeout is None:
        timeout = WAIT_TIMEOUT
    finished = False
    try:
        with Lock(f"event:{event_id}", timeout=timeout, description=description) as lock:
            result = work(lock)
            finished = True
    except LockError:
        if not finished:
            raise
        # The lock was lost after the commit: the work is done and stays done.
    return result


@contextmanager
def committing(lock: Lock) -> Iterator[None]:
    """A transaction that writes what was decided under ``lock``, which the caller holds.

    With locks in the database it commits only while the lock is still held. Other backends cannot
    promise that; there the fenced update refuses a write that comes too late.
    """
    if locks["default"].capabilities.atomic:
        with lock.atomic(using=router.db_for_write(Event)):
            yield
    else:
        with transaction.atomic(durable=True):
            yield
            lock.check()
