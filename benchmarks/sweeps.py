"""How many locks a process takes while another one sweeps 100,000 that have expired.

The one process takes and frees a lock of its own without pause: before the sweep, as long as it
goes on, and after it. The table is filled with expired rows again for each round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Block, Row, Side, Table, Worker, quartiles, ratios
from benchmarks.locks import OURS, uncontended

ROWS, ROUNDS = 100_000, 2
#: Seconds that takes are counted before a sweep and after it, and in one step while it goes on.
ALONE, STEP = 2.0, 0.25
#: Seconds that a sweep gets.
PATIENCE = 120.0


class Sweep:
    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def run(self, _: float) -> tuple[float, float, int]:
        """Sweep; return the seconds, those of this processor time, and how many had expired."""
        began, used = time.perf_counter(), time.process_time()
        swept = self._backend.sweep()
        return time.perf_counter() - began, time.process_time() - used, swept.expired


@contextmanager
def sweeping(where: Any) -> Iterator[Sweep]:
    where.setup()
    from distlock import locks

    yield Sweep(locks["default"])
    locks.close_all()


def taken_meanwhile(taker: Worker, sweeper: Worker) -> tuple[Block, tuple[float, float, int]]:
    """Let one take while the other sweeps; return what both did."""
    swept: list[Any] = []
    asking = threading.Thread(target=lambda: swept.append(sweeper.try_run(0)))
    blocks = []
    asking.start()
    while asking.is_alive():
        blocks.append(taker.run(STEP))
    asking.join()
    if swept != [None]:
        return Block(*map(sum, zip(*blocks, strict=True))), swept[0]
    raise RuntimeError(sweeper.left_out)


def measure(where: Any, fill: Any) -> Table:
    """Return the table of a database; ``fill()`` is that of the part."""
    taker = Worker(uncontended("distlock", OURS), where)
    sweeper = Worker(Side("sweep", sweeping), where, PATIENCE)
    during, alone, sweeps = [], [], []
    try:
        taker.run(0.3)
        for _ in range(ROUNDS):
            fill(where, range(1, ROWS + 1), expired=True)
            before = taker.run(ALONE)
            meanwhile, swept = taken_meanwhile(taker, sweeper)
            after = taker.run(ALONE)
            during.append(meanwhile)
            alone.append(Block(*map(sum, zip(before, after, strict=True))))
            sweeps.append(swept)
    finally:
        taker.close()
        sweeper.close()
    if any(expired < ROWS for *_, expired in sweeps):
        raise RuntimeError(f"a sweep has left expired rows: {sweeps}")
    rows = []
    for name, blocks in (("during a sweep", during), ("without a sweep", alone)):
        row = Row(name, ratio=ratios(during, blocks))
        row.rate = quartiles([block.cycles / block.seconds for block in blocks])
        row.client = sum(b.processor for b in blocks) / sum(b.cycles for b in blocks) * 1e6
        rows.append(row)
    rows[0].extra = {
        "s of the sweep": quartiles([seconds for seconds, *_ in sweeps]),
        "processor s of its client": quartiles([used for _, used, _ in sweeps]),
    }
    title = f"{where.kind}: locks are taken while {ROWS:,} expired ones are swept"
    return Table(title, "cycles", rows, plot="")
