"""Many holds of one process: what their renewal takes; and tables of many locks.

A process takes 1, 100 or 10,000 locks, with leases of 30 s, and holds them; then its processor time
and its requests are those of their renewal. The memory of a hold is what the process has grown by.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import sweeps, threads
from benchmarks.harness import Plan, Row, Side, Table, Worker, quartiles, turns
from benchmarks.lock_peers import LEASE
from benchmarks.locks import OURS, prepared, trees, uncontended
from benchmarks.servers import in_child, place

KINDS = ["PostgreSQL", "MariaDB", "ZooKeeper", "etcd"]
HOLDS = [1, 100, 10_000]
#: Seconds in which renewals are watched: more than two intervals of the slowest peer.
WATCHED = 21.0
#: Seconds that a process gets to take 10,000 locks.
PATIENCE = 300.0
#: Rows of a large table, how many of them a list has, and how often a page of it is asked for.
ROWS, LISTED, PAGES = 1_000_000, 500_000, 5
PAGE = "/admin/distlock/heldlock/"


class Holding:
    """A process with many holds; ``run()`` tells what it has used while nothing else went on."""

    def __init__(self, take: Callable[[int], object], number: int) -> None:
        take(-1)  # connections are open
        before, began = resident(), time.monotonic()
        for each in range(number):
            take(each)
        self.taken = time.monotonic() - began
        self.memory = (resident() - before) / number

    def run(self, seconds: float) -> dict[str, float]:
        used = time.process_time()
        time.sleep(seconds)
        used = time.process_time() - used
        return {
            "processor ms a minute": used / seconds * 60_000,
            "bytes a hold": self.memory,
            "threads": threading.active_count(),
            "s to take them": self.taken,
        }


def resident() -> int:
    """Return how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def ours(number: int, plan: Plan) -> list[Side]:
    @contextmanager
    def make(where: Any) -> Iterator[Holding]:
        where.setup()
        from distlock import Lock, locks

        held: list[Any] = []

        def take(each: int) -> None:
            held.append(Lock(f"benchmark:hold:{each}"))
            if not held[-1].acquire(blocking=False):
                raise RuntimeError("a lock that nobody has was not granted")

        yield Holding(take, number)
        for lock in held[:101]:
            lock.release()
        logging.disable()  # the others are lost, as would be logged for each
        locks.close_all()

    note = "the defaults; one thread renews all"
    return [Side(name, made, note) for name, made in trees(plan, make).items()]


def mithril(number: int) -> Side:
    @contextmanager
    def make(where: Any) -> Iterator[Holding]:
        import structlog
        from mithril import Lock
        from mithril.backends import PostgresBackend
        from sqlalchemy import create_engine

        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        backend = PostgresBackend(create_engine(f"postgresql+psycopg2://{where.url}"))
        held: list[Any] = []

        def take(each: int) -> None:
            held.append(Lock(f"hold:{each}", backend=backend, ttl=LEASE, auto_renewal=True))
            held[-1].acquire()

        yield Holding(take, number)

    return Side("mithril-locks", make, "`ttl=30, auto_renewal=True`")


def redis_lock(number: int) -> Side:
    @contextmanager
    def make(where: Any) -> Iterator[Holding]:
        import redis
        from redis_lock import Lock

        client = redis.Redis.from_url(where.server.url)
        held: list[Any] = []

        def take(each: int) -> None:
            held.append(Lock(client, f"hold:{each}", expire=LEASE, auto_renewal=True))
            held[-1].acquire()

        yield Holding(take, number)

    return Side("python-redis-lock", make, "`expire=30, auto_renewal=True`, in Redis")


def hold(side: Side, where: Any, seconds: float) -> Row:
    """Let one process hold its locks, and tell what their renewal takes."""
    row = Row(side.name, side.settings)
    worker = Worker(side, where, PATIENCE)
    try:
        if worker.left_out:
            row.left_out = worker.left_out
            return row
        with where.counting() as count:
            before, used = count() if count else 0, where.processor()
            row.extra = worker.run(seconds)  # type: ignore[assignment]
            if count:
                row.extra["requests a minute"] = (count() - before) / seconds * 60
            server = (where.processor() - used) / seconds * 60_000
            row.extra["server ms a minute"] = server
    except RuntimeError as error:
        row.left_out = str(error)
    finally:
        worker.close()
    return row


def renewals(plan: Plan) -> Iterator[Table]:
    for kind in KINDS[:1] if plan.quick else KINDS:
        with ExitStack() as after:
            where = after.enter_context(prepared(kind))
            redis = None
            if kind == "PostgreSQL" and not plan.quick:
                redis = after.enter_context(place("Redis"))
            for number in [100] if plan.quick else HOLDS:
                seconds = 11 if plan.quick else WATCHED
                rows = [hold(side, where, seconds) for side in ours(number, plan)]
                if kind == "PostgreSQL" and number <= 100 and not plan.quick:
                    rows.append(hold(mithril(number), where, WATCHED))
                    rows.append(hold(redis_lock(number), redis, WATCHED))
                yield Table(f"{kind}: one process holds {number:,}", "", rows, plot="")


def fill(where: Any, numbers: range, expired: bool = False) -> None:
    """Copy one row of the table of locks for each number; expired ones replace all others."""

    def seed() -> None:
        where.setup()
        from django.db import connection

        from distlock import Lock

        with connection.cursor() as cursor:
            if expired:
                cursor.execute("TRUNCATE TABLE database_lock")
            with Lock("benchmark:sample", lease=3600):
                copy(connection, cursor)
            cursor.execute(f"ANALYZE{' TABLE' * (where.kind == 'MariaDB')} database_lock")

    def copy(connection: Any, cursor: Any) -> None:
        cursor.execute("SELECT * FROM database_lock LIMIT 0")
        columns = [column[0] for column in cursor.description if column[0] != "id"]
        series = f"generate_series({numbers.start}, {numbers.stop - 1}) AS n(seq)"
        name = "'job:' || lpad(n.seq::text, 9, '0')"
        if where.kind == "MariaDB":
            series = f"seq_{numbers.start}_to_{numbers.stop - 1} AS n"
            name = "CONCAT('job:', LPAD(n.seq, 9, '0'))"
        values = {column: f"s.{column}" for column in columns} | {"lock": name}
        if expired:
            values["expires_at"] = "s.expires_at - INTERVAL '7200' SECOND"
        quoted = ", ".join(connection.ops.quote_name(column) for column in columns)
        cursor.execute(
            f"INSERT INTO database_lock ({quoted}) SELECT {', '.join(values.values())}"
            f" FROM database_lock AS s, {series} WHERE s.lock = 'benchmark:sample'"
        )

    in_child(seed)


def listed(where: Any) -> dict[str, float]:
    """Return how long a list of all locks takes, until its first line and until its last one."""

    def work() -> dict[str, float]:
        where.setup()
        import resource

        from django.core.management import call_command

        class First(io.StringIO):
            at = 0.0

            def write(self, text: str) -> int:
                self.at = self.at or time.monotonic()
                return len(text)

        output, began = First(), time.monotonic()
        call_command("locks", "list", "--json", stdout=output)
        return {
            "s to the first line": output.at - began,
            "s to the last": time.monotonic() - began,
            "MB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    return in_child(work)  # type: ignore[no-any-return]


def page(where: Any) -> list[float]:
    """Return the seconds of the admin's first page of locks, some times over."""

    def work() -> list[float]:
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django

        django.setup()
        from django.test import override_settings

        from benchmarks import admin
        from tests.databases import ALIASES, publish

        kind = where.kind.lower()
        with admin.databases([]):  # that of the users and sessions
            publish(ALIASES[kind], where.django)
            options = {**where.distlock["OPTIONS"], "database": ALIASES[kind]}
            entry = {**where.distlock, "OPTIONS": options}
            with override_settings(DISTLOCK={"default": entry}, ALLOWED_HOSTS=["localhost"]):
                get = admin.client().get
                admin.seconds_of(get, PAGE)  # compiles its templates, opens its sessions
                return [admin.seconds_of(get, PAGE) for _ in range(PAGES)]

    return in_child(work)  # type: ignore[no-any-return]


def many_rows(plan: Plan) -> Iterator[Table]:
    for kind in KINDS[:2]:
        with prepared(kind) as empty, prepared(kind) as full:
            fill(full, range(1, LISTED + 1))
            seconds = Row("distlock", "`locks list --json`", extra=listed(full))
            yield Table(f"{kind}: a list of {LISTED:,} held locks", "", [seconds], plot="")
            seconds = Row("distlock", f"`{PAGE}`", extra={"s": quartiles(page(full))})
            title = f"{kind}: the admin's first page of {LISTED:,} held locks"
            yield Table(title, "", [seconds], plot="")
            fill(full, range(LISTED + 1, ROWS + 1))

            def in_full(_: Any, full: Any = full) -> Any:
                return OURS.make(full)

            other = OURS._replace(make=in_full)
            sides = [uncontended("empty table", OURS), uncontended(f"{ROWS:,} rows", other)]
            rows = turns(sides, empty, plan)
            rows[1].server = rows[1].requests = None  # those of the other server
            yield Table(f"{kind}: the table has a million rows", "cycles", rows, plot="")
            yield sweeps.measure(empty, fill)


def measure(plan: Plan) -> Iterator[Table]:
    yield from renewals(plan)
    if not plan.quick:
        yield from threads.measure(plan)
        yield from many_rows(plan)
