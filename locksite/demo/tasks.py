"""What the worker processes do, with the lock and, to show what comes of it, without."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from django.core.management import CommandError, call_command
from django.db import transaction

from distlock import Lock
from distlock.commands.exit_codes import BUSY
from locksite.demo import background
from locksite.demo.models import Counter, Entry
from locksite.demo.worker import Boss
from locksite.reports.tasks import nightly_report, rebuild_report
from locksite.shop import sales
from locksite.shop.models import Event, Order

#: Seconds between reading and writing: long enough for another process to come in between.
THOUGHT = 0.01


def think(token: int = 0) -> None:
    time.sleep(THOUGHT)


def add(boss: Boss, counter: int, times: int, locked: bool) -> None:
    """Add 1 to the counter, ``times`` times; nothing protects it but the lock, if any."""
    lock = Lock(f"counter:{counter}")
    for _ in range(times):
        with lock if locked else nullcontext():
            value = Counter.objects.values_list("value", flat=True).get(pk=counter)
            think()
            Counter.objects.filter(pk=counter).update(value=value + 1)


def hold(boss: Boss, lock: str, trace: str, client: str, lease: float | None) -> None:
    """Wait for the lock, then hold it and log every step until told to let go."""

    def note(what: str) -> None:
        Entry.objects.create(trace=trace, client=client, what=what, token=held.token)

    with Lock(lock, lease=lease, description=f"client {client}") as held:
        note(Entry.What.ENTER)
        boss.say(holding=held.token)
        while boss.hear(0.05) is None:
            held.check()
            note(Entry.What.WORK)
        note(Entry.What.LEAVE)


def buy_all(boss: Boss, event: int, locked: bool) -> int:
    """Buy one seat after the other until none is left; returns how many."""
    buy = _buy_in_turn if locked else _buy_carelessly
    bought = 0
    with suppress(sales.SoldOut):
        # Without the lock the number of seats left may go up again; there has to be an end to it.
        while bought < Event.objects.get(pk=event).seats:
            buy(event)
            bought += 1
    return bought


def queue_report(boss: Boss, day: str) -> str:
    """Queue the report of a day; returns the id of the Celery task that is to write it."""
    return str(nightly_report.delay(day).id)


def queue_rebuilds(boss: Boss, day: str, times: int) -> None:
    """Queue the report of a day to be written again, so many times."""
    for _ in range(times):
        rebuild_report.delay(day)


def _buy_in_turn(event: int) -> None:
    sales.buy(event, "Demo", 1, pay=think, timeout=60)


def _buy_carelessly(event: int) -> None:
    """Sell a seat as a shop without locks does."""
    left = sales.seats_left(event)
    if left < 1:
        raise sales.SoldOut(left)
    think()
    with transaction.atomic():
        Event.objects.filter(pk=event).update(seats_left=left - 1)
        Order.objects.create(event_id=event, buyer="Demo", quantity=1)


def release_expired_orders(boss: Boss, event: str) -> bool:
    """Run the shop's command, as cron does; False if it is another process's turn."""
    try:
        call_command("release_expired_orders", event=event, verbosity=0)
    except CommandError as error:
        if error.returncode != BUSY:
            raise
        return False
    return True


TASKS: Mapping[str, Callable[..., Any]] = {
    "add": add,
    "hold": hold,
    "buy_all": buy_all,
    "release_expired_orders": release_expired_orders,
    "queue_report": queue_report,
    "queue_rebuilds": queue_rebuilds,
    "keep_adding": background.keep_adding,
    "keep_buying": background.keep_buying,
}
