"""What does an uncontended lock cost, compared with INSERT and DELETE of a row over the driver?

    python benchmarks/cycle.py                              # starts MariaDB and PostgreSQL
    python benchmarks/cycle.py --engines sqlite --blocks 20

A cycle is ``with Lock(name): pass`` with all that belongs to it: lease, fencing token, renewal,
signals. It is measured against the least that any lock in a table does: INSERT of a row with a
unique name, then DELETE of it, over the bare driver, on an autocommit connection to the same
server with the same settings. Blocks of both are run in turns on warm connections; the figures are
medians of the blocks, and the ratio is the median of the ratios of neighbouring blocks. With
``--check`` the exit code is 1 if a ratio falls short.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import django
from django.conf import settings

#: The least ratio of a cycle's rate to that of INSERT and DELETE.
LEAST = {"postgresql": 1.0, "mariadb": 0.8, "sqlite": 0.8}
LOCK = "benchmark:cycle"
TABLE = "benchmark_cycle"
#: Seconds of each block, and of the warm-up.
BLOCK, WARM_UP = 0.4, 1.0

processes = multiprocessing.get_context("fork")
Cycle = Callable[[], None]


def postgresql(database: dict[str, Any]) -> Any:
    import psycopg

    return psycopg.connect(
        host=database["HOST"],
        port=database["PORT"],
        user=database["USER"],
        password=database["PASSWORD"],
        dbname=database["NAME"],
        autocommit=True,
    )


def mariadb(database: dict[str, Any]) -> Any:
    import MySQLdb

    return MySQLdb.connect(
        host=database["HOST"],
        port=int(database["PORT"]),
        user=database["USER"],
        password=database["PASSWORD"],
        database=database["NAME"],
        autocommit=True,
    )


def sqlite(database: dict[str, Any]) -> Any:
    import sqlite3

    return sqlite3.connect(database["NAME"], isolation_level=None)


CONNECT = {"postgresql": postgresql, "mariadb": mariadb, "sqlite": sqlite}
KEY = {"postgresql": "bigserial", "mariadb": "bigint AUTO_INCREMENT", "sqlite": "integer"}


def bare(engine: str, database: dict[str, Any]) -> Cycle:
    """Return a cycle of INSERT and DELETE on a new table."""
    cursor = CONNECT[engine](database).cursor()
    cursor.execute(
        f"CREATE TABLE {TABLE} (id {KEY[engine]} PRIMARY KEY, name varchar(564) NOT NULL UNIQUE,"
        " description varchar(1024) NOT NULL DEFAULT '')"
    )
    mark = "?" if engine == "sqlite" else "%s"
    insert = f"INSERT INTO {TABLE} (name) VALUES ({mark})"
    delete = f"DELETE FROM {TABLE} WHERE name = {mark}"

    def cycle() -> None:
        cursor.execute(insert, (LOCK,))
        cursor.execute(delete, (LOCK,))

    return cycle


def locked() -> Cycle:
    """Return a cycle that takes and leaves a lock as a program does, with an object of its own."""
    from distlock import Lock

    def cycle() -> None:
        with Lock(LOCK):
            pass

    return cycle


def rate(cycle: Cycle, seconds: float) -> float:
    """Return how many cycles there are in a second."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        cycle()
        count += 1
    return count / passed


def measure(engine: str, database: dict[str, Any], blocks: int) -> float:
    """Print the figures of an engine, and return the ratio."""
    reference, lock = bare(engine, database), locked()
    rate(lock, WARM_UP)
    rate(reference, WARM_UP)
    locks, bares = [], []
    for _ in range(blocks):
        gc.collect()
        bares.append(rate(reference, BLOCK))
        locks.append(rate(lock, BLOCK))
    ratio = statistics.median(one / other for one, other in zip(locks, bares, strict=True))
    print(
        f"{engine:10}  {statistics.median(locks):7.0f}  {statistics.median(bares):15.0f}"
        f"  {ratio:5.2f}  {LEAST[engine]:5.2f}",
        flush=True,
    )
    return ratio


def databases(engines: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every engine and Django's settings of a database there, as long as it runs."""
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgresql import PostgreSQL

    servers = {"mariadb": MariaDB, "postgresql": PostgreSQL}
    for engine in engines:
        if engine in servers:
            with contextlib.closing(servers[engine]()) as server:
                yield engine, server.start().django()
        else:
            with tempfile.TemporaryDirectory(prefix="distlock-cycle-") as folder:
                name = str(Path(folder) / "database.sqlite3")
                yield engine, {"ENGINE": "django.db.backends.sqlite3", "NAME": name}


def benchmark(engine: str, database: dict[str, Any], options: argparse.Namespace) -> None:
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["distlock"],
        USE_TZ=True,
        DISTLOCK={"default": {"BACKEND": "distlock.backends.database.DatabaseBackend"}},
    )
    django.setup()
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", verbosity=0)
    connections.close_all()
    ratio = measure(engine, database, options.blocks)
    sys.exit(1 if options.check and ratio < LEAST[engine] else 0)


def in_child(call: Callable[..., None], *args: Any) -> int:
    """Run something in a process of its own, because Django is set up once in a process."""
    process = processes.Process(target=call, args=args)
    process.start()
    process.join()
    return process.exitcode or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", nargs="+", default=list(LEAST), choices=list(LEAST))
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each kind")
    parser.add_argument("--check", action="store_true", help="fail if a ratio falls short")
    options = parser.parse_args()
    print("engine      locks/s  INSERT+DELETE/s  ratio  least")
    codes = [in_child(benchmark, *database, options) for database in databases(options.engines)]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
