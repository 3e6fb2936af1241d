"""The scenarios of the demo: real processes run each of them, and the results are checked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from decimal import Decimal

from django.db.models import Sum
from django.utils import timezone

from distlock import locks
from locksite.demo import analysis, reporting
from locksite.demo.models import Counter, Entry
from locksite.demo.processes import LEASE, WorkerPool
from locksite.demo.results import Result
from locksite.shop import sales
from locksite.shop.models import Event

WORKERS = 5
ADDITIONS = 20
SEATS = 20
PRINTERS = 2
PRINTS = 8  # by each worker
EXPIRED = 3  # orders that nobody has paid for in time
REBUILDS = 2


def shared_counter(pool: WorkerPool) -> Iterator[Result]:
    """All workers add 1 to one counter: read, wait, write."""
    total = pool.size * ADDITIONS
    what = f"{pool.size} processes × {ADDITIONS} additions"
    unlocked = _count(pool, locked=False)
    yield Result(f"{what}, no lock", f"< {total}", str(unlocked), unlocked < total, 11)
    locked = _count(pool, locked=True)
    yield Result(f"{what}, under the lock", str(total), str(locked), locked == total, 11)


def _count(pool: WorkerPool, *, locked: bool) -> int:
    counter = Counter.objects.create()
    try:
        pool.run_all("add", counter=counter.pk, times=ADDITIONS, locked=locked)
        counter.refresh_from_db()
        return counter.value
    finally:
        counter.delete()


def ticket_rush(pool: WorkerPool) -> Iterator[Result]:
    """All workers buy seats for one evening until it is sold out."""
    what = f"{pool.size} buyers, {SEATS} seats"
    sold = _sell_out(pool, locked=False)
    yield Result(f"{what}, no lock", f"> {SEATS} sold", f"{sold} sold", sold > SEATS)
    sold = _sell_out(pool, locked=True)
    yield Result(f"{what}, under the lock", f"{SEATS} sold", f"{sold} sold", sold == SEATS)


def _sell_out(pool: WorkerPool, *, locked: bool) -> int:
    event = _new_event()
    try:
        pool.run_all("buy_all", event=event.pk, locked=locked)
        return int(event.orders.aggregate(sold=Sum("quantity", default=0))["sold"])
    finally:
        event.delete()


def _new_event() -> Event:
    return Event.objects.create(
        slug=f"demo-{uuid.uuid4().hex}",
        title="Demo evening",
        performer="Everyone",
        venue="Here",
        starts_at=timezone.now(),
        price=Decimal(0),
        seats=SEATS,
        seats_left=SEATS,
    )


def expired_orders(pool: WorkerPool) -> Iterator[Result]:
    """Cron starts one command on all machines at once: it runs on one of them."""
    event = _new_event()
    try:
        for buyer in range(EXPIRED):
            sales.buy(event.pk, f"Late {buyer}", 2, reserved_until=timezone.now())
        ran = pool.run_all("release_expired_orders", event=event.slug).count(True)
        event.refresh_from_db()
    finally:
        event.delete()
    left = event.seats_left
    what = f"{pool.size} × release_expired_orders"
    yield Result(f"{what}, at once", "1 runs", f"{ran} ran", ran == 1)
    yield Result("Seats on sale again", str(SEATS), str(left), left == SEATS)


def nightly_report(pool: WorkerPool) -> Iterator[Result]:
    """All workers queue the nightly report at once, then ask for it again and again."""
    rebuilds = pool.size * REBUILDS
    with reporting.unused_day() as day:
        queued = len(set(pool.run_all("queue_report", day=day.isoformat())))
        what = f"{pool.size} schedulers, one nightly report"
        yield Result(what, "1 queued", f"{queued} queued", queued == 1)
        pool.run_all("queue_rebuilds", day=day.isoformat(), times=REBUILDS)
        expected = queued + rebuilds
        with reporting.celery_worker() as worker:
            built = reporting.times_built(day, expected, worker)
    what = f"{expected} times written by Celery, in turn"
    yield Result(what, str(expected), str(built), built == expected)


def ticket_printers(pool: WorkerPool) -> Iterator[Result]:
    """All workers print tickets; there are fewer printers than workers."""
    what = f"{pool.size} processes, {PRINTERS} printers"
    most, _ = _print_tickets(pool, printers=None)
    yield Result(
        f"{what}, no semaphore", f"> {PRINTERS} at once", f"{most} at once", most > PRINTERS
    )
    most, done = _print_tickets(pool, printers=PRINTERS)
    ok = most <= PRINTERS and done == pool.size * PRINTS
    yield Result(
        f"{what}, a semaphore of {PRINTERS}", f"≤ {PRINTERS} at once", f"{most} at once", ok
    )


def _print_tickets(pool: WorkerPool, *, printers: int | None) -> tuple[int, int]:
    """Return how many printed at the same time, at the most, and how often it was done."""
    trace = uuid.uuid4().hex
    try:
        for client, worker in enumerate(pool.workers):
            worker.start(
                "print_tickets", trace=trace, client=str(client), times=PRINTS, printers=printers
            )
        for worker in pool.workers:
            worker.expect("done")
        entries = list(Entry.objects.filter(trace=trace))
    finally:
        Entry.objects.filter(trace=trace).delete()
    return analysis.most_at_once(entries), len(analysis.holds(entries))


def three_clients(pool: WorkerPool) -> Iterator[Result]:
    """A holds and is killed; B gets the lock when A's lease has ended, and then C."""
    trace = uuid.uuid4().hex
    try:
        remaining = _play_three_clients(pool, trace)
        entries = list(Entry.objects.filter(trace=trace))
    finally:
        Entry.objects.filter(trace=trace).delete()

    order = ", ".join(hold.client for hold in analysis.holds(entries))
    yield Result("A holds and is killed: holders", "A, B, C", order, order == "A, B, C", 10)

    passed = (
        analysis.first_time(entries, "B", "enter") - analysis.first_time(entries, "A", "dead")
    ).total_seconds()
    if remaining is None:  # the backend knows by itself that A has gone
        yield Result(
            "B's turn after A's death", "it comes", f"{passed:.2f} s later", passed >= 0, 10
        )
    else:
        late = passed - remaining
        # A thousandth for rounding: no database's clock is read more exactly by all.
        ok = -0.001 <= late <= LEASE
        yield Result("B's turn after A's lease", f"0 … {LEASE:g} s", f"{late:.2f} s", ok, 10)
    both = analysis.count_overlaps(entries)
    yield Result("Two at once", "never", f"{both} times" if both else "never", not both, 10)
    grow = analysis.tokens_grow(entries)
    yield Result("Fencing tokens", "grow", "grow" if grow else "do not", grow, 10)


def _play_three_clients(pool: WorkerPool, trace: str) -> float | None:
    """Return the seconds that A's lease had left after A's death; None if it has no known end."""
    a, b, c = pool.workers[:3]
    lock = f"demo:{trace}"
    lease = LEASE if locks["default"].capabilities.lease_lengths else None
    part = {"lock": lock, "trace": trace, "lease": lease}

    a.start("hold", client="A", **part)
    token = a.expect("holding")
    b.start("hold", client="B", **part)
    a.kill()
    Entry.objects.create(trace=trace, client="A", what=Entry.What.DEAD, token=token)
    remaining = locks["default"].inspect(lock).remaining

    b.expect("holding")
    c.start("hold", client="C", **part)
    b.send_line("leave")
    b.expect("done")
    c.expect("holding")
    c.send_line("leave")
    c.expect("done")
    return remaining
