"""The granted permits in a rate limiter's record, and since when they count.

No clock of another machine is trusted, see rate_limiter.py.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import groupby
from typing import NamedTuple

from distlock.backends.store import Snapshot
from distlock.concurrency.clock import clock

#: The record.
PERMITS = "permits"
#: Of more grants than these, older ones that were made within a part of the period become one.
_APART, _PARTS = 128, 64


class Permits(NamedTuple):
    """Permits that were granted together, for how many seconds they count, and when that was.

    ``at`` are microseconds since 1970, by the clock of that machine. ``seen`` are whole seconds
    for which it had counted at the least when it was written.
    """

    nonce: str
    n: int
    period: float
    at: int
    seen: int = 0


@lru_cache(maxsize=100_000)
def first_seen(nonce: str) -> list[float]:
    """Return when this process has seen a grant first, by its own clock; if forgotten, later."""
    return [clock()]


def since(grant: Permits) -> float:
    """Return since when a grant counts at the latest, by the clock of this process."""
    seen = first_seen(grant.nonce)
    seen[0] = min(seen[0], clock() - grant.seen)
    return seen[0]


def grants_in(found: Snapshot) -> list[Permits]:
    """Return the grants that a limiter has, in their order."""
    record = found.records.get(PERMITS)
    return [] if record is None else [Permits(*one) for one in record.value["grants"]]


def merged(grants: list[Permits]) -> list[Permits]:
    """Return so few grants that they fit into one record; clocks only say which become one."""
    old, new = grants[:-_APART], grants[-_APART:]
    span = max(one.period for one in grants) * 1e6 / _PARTS
    while len(old) > _APART:
        parts = [[*part] for _, part in groupby(old, partial(_part_of, span))]
        old = [
            part[-1]._replace(n=sum(one.n for one in part), period=max(one.period for one in part))
            for part in parts
        ]
        span *= 2
    return [*old, *new]


def _part_of(span: float, grant: Permits) -> float:
    return grant.at // span
