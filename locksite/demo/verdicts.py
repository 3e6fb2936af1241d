"""What the log of a lock's holders proves."""

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
class Stay:
    """The time in which one client is known to have believed that it held the lock."""

    client: str
    token: int
    first: int  # positions in the log, which is in the order of the server's clock
    last: int


def stays(entries: Sequence[Logged]) -> list[Stay]:
    """Return every client's stay, in the order in which they began."""
    found: dict[tuple[str, int], Stay] = {}
    for position, entry in enumerate(entries):
        if entry.what == "dead":
            continue
        key = (entry.client, entry.token)
        first = found[key].first if key in found else position
        found[key] = Stay(entry.client, entry.token, first, position)
    return list(found.values())


def two_at_once(entries: Sequence[Logged]) -> int:
    """Count the stays that began before the one before them had ended."""
    all_stays = stays(entries)
    return sum(
        any(earlier.last > later.first for earlier in all_stays[:number])
        for number, later in enumerate(all_stays)
    )


def tokens_grow(entries: Sequence[Logged]) -> bool:
    """Return whether each stay has a greater fencing token than those before it."""
    tokens = [stay.token for stay in stays(entries)]
    return all(a < b for a, b in zip(tokens, tokens[1:], strict=False))


def began(entries: Sequence[Logged], client: str, what: str) -> datetime:
    """Return when ``client`` first did ``what``; LookupError if it never did."""
    for entry in entries:
        if entry.client == client and entry.what == what:
            return entry.at
    raise LookupError(f"{client} did not {what}")
