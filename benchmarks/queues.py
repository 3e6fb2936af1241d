"""How many items a second go through a queue with one client, compared with its peers?

    python benchmarks/queues.py                       # starts a ZooKeeper and a PostgreSQL
    python -m benchmarks.queues --rounds 30 --check

On ZooKeeper the peer is ``kazoo.recipe.queue.LockingQueue``: put, get, consume. On PostgreSQL it is
the least that any queue in a table does: INSERT, then DELETE of the first row that nobody has
locked (``FOR UPDATE SKIP LOCKED``), over the bare driver with autocommit. It has no leases: what
is taken is gone. "single" puts, takes and acknowledges one item at a time; "batch" twelve in one
change each (put_many, get_many, ack_many). All run in turns; see peers.py. With ``--check`` the
exit code is 1 unless batches are at least 3 times as fast as kazoo, and 0.7 times as fast as bare
statements.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import Contestant, compare

BATCH = 12
BODY = {"to": "anna", "number": 7}
TEXT = '{"to": "anna", "number": 7}'


def per_item(cycle: Callable[[], object], items: int = 1) -> Contestant:
    """Return what runs a cycle for as many items as it is told."""

    def run(number: int) -> float:
        start = time.perf_counter()
        for _ in range(0, number, items):
            cycle()
        return time.perf_counter() - start

    return run


@contextmanager
def batch(hosts: str, root: str) -> Iterator[Contestant]:
    from distlock.recipes import Queue

    queue = Queue("benchmark:batch")

    def cycle() -> None:
        queue.put_many([BODY] * BATCH)
        queue.ack_many(queue.get_many(BATCH))

    yield per_item(cycle, BATCH)


@contextmanager
def single(hosts: str, root: str) -> Iterator[Contestant]:
    from distlock.recipes import Queue

    queue = Queue("benchmark:single")

    def cycle() -> None:
        queue.put(BODY)
        queue.get().ack()

    yield per_item(cycle)


@contextmanager
def kazoo(hosts: str, root: str) -> Iterator[Contestant]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=hosts)
    client.start()
    queue = client.LockingQueue(f"{root}-kazoo")

    def cycle() -> None:
        queue.put(TEXT.encode())
        queue.get()
        queue.consume()

    yield per_item(cycle)
    client.stop()
    client.close()


@contextmanager
def bare(hosts: str, root: str) -> Iterator[Contestant]:
    import psycopg
    from django.db import connections

    known = connections["default"].settings_dict
    connection = psycopg.connect(
        host=known["HOST"],
        port=known["PORT"],
        user=known["USER"],
        password=known["PASSWORD"],
        dbname=known["NAME"],
        autocommit=True,
    )
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE benchmark_queue (id bigserial PRIMARY KEY, body text NOT NULL)")

    def cycle() -> None:
        cursor.execute("INSERT INTO benchmark_queue (body) VALUES (%s)", (TEXT,))
        cursor.execute(
            "DELETE FROM benchmark_queue WHERE id = (SELECT id FROM benchmark_queue ORDER BY id"
            " FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING body"
        )
        cursor.fetchone()

    yield per_item(cycle)
    connection.close()


def configure(entry: dict[str, Any], databases: dict[str, Any]) -> None:
    """Let distlock use one backend."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            INSTALLED_APPS=["distlock"],
            DATABASES=databases,
            DISTLOCK={"default": entry},
            USE_TZ=True,
        )
        django.setup()
        return
    from distlock import locks

    locks.close_all()
    settings.DISTLOCK = {"default": entry}


@contextmanager
def postgresql() -> Iterator[str]:
    from tests.servers.postgresql import PostgreSQL

    with PostgreSQL() as server:
        options = {"database": "default", "idle": 60}
        backend = "distlock.backends.database.DatabaseBackend"
        configure({"BACKEND": backend, "OPTIONS": options}, {"default": server.django()})
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        yield ""


@contextmanager
def zookeeper() -> Iterator[str]:
    from tests.servers.zookeeper import ZooKeeper

    with ZooKeeper(properties={"tickTime": "2000"}) as server:
        backend = "distlock.backends.zookeeper.ZooKeeperBackend"
        configure({"BACKEND": backend, "LOCATION": server.hosts}, {})
        yield server.hosts


#: by server: how it is started, the peer, and by how much batches have to be faster than that
SERVERS = {
    "postgresql": (postgresql, {"bare": bare}, {"bare": 0.7}),
    "zookeeper": (zookeeper, {"kazoo": kazoo}, {"kazoo": 3.0}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--items", type=int, default=48, help="of each in each round")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    good = True
    for name in options.servers:
        print(f"\n{name}")
        start, peers, least = SERVERS[name]
        with start() as hosts:
            good &= compare(
                {"batch": batch, **peers, "single": single},
                hosts,
                f"/benchmark-{uuid.uuid4().hex[:8]}",
                rounds=options.rounds,
                cycles=options.items,
                least=least,
            )
            from distlock import locks

            locks.close_all()
    if options.check and not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
