"""Many threads of one process, each of which takes and frees a lock of its own, over and over.

Most of the time a thread waits: for the interpreter, for a connection, for the server. A cycle of
each thread is measured, and how many sockets the process has at most.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import Plan, Row, Side, Table, Worker, alternated, quartiles, working
from benchmarks.locks import trees
from benchmarks.servers import place

THREADS, FEWER = 200, 16
SECONDS, ROUNDS = 3.0, 3


class Cycles(NamedTuple):
    """What the threads did in a block; their cycles are in seconds."""

    rate: float
    processor: float
    median: float
    p99: float
    sockets: int


def sockets() -> int:
    """Return how many sockets this process has."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return found


class Threads:
    def __init__(self, number: int, hold: Callable[[str], Any]) -> None:
        self._number, self._hold = number, hold
        self._before = sockets()

    def run(self, seconds: float) -> Cycles:
        """Let all threads cycle; the first cycle of each is not counted."""
        taken: list[list[float]] = [[] for _ in range(self._number)]
        barrier = threading.Barrier(self._number + 1)
        ends = 0.0

        def cycle(number: int) -> None:
            with self._hold(f"benchmark:thread:{number}"):
                pass
            barrier.wait()
            while (began := time.perf_counter()) < ends or not ends:
                with self._hold(f"benchmark:thread:{number}"):
                    pass
                taken[number].append(time.perf_counter() - began)

        there = [threading.Thread(target=cycle, args=(number,)) for number in range(self._number)]
        for thread in there:
            thread.start()
        barrier.wait()
        ends, used, most = time.perf_counter() + seconds, time.process_time(), 0
        while time.perf_counter() < ends:
            most = max(most, sockets())
            time.sleep(0.05)
        for thread in there:
            thread.join()
        used = time.process_time() - used
        cycles = sorted(each for of_one in taken for each in of_one)
        count = len(cycles)
        p99 = cycles[int(count * 0.99)]
        return Cycles(count / seconds, used / count, cycles[count // 2], p99, most - self._before)


@contextmanager
def threads(where: Any, number: int) -> Iterator[Threads]:
    where.setup()
    from distlock import Lock, locks

    yield Threads(number, Lock)
    locks.close_all()


def measure(plan: Plan) -> Iterator[Table]:
    sides = [
        Side(name.replace("distlock", f"{number} threads"), make)
        for number in (THREADS, FEWER)
        for name, make in trees(plan, partial(threads, number=number)).items()
    ]
    with place("etcd") as where, working(sides, where) as workers:
        seen: dict[Worker, list[Any]] = {worker: [] for worker in workers}
        for turn in range(min(ROUNDS, plan.rounds)):
            for worker in alternated(workers, turn):
                seen[worker].append(worker.try_run(SECONDS))
    rows = [row_of(worker, found, seen[workers[0]]) for worker, found in seen.items()]
    yield Table(f"etcd: {THREADS} threads of one process, a lock for each", "cycles", rows, plot="")


def row_of(worker: Worker, found: list[Any], first: list[Any]) -> Row:
    row = Row(worker.side.name, left_out=worker.left_out)
    if worker.left_out:
        return row
    row.rate = quartiles([each.rate for each in found])
    row.client = statistics.median(each.processor for each in found) * 1e6
    row.extra = {
        "p50 ms": quartiles([each.median * 1000 for each in found]),
        "p99 ms": quartiles([each.p99 * 1000 for each in found]),
        "sockets at most": max(each.sockets for each in found),
    }
    if None not in first:
        pairs = list(zip(first, found, strict=True))
        row.ratio = quartiles([one.rate / other.rate for one, other in pairs])
        row.extra["p99 ÷ its"] = quartiles([one.p99 / other.p99 for one, other in pairs])
    return row
