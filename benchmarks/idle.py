"""An item is put while its consumer, another process, has been waiting: how long until it has it.

The consumer waits in the library's own call, for about a second before each item. The time begins
when the item is put, before that is committed, and ends when the consumer can look at it.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.harness import (
    LIMIT,
    Plan,
    Row,
    Side,
    Table,
    Worker,
    alternated,
    die_with_parent,
    processes,
    quartiles,
    working,
)
from benchmarks.locks import installed, trees
from benchmarks.servers import place

#: Items of each side, and seconds between two of them.
ITEMS, PAUSE = 50, 1.0
BODY = {"to": "anna", "number": 7}
#: What runs in the process of a consumer, and calls the other one when it has an item.
Consume = Callable[[Any, Callable[[], None]], None]
PROCRASTINATE = "procrastinate.contrib.django"


class Deliveries:
    """Puts an item when it is asked to run; returns the seconds until the consumer has it."""

    def __init__(self, put: Callable[[], object], consumer: Any) -> None:
        self._put, self._consumer = put, consumer

    def run(self, _: float) -> float:
        began = time.monotonic()
        self._put()
        if not self._consumer.poll(LIMIT / 2):
            raise RuntimeError(f"an item did not come within {LIMIT / 2:g} s")
        return float(self._consumer.recv()) - began


@contextmanager
def consumed(consume: Consume, where: Any) -> Iterator[Any]:
    """Start a consumer in a process of its own; yields the pipe of the moments when it has one."""
    ours, theirs = processes.Pipe()

    def work() -> None:
        die_with_parent()
        consume(where, lambda: theirs.send(time.monotonic()))

    process = processes.Process(target=work)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _letters(where: Any, name: str) -> Any:
    where.setup()
    from distlock.recipes import Queue

    return Queue(name)


def _consume(where: Any, note: Callable[[], None], name: str) -> None:
    letters = _letters(where, name)
    while True:
        item = letters.get()
        note()
        item.ack()


@contextmanager
def ours(where: Any) -> Iterator[Deliveries]:
    name = f"benchmark:idle:{os.getpid()}"
    with consumed(partial(_consume, name=name), where) as consumer:
        letters = _letters(where, name)
        yield Deliveries(partial(letters.put, BODY), consumer)
        from distlock import locks

        locks.close_all()


def _task(where: Any, note: Callable[[], None]) -> tuple[Any, Any]:
    """Return procrastinate's application, and a task of it."""
    where.setup(PROCRASTINATE)
    from procrastinate.contrib.django import app

    logging.getLogger("procrastinate").setLevel(logging.ERROR)

    @app.task(queue="idle", name="idle")
    def task(number: int) -> None:
        note()

    return app, task


def _work(where: Any, note: Callable[[], None]) -> None:
    app, _ = _task(where, note)
    app.with_connector(app.connector.get_worker_connector()).run_worker(
        concurrency=1, install_signal_handlers=False, delete_jobs="always"
    )


@contextmanager
def procrastinate(where: Any) -> Iterator[Deliveries]:
    with consumed(_work, where) as consumer:
        _, task = _task(where, lambda: None)
        yield Deliveries(partial(task.defer, number=7), consumer)


def measure(plan: Plan) -> Iterator[Table]:
    mine = [Side(name, make, "`put()`; `get()`") for name, make in trees(plan, ours).items()]
    worker = "`defer()`; `run_worker(concurrency=1)`, which listens to PostgreSQL's notifications"
    with place("PostgreSQL") as postgresql, place("MariaDB") as mariadb:
        postgresql.migrate(*installed([PROCRASTINATE]))
        mariadb.migrate()
        peers = [*mine, Side("procrastinate", procrastinate, worker)]
        with working(peers, postgresql) as first, working(mine, mariadb) as second:
            seen = deliver([*first, *second], plan)
        yield table_of("PostgreSQL", first, seen)
        yield table_of("MariaDB", second, seen)


def deliver(workers: list[Worker], plan: Plan) -> dict[Worker, list[float]]:
    """Put an item to each in turns; return the seconds that each has taken."""
    seen: dict[Worker, list[float]] = {worker: [] for worker in workers}
    for number in range(-2, min(ITEMS, plan.rounds * 3)):
        for worker in alternated(workers, max(number, 0)):
            time.sleep(PAUSE / len(workers))
            taken: Any = worker.try_run(0)
            if taken is not None and number >= 0:
                seen[worker].append(taken * 1000)
    return seen


def table_of(kind: str, workers: list[Worker], seen: dict[Worker, list[float]]) -> Table:
    rows = []
    for worker in workers:
        row = Row(worker.side.name, worker.side.settings, left_out=worker.left_out)
        rows.append(row)
        if row.left_out:
            continue
        taken = sorted(seen[worker])
        if not workers[0].left_out:
            pairs = zip(seen[worker], seen[workers[0]], strict=True)
            row.ratio = quartiles([theirs / mine for theirs, mine in pairs])
        row.extra = {
            "median ms": statistics.median(taken),
            "p99 ms": taken[int(len(taken) * 0.99)],
        }
    note = "django-tasks-db, the only other queue here that knows MariaDB, asks once a second."
    title = f"{kind}: an item is put to an idle consumer"
    return Table(title, "items", rows, note=note if kind == "MariaDB" else "")
