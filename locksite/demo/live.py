"""The site, served while processes buy and count behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from django.urls import reverse

from locksite.demo.models import Counter
from locksite.demo.operator import NAME, operator
from locksite.demo.processes import WorkerPool
from locksite.demo.server import HOST, site_server
from locksite.shop.models import Event
from locksite.shop.pages import events_with_sales, oversold
from locksite.shop.season import open_season

GUESTS = 4
COUNTERS = 2
PRINTERS = 1


def serve(port: int | None, write: Callable[[str], object]) -> str:
    """Serve until KeyboardInterrupt; returns a summary of what went on meanwhile.

    Raises OSError if ``port`` was asked for and is taken.
    """
    open_season()
    server = site_server(port)
    counter = Counter.objects.create()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    try:
        with operator() as password, WorkerPool(GUESTS + COUNTERS + PRINTERS) as pool:
            _start_work(pool, counter.pk)
            thread.start()
            write(f"\n  The shop is open: http://{HOST}:{server.server_port}/")
            write(
                f"  {GUESTS} guests buy, {COUNTERS} processes count, {PRINTERS} prints."
                " Ctrl-C closes it.\n"
            )
            if password:
                address = reverse("admin:distlock_heldlock_changelist")
                write(f"  Its locks, for operators: http://{HOST}:{server.server_port}{address}")
                write(f"  Sign in as {NAME} with the password {password}\n")
            try:
                while thread.is_alive():
                    # Python may miss a Ctrl-C that comes in the moment in which the wait begins.
                    thread.join(0.5)
            except KeyboardInterrupt:
                write("")
            done = _end_work(pool)
        counter.refresh_from_db()
        return (
            f"  Orders: {sum(done[:GUESTS])}; seats oversold: {oversold(events_with_sales())}."
            f" Additions: {sum(done[GUESTS : GUESTS + COUNTERS])}, counted: {counter.value}.\n"
        )
    finally:
        if thread.is_alive():
            server.shutdown()
        server.server_close()
        counter.delete()


def _start_work(pool: WorkerPool, counter: int) -> None:
    events = list(Event.objects.values_list("pk", flat=True))
    for guest, worker in enumerate(pool.workers[:GUESTS]):
        worker.start("keep_buying", events=events, guest=guest, guests=GUESTS)
    for worker in pool.workers[GUESTS : GUESTS + COUNTERS]:
        worker.start("keep_adding", counter=counter)
    for worker in pool.workers[GUESTS + COUNTERS :]:
        worker.start("keep_printing")


def _end_work(pool: WorkerPool) -> Sequence[int]:
    for worker in pool.workers:
        worker.send_line("enough")
    return pool.results()
