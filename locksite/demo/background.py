"""The work behind the served site: guests buy and return seats, processes count."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from django.db import DatabaseError

from distlock import Lock, LockError
from distlock.exceptions import Cancelled
from distlock.recipes import track
from locksite.demo.controller import Controller
from locksite.demo.models import Counter
from locksite.shop import sales
from locksite.shop.models import Order
from locksite.shop.pages import PRINTING

_FIRST = "Ada Amir Bea Chidi Dunja Elif Emre Fatou Hana Ivo Jun Kaya Lena Malik Noor Otis Pia Sana"
_LAST = "Adler Bianchi Costa Dahl Egede Fofana Grau Hoang Ito Jansen Kovac Lund Moreau Nkosi Orr"

T = TypeVar("T")

#: Orders that one guest keeps; above that the oldest is returned.
MAX_ORDERS = 45
#: Orders that are printed in one go.
MAX_PRINTED = 60


def keep_adding(controller: Controller, counter: int) -> int:
    """Add 1 to the shared counter again and again; returns how often it was done."""
    lock = Lock(f"counter:{counter}", description="shared counter")

    def add_one() -> bool:
        with lock:
            value = Counter.objects.values_list("value", flat=True).get(pk=counter)
            time.sleep(random.uniform(0.1, 0.4))
            Counter.objects.filter(pk=counter).update(value=value + 1)
        return True

    done = 0
    while controller.receive(random.uniform(0.1, 0.6)) is None:
        done += bool(_ignore_outages(add_one))
    return done


def keep_buying(controller: Controller, events: list[int], guest: int, guests: int) -> int:
    """Buy seats as guest number ``guest`` of ``guests``; returns how many orders were placed."""
    orders = deque(
        order
        for order in Order.objects.filter(channel=Order.Channel.DEMO).order_by("pk")
        if order.pk % guests == guest
    )
    placed = 0
    while controller.receive(random.uniform(0.2, 1.2)) is None:
        order = _ignore_outages(partial(_buy_something, events))
        if order:
            orders.append(order)
            placed += 1
        if orders and (order is None or len(orders) > MAX_ORDERS):
            _ignore_outages(partial(sales.cancel, orders.popleft()))
    return placed


def keep_printing(controller: Controller) -> int:
    """Print the tickets that were sold, again and again; returns how many were printed."""
    printed = 0
    while controller.receive(random.uniform(1, 3)) is None:
        orders = Order.objects.order_by("-pk")[:MAX_PRINTED]
        with suppress(Cancelled):  # an operator has asked for that
            for order in track(list(orders), PRINTING, unit="orders"):
                time.sleep(0.1 * order.quantity)
                printed += order.quantity
    return printed


def _buy_something(events: list[int]) -> Order | None:
    buyer = f"{random.choice(_FIRST.split())} {random.choice(_LAST.split())}"
    seats = random.choice([1, 2, 2, 2, 3, 4])
    # Some evenings are more popular than others.
    event = events[min(int(random.expovariate(0.45)), len(events) - 1)]
    try:
        return sales.buy(event, buyer, seats, pay=_pay, channel=Order.Channel.DEMO)
    except sales.SoldOut:
        return None


def _pay(token: int) -> None:
    """Take as long as a payment service does."""
    time.sleep(random.uniform(0.2, 0.9))


def _ignore_outages(work: Callable[[], T]) -> T | None:
    """Call ``work``; return None if the database or the lock service is down."""
    try:
        return work()
    except (DatabaseError, LockError):
        return None
