"""Many processes contend for one lock without pause: who gets how many turns, and how many in all?

    python benchmarks/contention.py                                  # starts MariaDB and PostgreSQL
    python benchmarks/contention.py --processes 2 8 32 --seconds 10
    python benchmarks/contention.py --url postgres://user:password@host/database

Every process takes the lock, does nothing, and frees it, over and over. "Fair" is the fewest turns
of a process divided by the most; "kept" is the turns per second of all processes, compared with the
first row. Tokens and a shared counter watch that no two processes hold the lock at once. With
``--check`` the exit code is 1 unless fair is at least 0.9 and kept at least 0.8 in every row.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import c_longlong
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import django
from django.conf import settings

LEAST_FAIR, LEAST_KEPT = 0.9, 0.8
LOCK = "benchmark:contention"
#: Seconds that the processes contend before turns are counted.
WARM_UP = 2.0

processes = multiprocessing.get_context("fork")


class Row(NamedTuple):
    """What came out for one number of processes; waits are in seconds."""

    count: int
    rate: float
    fewest: int
    most: int
    longest_wait: float
    sessions: int


class Referee:
    """Shared memory in which a double grant shows."""

    def __init__(self) -> None:
        self.token = processes.Value(c_longlong, 0, lock=False)
        self.inside = processes.Value(c_longlong, 0, lock=False)

    def enter(self, token: int) -> None:
        if self.inside.value or token <= self.token.value:
            os.write(2, f"granted twice: {token} after {self.token.value}\n".encode())
            os._exit(3)
        self.inside.value = os.getpid()
        self.token.value = token

    def leave(self) -> None:
        self.inside.value = 0


def contend(referee: Referee, ready: Any, start: Any, seconds: float, results: Any) -> None:
    """Take turns until the time is up, and report how many, and the longest wait for one."""
    from distlock import Lock

    lock = Lock(LOCK)
    with lock:
        pass  # connections are open
    ready.release()
    start.wait()
    begins = time.monotonic() + WARM_UP
    ends = begins + seconds
    turns, longest = 0, 0.0
    asked = time.monotonic()
    while asked < ends:
        with lock:
            assert lock.token is not None
            referee.enter(lock.token)
            got = time.monotonic()
            if begins <= got < ends:
                turns += 1
                longest = max(longest, got - max(asked, begins))
            referee.leave()
        asked = time.monotonic()
    results.put((turns, longest))


def measure(count: int, seconds: float, sessions: Callable[[], int]) -> Row:
    """Let ``count`` processes contend for so many seconds."""
    referee, ready = Referee(), processes.Semaphore(0)
    start, results = processes.Event(), processes.Queue()
    arguments = (referee, ready, start, seconds, results)
    crowd = [processes.Process(target=contend, args=arguments) for _ in range(count)]
    for process in crowd:
        process.start()
    for _ in crowd:
        ready.acquire()
    start.set()
    time.sleep(WARM_UP + seconds / 2)
    seen = sessions()
    answers = [results.get(timeout=seconds + 60) for _ in crowd]
    for process in crowd:
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)
    turns = [answer[0] for answer in answers]
    longest = max(answer[1] for answer in answers)
    return Row(count, sum(turns) / seconds, min(turns), max(turns), longest, seen)


def sessions_of(alias: str) -> int:
    """Return how many sessions there are with the database, this one not counted."""
    from django.db import connections

    tables = {
        "postgresql": "pg_stat_activity WHERE datname = current_database()",
        "mysql": "information_schema.processlist WHERE db = DATABASE()",
    }
    connection = connections[alias]
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {tables[connection.vendor]}")
            return int(cursor.fetchone()[0]) - 1
    finally:
        connection.close()


def report(rows: Iterator[Row]) -> bool:
    """Print the rows as they come; False if one falls short."""
    print("processes  turns/s  kept  fewest : most    fair  longest wait  sessions", flush=True)
    first, good = None, True
    for row in rows:
        first = first or row
        fair, kept = row.fewest / max(row.most, 1), row.rate / first.rate
        good = good and fair >= LEAST_FAIR and kept >= LEAST_KEPT
        print(
            f"{row.count:9}  {row.rate:7.0f}  {kept:4.2f}  {row.fewest:6} : {row.most:<6}"
            f"  {fair:4.2f}  {row.longest_wait * 1000:9.0f} ms  {row.sessions:8}",
            flush=True,
        )
    return good


def databases(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a title and Django's settings of every database to measure, as long as it runs."""
    if options.url:
        import dj_database_url

        yield options.url.rpartition("@")[2], dict(dj_database_url.parse(options.url))
        return
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgresql import PostgreSQL

    known = {"mariadb": MariaDB, "postgresql": PostgreSQL}
    for name in options.servers:
        with contextlib.closing(known[name]()) as server:
            yield name, server.start().django()


def in_child(call: Callable[..., None], *args: Any) -> int:
    """Run something in a process of its own, because Django is set up once in a process."""
    process = processes.Process(target=call, args=args)
    process.start()
    process.join()
    return process.exitcode or 0


def benchmark(title: str, database: dict[str, Any], options: argparse.Namespace) -> None:
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["distlock"],
        USE_TZ=True,
        DISTLOCK={
            "default": {
                "BACKEND": "distlock.backends.database.DatabaseBackend",
                "OPTIONS": {"wait": options.wait},
            }
        },
    )
    django.setup()
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", verbosity=0)
    connections.close_all()
    print(f"\n{title}, wait={options.wait}, {options.seconds:g} s each")
    rows = (
        measure(count, options.seconds, lambda: sessions_of("default"))
        for count in options.processes
    )
    good = report(rows)
    sys.exit(0 if good or not options.check else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--servers", nargs="+", default=["mariadb", "postgresql"])
    parser.add_argument("--url", help="measure this database instead of starting servers")
    parser.add_argument("--wait", choices=["auto", "native", "poll"], default="auto")
    parser.add_argument("--check", action="store_true", help="fail if a row falls short")
    options = parser.parse_args()
    codes = [in_child(benchmark, *database, options) for database in databases(options)]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
