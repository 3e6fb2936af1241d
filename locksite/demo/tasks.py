"""The tasks of the worker processes; some also run without the lock, for comparison."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from django.core.management import CommandError, call_command
from django.db import transaction

from distlock import Lock
from distlock.commands.exit_codes import BUSY
from distlock.recipes import Semaphore
from locksite.demo import background, family_tasks
from locksite.demo.controller import Controller
from locksite.demo.models import Counter, Entry
from locksite.reports.tasks import nightly_report, rebuild_report
from locksite.shop import sales
from locksite.shop.models import Event, Order

#: Seconds between reading and writing: long enough for another process to come in between.
WORK_SECONDS = 0.01


def simulate_work(token: int = 0) -> None:
    time.sleep(WORK_SECONDS)


def add(controller: Controller, counter: int, times: int, locked: bool) -> None:
    """Add 1 to the counter, ``times`` times; nothing protects it but the lock, if any."""
    lock = Lock(f"counter:{counter}")
    for _ in range(times):
        with lock if locked else nullcontext():
            value = Counter.objects.values_list("value", flat=True).get(pk=counter)
            simulate_work()
            Counter.objects.filter(pk=counter).update(value=value + 1)


def hold(controller: Controller, lock: str, trace: str, client: str, lease: float | None) -> None:
    """Wait for the lock, then hold it and log every step until the next line of input."""

    def note(what: str) -> None:
        Entry.objects.create(trace=trace, client=client, what=what, token=held.token)

    with Lock(lock, lease=lease, description=f"client {client}") as held:
        note(Entry.What.ENTER)
        controller.send(holding=held.token)
        while controller.receive(0.05) is None:
            held.check()
            note(Entry.What.WORK)
        note(Entry.What.LEAVE)


#: what try_once() has got, until leave()
_got: dict[str, Lock] = {}


def try_once(controller: Controller, lock: str) -> bool:
    """Take the lock if it is free now, and keep it; False if someone else has it."""
    tried = Lock(lock)
    if tried.acquire(blocking=False):
        _got[lock] = tried
    return lock in _got


def leave(controller: Controller, lock: str) -> bool:
    """Leave the lock that try_once() has got; False if that was not this process."""
    if (got := _got.pop(lock, None)) is None:
        return False
    got.release()
    return True


def hold_until_told(controller: Controller, lock: str, lease: float | None) -> None:
    """Hold the lock until the next line of input."""
    with Lock(lock, lease=lease):
        controller.send(holding=True)
        controller.receive()


def wait_in_line(controller: Controller, lock: str) -> int:
    """Wait for the lock, and leave it at once; returns the token."""
    controller.send(asks=True)
    with Lock(lock) as held:
        return held.token


def threads_wait(controller: Controller, lock: str, threads: int) -> int:
    """Have many threads wait for the lock; returns how many of them were served."""
    served: list[int] = []

    def serve() -> None:
        with Lock(lock) as held:
            served.append(held.token)

    waiting = [threading.Thread(target=serve) for _ in range(threads)]
    for thread in waiting:
        thread.start()
    controller.send(ask=True)
    for thread in waiting:
        thread.join()
    return len(set(served))


def print_tickets(
    controller: Controller, trace: str, client: str, times: int, printers: int | None
) -> None:
    """Print, as many at a time as there are printers (None: nobody minds), and log it."""
    semaphore = None if printers is None else Semaphore(f"demo:{trace}", printers)
    for number in range(times):
        with semaphore or nullcontext():
            # Without a semaphore there is no token that tells one time from another.
            token = semaphore.token if semaphore else number + 1
            for what in (Entry.What.ENTER, Entry.What.LEAVE):
                Entry.objects.create(trace=trace, client=client, what=what, token=token)
                simulate_work()


def buy_all(controller: Controller, event: int, locked: bool) -> int:
    """Buy seats one by one until none is left; returns how many were bought."""
    buy = _buy_under_lock if locked else _buy_without_lock
    bought = 0
    with suppress(sales.SoldOut):
        # Without the lock the number of seats left may go up again, so there is a limit.
        while bought < Event.objects.get(pk=event).seats:
            buy(event)
            bought += 1
    return bought


def queue_report(controller: Controller, day: str) -> str:
    """Queue the report of a day; returns the id of the Celery task that is to write it."""
    return str(nightly_report.delay(day).id)


def queue_rebuilds(controller: Controller, day: str, times: int) -> None:
    """Queue the report of a day to be written again, so many times."""
    for _ in range(times):
        rebuild_report.delay(day)


def _buy_under_lock(event: int) -> None:
    sales.buy(event, "Demo", 1, pay=simulate_work, timeout=60)


def _buy_without_lock(event: int) -> None:
    """Sell a seat without a lock, as a naive shop does."""
    left = sales.seats_left(event)
    if left < 1:
        raise sales.SoldOut(left)
    simulate_work()
    with transaction.atomic():
        Event.objects.filter(pk=event).update(seats_left=left - 1)
        Order.objects.create(event_id=event, buyer="Demo", quantity=1)


def release_expired_orders(controller: Controller, event: str) -> bool:
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
    "try_once": try_once,
    "leave": leave,
    "hold_until_told": hold_until_told,
    "wait_in_line": wait_in_line,
    "threads_wait": threads_wait,
    "print_tickets": print_tickets,
    "buy_all": buy_all,
    "release_expired_orders": release_expired_orders,
    "queue_report": queue_report,
    "queue_rebuilds": queue_rebuilds,
    "keep_adding": background.keep_adding,
    "keep_buying": background.keep_buying,
    "keep_printing": background.keep_printing,
    **family_tasks.TASKS,
}
