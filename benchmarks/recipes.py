"""Semaphores, read/write locks, elections, double barriers, queues and configuration.

On ZooKeeper they are compared with kazoo's and Curator's, on PostgreSQL with queues and settings
in tables. All items of a queue go through one process, which puts 24 and takes them one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import Any

from benchmarks import idle
from benchmarks.bare import connect, own_seats
from benchmarks.contention import Limits, compare
from benchmarks.harness import Plan, Row, Side, Table, processes, turns
from benchmarks.lock_peers import LockPeer, Peer, curator, of_objects
from benchmarks.locks import installed, prepared, trees
from benchmarks.servers import place

#: Seats of the semaphores.
SEATS = 3
#: Items of a queue in each cycle, and processes at a barrier.
ITEMS, PARTIES = 24, 8
_HANGS = (
    "`DoubleBarrier`; it hangs if two clients make its node `ready` and one of them leaves between"
    " the two; a crowd that hangs is tried once more"
)
_SHARED = f"{PARTIES} processes share {SEATS} seats of a semaphore"
BODY = {"to": "anna", "number": 7}
TEXT = '{"to": "anna", "number": 7}'
_CONSTANCE = {
    "CONSTANCE_BACKEND": "constance.backends.database.DatabaseBackend",
    "CONSTANCE_CONFIG": {"HOST": ("mx0", "the host", str)},
}
_TASKS = {"TASKS": {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}}
_PROCRASTINATE = "procrastinate.contrib.django"


def odd() -> bool:
    """Return whether this process is a second, fourth, … one of its crowd: it writes."""
    return int(processes.current_process().name.rpartition("-")[2]) % 2 == 1


@contextmanager
def _ours(recipe: str, where: Any, number: int = SEATS) -> Iterator[Peer]:
    where.setup()
    from distlock import locks
    from distlock.recipes import DoubleBarrier, Election, RWLock, Semaphore

    name = f"benchmark:{recipe}"
    yield {
        "semaphore": lambda: of_objects(Semaphore(name, number)),
        "reader": lambda: of_objects(RWLock(name).reader()),
        "writer": lambda: of_objects(RWLock(name).writer()),
        "rw": lambda: of_objects(RWLock(name).writer() if odd() else RWLock(name).reader()),
        "election": lambda: Peer(partial(Election, name), lambda: False),
        "barrier": lambda: Peer(partial(DoubleBarrier, name, number), lambda: False),
    }[recipe]()
    locks.close_all()


@contextmanager
def _kazoo(recipe: str, where: Any, number: int = SEATS) -> Iterator[Peer]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=where.server.hosts)
    client.start()
    path, numbers = f"/benchmark-kazoo-{recipe}", count()
    of_crowd = processes.current_process().name.partition("-")[0]  # one that hung leaves nodes

    @contextmanager
    def meeting() -> Iterator[None]:
        barrier = client.DoubleBarrier(f"{path}/{of_crowd}/{next(numbers)}", number)
        barrier.enter()
        yield
        barrier.leave()

    yield {
        "semaphore": lambda: of_objects(client.Semaphore(path, "benchmark", number)),
        "reader": lambda: of_objects(client.ReadLock(path, "benchmark")),
        "writer": lambda: of_objects(client.WriteLock(path, "benchmark")),
        "rw": lambda: of_objects(
            (client.WriteLock if odd() else client.ReadLock)(path, "benchmark")
        ),
        "election": lambda: of_objects(client.Election(path, "benchmark").lock),
        "barrier": lambda: Peer(meeting, lambda: False),
    }[recipe]()
    client.stop()
    client.close()


def _as_side(
    name: str, make: Callable[[Any], AbstractContextManager[Peer]], settings: str = ""
) -> Side:
    @contextmanager
    def cycling(where: Any) -> Iterator[Any]:
        with make(where) as peer:

            def cycle() -> None:
                with peer.hold():
                    pass

            yield cycle

    return Side(name, cycling, settings)


def on_zookeeper(plan: Plan) -> Iterator[Table]:
    with place("ZooKeeper") as where:
        for recipe in () if plan.quick else ("semaphore", "reader", "writer"):
            makes = trees(plan, partial(_ours, recipe)) | {"kazoo": partial(_kazoo, recipe)}
            sides = [
                *(_as_side(name, make) for name, make in makes.items()),
                Side("Curator", partial(curator, recipe=recipe), warm_up=1.0),
            ]
            titles = {"reader": "read lock", "writer": "write lock"}
            title = f"ZooKeeper: a {titles.get(recipe, recipe)}, one client"
            yield Table(title, "cycles", turns(sides, where, plan))
        recipes = {
            "semaphore": (_SHARED, SEATS),
            "rw": (f"{PARTIES // 2} readers and {PARTIES // 2} writers share a read/write lock", 0),
            "election": ("an election goes round among 4 candidates", 0),
            "barrier": (f"{PARTIES} processes meet at a double barrier", PARTIES),
        }
        for recipe, (title, number) in recipes.items():
            if plan.quick and recipe != "election":
                continue
            makes = trees(plan, partial(_ours, recipe, number=number))
            makes["kazoo"] = partial(_kazoo, recipe, number=number)
            peers = {
                name: LockPeer(make, "", exclusive=recipe == "election")
                for name, make in makes.items()
            }
            if recipe == "barrier":
                peers["kazoo"] = peers["kazoo"]._replace(settings=_HANGS)
            limits = Limits(600, turns=15) if recipe == "barrier" else Limits(2.0)
            rows = compare(peers, where, 4 if recipe == "election" else PARTIES, plan, limits)
            yield Table(
                f"ZooKeeper: {title}", "turns", rows if recipe == "election" else shared(rows)
            )


def shared(rows: list[Row]) -> list[Row]:
    """Leave out how a turn was handed over, where several are inside at once."""
    for row in rows:
        row.extra.pop("hand-over ms", None)
        row.extra.pop("p99 ms", None)
    return rows


def semaphores(plan: Plan) -> Iterator[Table]:
    """Compare semaphores in a database with their statements, asked without waiting."""
    for kind in ("PostgreSQL", "MariaDB"):
        with prepared(kind) as where:
            peers = {
                name: LockPeer(make, "", exclusive=False)
                for name, make in trees(plan, partial(_ours, "semaphore")).items()
            }
            peers["its own statements"] = LockPeer(
                partial(own_seats, seats=SEATS),
                "bare clients: what a cycle asks, each for a semaphore of its own",
                exclusive=False,
            )
            rows = compare(peers, where, PARTIES, plan, Limits(2.0))
            yield Table(f"{kind}: {_SHARED}", "turns", shared(rows))


@contextmanager
def queue(where: Any, batch: int = 1) -> Iterator[Callable[[], object]]:
    where.setup()
    from distlock import locks
    from distlock.recipes import Queue

    letters = Queue("benchmark:queue")

    def cycle() -> None:
        for _ in range(0, ITEMS, batch):
            letters.put(BODY) if batch == 1 else letters.put_many([BODY] * batch)
        for _ in range(0, ITEMS, batch):
            letters.get().ack() if batch == 1 else letters.ack_many(letters.get_many(batch))

    yield cycle
    locks.close_all()


@contextmanager
def bare_queue(where: Any) -> Iterator[Callable[[], object]]:
    """INSERT; an UPDATE that leases the first item that nobody has locked; DELETE."""
    connection = connect(where)
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE benchmark_queue"
        " (id bigserial PRIMARY KEY, body text NOT NULL, until timestamptz)"
    )
    lease = (
        "UPDATE benchmark_queue SET until = now() + interval '30 s' WHERE id = (SELECT id FROM"
        " benchmark_queue WHERE until IS NULL OR until < now() ORDER BY id"
        " FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING id, body"
    )

    def cycle() -> None:
        for _ in range(ITEMS):
            cursor.execute("INSERT INTO benchmark_queue (body) VALUES (%s)", (TEXT,))
        for _ in range(ITEMS):
            (number, _), *_ = cursor.execute(lease).fetchall()
            cursor.execute("DELETE FROM benchmark_queue WHERE id = %s", (number,))

    yield cycle
    connection.close()


@contextmanager
def procrastinate(where: Any) -> Iterator[Callable[[], object]]:
    where.setup(_PROCRASTINATE)
    from procrastinate.contrib.django import app

    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    done: list[int] = []

    @app.task(queue="benchmark", name="benchmark")
    def task(number: int) -> None:
        done.append(number)

    working = app.with_connector(app.connector.get_worker_connector())

    def cycle() -> None:
        done.clear()
        for number in range(ITEMS):
            task.defer(number=number)
        working.run_worker(
            wait=False,
            concurrency=1,
            listen_notify=False,
            install_signal_handlers=False,
            delete_jobs="always",
        )
        if len(done) != ITEMS:
            raise RuntimeError(f"{len(done)} of {ITEMS} jobs were done")

    yield cycle


def note(number: int) -> None:
    """The task of the queue of Django's tasks."""


@contextmanager
def django_tasks_db(where: Any) -> Iterator[Callable[[], object]]:
    where.setup("django_tasks_db", **_TASKS)
    try:
        from django.tasks import task
    except ImportError:
        from django_tasks import task
    from django_tasks_db.management.commands.db_worker import Worker

    logging.getLogger("django_tasks_db").setLevel(logging.ERROR)
    global note
    note = task(note)

    def cycle() -> None:
        for number in range(ITEMS):
            note.enqueue(number)
        worker = Worker(
            queue_names=["default"],
            interval=0,
            batch=True,
            backend_name="default",
            startup_delay=False,
            max_tasks=None,
            worker_id="benchmark",
            excluded_queue_names=[],
        )
        worker.run()
        if worker._run_tasks != ITEMS:
            raise RuntimeError(f"{worker._run_tasks} of {ITEMS} tasks were run")

    yield cycle


@contextmanager
def kazoo_queue(where: Any) -> Iterator[Callable[[], object]]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=where.server.hosts)
    client.start()
    letters = client.LockingQueue("/benchmark-kazoo-queue")

    def cycle() -> None:
        for _ in range(ITEMS):
            letters.put(TEXT.encode())
        for _ in range(ITEMS):
            letters.get()
            letters.consume()

    yield cycle
    client.stop()
    client.close()


def queues(plan: Plan) -> Iterator[Table]:
    batch = Side("distlock, by twelve", partial(queue, batch=12), "`put_many`, …", items=ITEMS)
    ours = [
        Side(name, make, "`put()`, `get()`, `ack()`", items=ITEMS)
        for name, make in trees(plan, queue).items()
    ]
    with place("PostgreSQL") as where:
        where.migrate(*installed(["django_tasks_db", _PROCRASTINATE]), **_TASKS)
        peers = [
            Side("bare statements", bare_queue, "INSERT, UPDATE as a lease, DELETE", items=ITEMS),
            Side(
                "procrastinate",
                procrastinate,
                "`defer()`, `run_worker(wait=False, concurrency=1, delete_jobs='always')`",
                items=ITEMS,
            ),
            Side(
                "django-tasks-db",
                django_tasks_db,
                "`enqueue()`, the worker of `db_worker --batch`; results stay in the table",
                items=ITEMS,
            ),
        ]
        yield Table("PostgreSQL: a queue", "items", turns([*ours, *peers, batch], where, plan))
    if plan.quick:
        return
    with place("ZooKeeper") as where:
        peers = [Side("kazoo", kazoo_queue, "`LockingQueue`", items=ITEMS)]
        yield Table("ZooKeeper: a queue", "items", turns([*ours, *peers, batch], where, plan))


@contextmanager
def config(where: Any, writing: bool) -> Iterator[Callable[[], object]]:
    where.setup()
    from distlock import locks
    from distlock.recipes import Config

    mailer, numbers = Config("benchmark"), count()
    mailer.set({"host": "mx0"})
    yield (lambda: mailer.set({"host": f"mx{next(numbers)}"})) if writing else mailer.get
    locks.close_all()


@contextmanager
def constance(where: Any, writing: bool) -> Iterator[Callable[[], object]]:
    where.setup("constance", **_CONSTANCE)
    from constance import config

    numbers = count()
    config.HOST = "mx0"

    def write() -> None:
        config.HOST = f"mx{next(numbers)}"

    yield write if writing else lambda: config.HOST


def configurations(plan: Plan) -> Iterator[Table]:
    with place("PostgreSQL") as where:
        where.migrate(*installed(["constance"]), **_CONSTANCE)
        for writing, title in ((False, "is read"), (True, "is set")):
            sides = [
                Side("distlock", partial(config, writing=writing), "`Config`, with its history"),
                Side(
                    "django-constance",
                    partial(constance, writing=writing),
                    "its backend in the database, no cache",
                ),
            ]
            rows = turns(sides, where, plan)
            yield Table(f"PostgreSQL: a configuration value {title}", "times", rows)


def measure(plan: Plan) -> Iterator[Table]:
    yield from queues(plan)
    yield from on_zookeeper(plan)
    if not plan.quick:
        yield from idle.measure(plan)
        yield from semaphores(plan)
        yield from configurations(plan)
