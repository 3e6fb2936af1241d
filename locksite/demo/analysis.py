"""Check the log that the holders of a lock have written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class Logged(Protocol):
    """An entry of the log, as :class:`locksite.demo.models.Entry`."""

    client: str
    what: str
    token: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Hold:
    """The time in which one client worked under the lock, as far as the log shows."""

    client: str
    token: int
    first: int  # positions in the log, which is in the order of the server's clock
    last: int


def holds(entries: Sequence[Logged]) -> list[Hold]:
    """Return the holds of all clients, in the order of their beginnings."""
    found: dict[tuple[str, int], Hold] = {}
    for position, entry in enumerate(entries):
        if entry.what == "dead":
            continue
        key = (entry.client, entry.token)
        first = found[key].first if key in found else position
        found[key] = Hold(entry.client, entry.token, first, position)
    return list(found.values())


def count_overlaps(entries: Sequence[Logged]) -> int:
    """Count the holds that began before an earlier one had ended."""
    all_holds = holds(entries)
    return sum(
        any(earlier.last > later.first for earlier in all_holds[:number])
        for number, later in enumerate(all_holds)
    )


def most_at_once(entries: Sequence[Logged]) -> int:
    """Return how many holds there were at the same time, at the most."""
    every = holds(entries)
    return max(
        (sum(hold.first <= moment < hold.last for hold in every) for moment in range(len(entries))),
        default=0,
    )


def tokens_grow(entries: Sequence[Logged]) -> bool:
    """Return whether each hold has a greater fencing token than those before it."""
    tokens = [hold.token for hold in holds(entries)]
    return all(a < b for a, b in zip(tokens, tokens[1:], strict=False))


def first_time(entries: Sequence[Logged], client: str, what: str) -> datetime:
    """Return when ``client`` first did ``what``; LookupError if it never did."""
    for entry in entries:
        if entry.client == client and entry.what == what:
            return entry.at
    raise LookupError(f"{client} did not {what}")
