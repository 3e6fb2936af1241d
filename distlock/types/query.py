"""A page of the locks in use: what is asked for, in which order, and what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from distlock.types.lease import LockInfo, State
from distlock.types.owners import is_reserved

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DisplayStatus(StrEnum):
    """How it stands with a lock that is in use."""

    HELD = "held"
    EXPIRING = "expiring"  # ends soon: more than one renewal was missed, or there will be none
    EXPIRED = "expired"
    SUSPENDED = "suspended"  # its holder cannot reach the backend at the moment


class Order(StrEnum):
    """By what a list is sorted; locks of one age by name."""

    NAME = "name"
    AGE = "age"  # those held for longest first


class Cursor(NamedTuple):
    """A place in a list. ``since`` counts only where the list is sorted by age."""

    name: str
    since: datetime = _EPOCH


@dataclass(frozen=True, slots=True)
class LockQuery:
    """Which of the locks in use are asked for.

    Empty and zero mean no restriction. ``search`` is a part of the name, in capital or small
    letters; ``held_for`` is the least time in seconds. ``start`` is the place after which the list
    goes on, or before which, if ``backwards``; that place itself is left out unless ``inclusive``.
    """

    search: str = ""
    statuses: frozenset[DisplayStatus] = frozenset()
    host: str = ""
    held_for: float = 0.0
    order: Order = Order.NAME
    start: Cursor | None = None
    inclusive: bool = False
    backwards: bool = False
    size: int = 50

    @property
    def filters(self) -> bool:
        """Whether anything but a place in the list is asked for."""
        return bool(self.search or self.statuses or self.host or self.held_for)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many locks are in use; ``waiting`` is None where nobody knows who waits."""

    held: int = 0  # those that will end soon included
    expiring: int = 0
    expired: int = 0
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the locks that were asked for, sorted, and what there is besides.

    ``more``: whether the list goes on in the direction in which it was asked for. ``found``: how
    many locks there are of the kind asked for. ``counts`` and ``hosts`` (locks by host) are of all.
    ``note`` is what a backend says, for people, of what it has not read; empty if it read all.
    """

    locks: tuple[LockInfo, ...]
    more: bool
    found: int
    counts: Counts
    hosts: Mapping[str, int]
    note: str = ""


#: What is left of a lease when it ends soon. A lease that is renewed, after a third of its length
#: at the latest, has then missed more than one renewal; one that is not ends soon only in its last
#: minute, however long it is.
SOON_PART = 1 / 3
SOON_SECONDS = 60.0


def status_of(info: LockInfo) -> DisplayStatus:
    """Return how it stands with a lock in use."""
    if info.state is State.EXPIRED:
        return DisplayStatus.EXPIRED
    if info.remaining is None or info.lease is None or (info.owner and is_reserved(info.owner)):
        return DisplayStatus.HELD
    soon = info.lease * SOON_PART
    if not info.renews:
        soon = min(soon, SOON_SECONDS)
    return DisplayStatus.EXPIRING if info.remaining <= soon else DisplayStatus.HELD


def cursor_of(info: LockInfo, order: Order) -> Cursor:
    """Return where a lock stands in a list."""
    since = info.since if order is Order.AGE else None
    return Cursor(info.name, since or _EPOCH)


def sorting_key(place: Cursor) -> tuple[datetime, str]:
    """Return what lists are sorted by; without ages all are of one."""
    return place.since, place.name


def page_of(infos: Iterable[LockInfo], query: LockQuery) -> Page:
    """Return a page of the locks in use, all of which are given."""
    infos = list(infos)
    hosts = Counter(info.owner.host for info in infos if info.owner is not None)
    wanted = [info for info in infos if _matches(info, query)]
    locks, more = _cut(wanted, query)
    return Page(locks, more, len(wanted), _counts(infos), hosts)


def _counts(infos: Iterable[LockInfo]) -> Counts:
    statuses = Counter(map(status_of, infos))
    waiting = [len(info.waiters) for info in infos if info.waiters is not None]
    return Counts(
        held=statuses[DisplayStatus.HELD] + statuses[DisplayStatus.EXPIRING],
        expiring=statuses[DisplayStatus.EXPIRING],
        expired=statuses[DisplayStatus.EXPIRED],
        waiting=sum(waiting) if waiting else None,
    )


def _matches(info: LockInfo, query: LockQuery) -> bool:
    host = info.owner.host if info.owner is not None else ""
    return (
        query.search.lower() in info.name.lower()
        and (not query.statuses or status_of(info) in query.statuses)
        and (not query.host or query.host == host)
        and (not query.held_for or (info.held_for or 0.0) >= query.held_for)
    )


def _cut(infos: Iterable[LockInfo], query: LockQuery) -> tuple[tuple[LockInfo, ...], bool]:
    """Sort, and return those from the place on, and whether there are more."""

    def key(info: LockInfo) -> tuple[datetime, str]:
        return sorting_key(cursor_of(info, query.order))

    infos = sorted(infos, key=key, reverse=query.backwards)
    if query.start is not None:
        start = sorting_key(query.start)
        infos = [
            info
            for info in infos
            if (key(info) < start if query.backwards else key(info) > start)
            or (query.inclusive and key(info) == start)
        ]
    locks = infos[: query.size]
    return tuple(locks[::-1] if query.backwards else locks), len(infos) > len(locks)
