"""Clients that do the same on one server, in turns, and what came out.

A round gives each of them the same number of cycles, in an order that changes from round to round.
Rates are medians of the rounds; a ratio is the median of the rounds' ratios, so that a machine that
is busy for a while disturbs no comparison.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack

#: Runs so many cycles and returns the seconds that they took.
Contestant = Callable[[int], float]
#: Connects to the servers of an address; its keys or nodes begin with a name of their own.
Peer = Callable[[str, str], AbstractContextManager[Contestant]]

_WARM_UP = 300


class Missing(Exception):
    """A peer is not installed."""


def timed(cycle: Callable[[], object]) -> Contestant:
    def run(cycles: int) -> float:
        start = time.perf_counter()
        for _ in range(cycles):
            cycle()
        return time.perf_counter() - start

    return run


def compare(
    peers: Mapping[str, Peer],
    hosts: str,
    root: str,
    *,
    rounds: int,
    cycles: int,
    least: Mapping[str, float],
    warm_up: Mapping[str, int] | None = None,
) -> bool:
    """Measure all, print what came out, and tell whether the first is as fast as it has to be.

    ``least`` is by how much it has to be faster than a peer; ``warm_up`` says who needs more cycles
    than others before it is measured.
    """
    contestants: dict[str, Contestant] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as after:
        for name, peer in peers.items():
            try:
                contestants[name] = after.enter_context(peer(hosts, root))
            except Missing as why:
                skipped[name] = str(why)
        for name, run in contestants.items():
            run((warm_up or {}).get(name, _WARM_UP))
        return _report(_measure(contestants, rounds, cycles), skipped, least)


def _measure(
    contestants: dict[str, Contestant], rounds: int, cycles: int
) -> dict[str, list[float]]:
    """Return the rate of each contestant in each round."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name in random.sample(list(contestants), len(contestants)):
            rates[name].append(cycles / contestants[name](cycles))
    return rates


def _report(
    rates: dict[str, list[float]], skipped: dict[str, str], least: Mapping[str, float]
) -> bool:
    good = True
    ours, *_ = rates
    print(f"{'':10}{'cycles/s':>10}{'slowest':>10}{'fastest':>10}   {ours} is faster by")
    for name, seen in rates.items():
        ratio = statistics.median(
            mine / theirs for mine, theirs in zip(rates[ours], seen, strict=True)
        )
        good &= ratio >= least.get(name, 0.0)
        factor = "" if name == ours else f"   {ratio:.2f}"
        line = f"{statistics.median(seen):>10.0f}{min(seen):>10.0f}{max(seen):>10.0f}"
        print(f"{name:10}{line}{factor}")
    for name, why in skipped.items():
        print(f"{name:10}skipped, {why}")
    return good
