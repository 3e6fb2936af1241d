"""Many holds of one process: what their renewal takes; and a table of a million locks.

A process takes 1, 100 or 10,000 locks, with leases of 30 s, and holds them; then its processor time
and its requests are those of their renewal. The memory of a hold is what the process has grown by.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Plan, Row, Side, Table, Worker, turns
from benchmarks.lock_peers import LEASE
from benchmarks.locks import OURS, prepared, uncontended
from benchmarks.servers import in_child, place

KINDS = ["PostgreSQL", "MariaDB", "ZooKeeper", "etcd"]
HOLDS = [1, 100, 10_000]
#: Seconds in which renewals are watched: more than two intervals of the slowest peer.
WATCHED = 21.0
#: Seconds that a process gets to take 10,000 locks.
PATIENCE = 300.0
ROWS = 1_000_000


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


def ours(number: int) -> Side:
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
        locks.close_all()

    return Side("distlock", make, "the defaults; one thread renews all")


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
                rows = [hold(ours(number), where, 11 if plan.quick else WATCHED)]
                if kind == "PostgreSQL" and number <= 100 and not plan.quick:
                    rows.append(hold(mithril(number), where, WATCHED))
                    rows.append(hold(redis_lock(number), redis, WATCHED))
                yield Table(f"{kind}: one process holds {number:,}", "", rows, plot="")


def fill(where: Any, rows: int) -> None:
    """Copy one row of the table of locks as often as wanted."""

    def seed() -> None:
        where.setup()
        from django.db import connection

        from distlock import Lock

        with Lock("benchmark:sample", lease=3600), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM database_lock LIMIT 0")
            columns = [column[0] for column in cursor.description if column[0] != "id"]
            series = f"generate_series(1, {rows}) AS n(seq)"
            name = "'job:' || lpad(n.seq::text, 9, '0')"
            if where.kind == "MariaDB":
                series, name = f"seq_1_to_{rows} AS n", "CONCAT('job:', LPAD(n.seq, 9, '0'))"
            values = [name if column == "lock" else f"s.{column}" for column in columns]
            quoted = ", ".join(connection.ops.quote_name(column) for column in columns)
            cursor.execute(
                f"INSERT INTO database_lock ({quoted}) SELECT {', '.join(values)}"
                f" FROM database_lock AS s, {series} WHERE s.lock = 'benchmark:sample'"
            )
            cursor.execute(f"ANALYZE{' TABLE' * (where.kind == 'MariaDB')} database_lock")

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


def million(plan: Plan) -> Iterator[Table]:
    for kind in KINDS[:2]:
        with prepared(kind) as empty, prepared(kind) as full:
            fill(full, ROWS)

            def in_full(_: Any, full: Any = full) -> Any:
                return OURS.make(full)

            other = OURS._replace(make=in_full)
            sides = [uncontended("empty table", OURS), uncontended(f"{ROWS:,} rows", other)]
            rows = turns(sides, empty, plan)
            rows[1].server = rows[1].requests = None  # those of the other server
            yield Table(f"{kind}: the table has a million rows", "cycles", rows, plot="")
            seconds = Row("distlock", "`locks list --json`", extra=listed(full))
            yield Table(f"{kind}: a list of a million locks", "", [seconds], plot="")


def measure(plan: Plan) -> Iterator[Table]:
    yield from renewals(plan)
    if not plan.quick:
        yield from million(plan)
