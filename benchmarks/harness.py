"""Sides that do the same work in turns, each in processes of its own, and what came out.

A side is one way to do the work of a case: distlock, a peer, or the bare statements. In each round
every side works for a short block, and the order alternates from round to round, so that a machine
that is busy for a while favors nobody. A ratio compares the blocks of one round; a figure is the
median of all rounds, with the quartiles as its spread.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

processes = multiprocessing.get_context("fork")
Cycle = Callable[[], object]
#: Seconds after which a side that does not answer is left out.
LIMIT = 30.0
#: Cycles in which requests are counted, or items.
COUNTED = 20
_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1


class Block(NamedTuple):
    """What one process did in a block; times are in seconds."""

    cycles: int
    seconds: float
    processor: float


@dataclass(frozen=True)
class Side:
    """A name, what connects and yields a cycle, and the settings of a peer, for the page.

    ``make(server)`` runs in a process of its own. It may yield an object with a method
    ``run(seconds)`` in place of a cycle, as for a peer that is not written in Python. A cycle does
    so many ``items``.
    """

    name: str
    make: Callable[[Any], AbstractContextManager[Any]]
    settings: str = ""
    warm_up: float = 0.3
    items: int = 1


@dataclass
class Row:
    """The figures of a side; triples are the lower quartile, the median, the upper quartile.

    ``ratio`` is how often the first side did the work while this one did it once. Processor times
    are microseconds for each operation. ``extra`` has further columns.
    """

    side: str
    settings: str = ""
    rate: tuple[float, float, float] | None = None
    ratio: tuple[float, float, float] | None = None
    client: float | None = None
    server: float | None = None
    requests: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    left_out: str = ""


@dataclass
class Table:
    """What a case of a part has brought; ``plot`` is what its picture shows, or nothing."""

    title: str
    unit: str
    rows: list[Row]
    plot: str = "ratio"
    note: str = ""


class Plan(NamedTuple):
    """How much is measured; ``against`` is another working tree whose distlock takes part."""

    quick: bool = False
    rounds: int = 21
    seconds: float = 0.2
    against: str = ""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (low, middle, high)


def processor_of(pids: Iterable[int]) -> float:
    """Return the seconds of processor time of processes that may have ended children."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(map(int, fields[11:15])) / _TICK  # its own time and its ended children's
    return total


def die_with_parent() -> None:
    """Let the kernel end this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def block(cycle: Cycle, seconds: float) -> Block:
    """Repeat a cycle for so long."""
    gc.collect()
    used, began = time.process_time(), time.perf_counter()
    ends, count = began + seconds, 0
    while (now := time.perf_counter()) < ends:
        cycle()
        count += 1
    return Block(count, now - began, time.process_time() - used)


class Worker:
    """A process that runs one side when it is asked to; ``left_out`` is why it cannot."""

    def __init__(self, side: Side, server: Any, limit: float = LIMIT) -> None:
        self.side, self.left_out, self._limit = side, "", limit
        self._pipe, there = processes.Pipe()
        self._process = processes.Process(target=self._serve, args=(server, there))
        self._process.start()
        there.close()
        self.left_out = self._receive()

    def try_run(self, seconds: float) -> Block | None:
        """Run a block; ``left_out`` is what the side raised if it does not work."""
        try:
            return None if self.left_out else self.run(seconds)
        except RuntimeError as error:
            self.left_out = str(error)
            return None

    def run(self, seconds: float) -> Block:
        """Run a block; RuntimeError if the process fails."""
        answer: Block = self.ask("block", seconds)
        return answer

    def ask(self, what: str, amount: float) -> Any:
        self._pipe.send((what, amount))
        answer = self._receive()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        if self._process.is_alive() and not self.left_out:
            self._pipe.send(None)
            self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self) -> Any:
        try:
            if not self._pipe.poll(self._limit):
                self._process.kill()
                return f"it did not answer within {self._limit:g} s"
            return self._pipe.recv()
        except EOFError:
            return "its process has ended"

    def _serve(self, server: Any, pipe: Any) -> None:
        die_with_parent()  # not a daemon, which could have no children of its own
        warnings.simplefilter("ignore")  # those of the peers' libraries
        try:
            with self.side.make(server) as cycle:
                pipe.send("")
                while (asked := pipe.recv()) is not None:
                    what, amount = asked
                    if what == "count":
                        pipe.send([cycle() for _ in range(int(amount))] and True)
                    elif hasattr(cycle, "run"):
                        pipe.send(cycle.run(amount))
                    else:
                        pipe.send(block(cycle, amount))
        except ImportError as error:
            pipe.send(f"not installed: {error}")
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200])


@contextmanager
def working(sides: Iterable[Side], server: Any) -> Iterator[list[Worker]]:
    """Start a process for each side."""
    there: list[Worker] = []
    try:
        for side in sides:
            there.append(Worker(side, server))
        yield there
    finally:
        for worker in there:
            worker.close()


def turns(sides: Sequence[Side], server: Any, plan: Plan) -> list[Row]:
    """Measure all sides in turns, each in one process; the ratios are the first one's to each."""
    with working(sides, server) as workers:
        able = [worker for worker in workers if worker.try_run(worker.side.warm_up)]
        seen: dict[str, list[Block]] = {worker.side.name: [] for worker in able}
        served = dict.fromkeys(seen, 0.0)
        for number in range(plan.rounds):
            for worker in alternated(able, number):
                before = server.processor()
                if not worker.left_out and (done := worker.try_run(plan.seconds)):
                    seen[worker.side.name].append(done)
                served[worker.side.name] += server.processor() - before
        able = [worker for worker in able if not worker.left_out]
        counted = {worker.side.name: requests_of(worker, server) for worker in able}
    rows = []
    for worker in workers:
        side = worker.side
        row = Row(side.name, side.settings, left_out=worker.left_out)
        if not row.left_out:
            blocks = seen[side.name]
            cycles = sum(each.cycles for each in blocks)
            cycles *= side.items
            row.rate = quartiles([each.cycles * side.items / each.seconds for each in blocks])
            if not workers[0].left_out:
                found = ratios(seen[sides[0].name], blocks)
                weight = sides[0].items / side.items
                row.ratio = found and (found[0] * weight, found[1] * weight, found[2] * weight)
            row.client = sum(each.processor for each in blocks) / cycles * 1e6
            row.server = served[side.name] / cycles * 1e6 if server.pids() else None
            row.requests = counted[side.name]
        rows.append(row)
    return rows


def ratios(ours: Sequence[Block], theirs: Sequence[Block]) -> tuple[float, float, float] | None:
    """Return how our rate compares with theirs, round by round."""
    pairs = zip(ours, theirs, strict=True)
    found = [
        (one.cycles / one.seconds) / (other.cycles / other.seconds)
        for one, other in pairs
        if other.cycles
    ]
    return quartiles(found) if found else None


def alternated(sides: Sequence[Any], number: int) -> list[Any]:
    """Return the sides in an order in which each is first, last and after each other at times."""
    turned = number // 2 % max(len(sides), 1)
    order = [*sides[turned:], *sides[:turned]]
    return order[::-1] if number % 2 else order


def requests_of(worker: Worker, server: Any) -> float | None:
    """Return how many requests or statements a cycle sends, as its server counts them."""
    with server.counting() as count:
        if count is None or worker.side.name.startswith("Curator"):
            return None
        start = count()
        idle = count() - start  # what the question itself adds
        before, cycles = count(), -(-COUNTED // worker.side.items)
        try:
            worker.ask("count", cycles)
        except RuntimeError:  # what was measured counts nevertheless
            return None
        return max(count() - before - idle, 0) / cycles / worker.side.items
