"""A page of the locks in use: what is asked for, in which order, and what comes back.

Some places can neither sort nor filter, but only list names. A look at each lock takes time. Where
there are more than can be looked at while somebody waits for a page, what would take it is left
out, and the page says so: "too many to look at" is not "down".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from distlock.concurrency.clock import clock, left
from distlock.types.lease import LockInfo, State
from distlock.types.owners import is_named, is_reserved

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Locks that are looked at for a page, where that takes some 0.1 ms for each.
MOST_READ = 2000
#: The part of the time for a page after which no more locks are looked at.
_READING = 1 / 2


class DisplayStatus(StrEnum):
    """The status of a lock in use, as people see it."""

    HELD = "held"
    EXPIRING = "expiring"  # ends soon: more than one renewal was missed, or there will be none
    EXPIRED = "expired"
    SUSPENDED = "suspended"  # this process holds it, and its backend does not answer


class Order(StrEnum):
    """What a list is sorted by; locks of the same age are sorted by name."""

    NAME = "name"
    AGE = "age"  # those held for longest first


class Cursor(NamedTuple):
    """A place in a list: what the list is sorted by. ``since`` is the default in a list by name."""

    since: datetime = _EPOCH
    name: str = ""


@dataclass(frozen=True, slots=True)
class LockQuery:
    """Which of the locks in use are asked for.

    Empty, zero and None mean no restriction. ``search`` is found by matches_search(); ``held_for``
    is the least time in seconds. ``start`` is the place after which the list goes on, or before
    which, if ``backwards``; that place itself is left out unless ``inclusive``.
    """

    search: str = ""
    status: DisplayStatus | None = None
    host: str = ""
    held_for: float = 0.0
    order: Order = Order.NAME
    start: Cursor | None = None
    inclusive: bool = False
    backwards: bool = False
    size: int = 50

    def is_beyond_start(self, place: Cursor) -> bool:
        """Return whether a place comes after ``start``, in the direction of the list."""
        if self.start is None:
            return True
        if place == self.start:
            return self.inclusive
        return (place < self.start) is self.backwards


@dataclass(frozen=True, slots=True)
class Counts:
    """How many locks are in use; ``waiting`` is None where the backend does not know who waits."""

    held: int = 0  # those that will end soon included
    expiring: int = 0
    expired: int = 0
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the locks that were asked for, sorted, and how many there are.

    ``more``: whether the list goes on in the direction in which it was asked for. ``found``: how
    many locks match the query, on all pages. ``counts`` and ``hosts`` (how many locks each host
    has) are of all locks in use. ``note`` tells people what the backend has not read; it is empty
    if the backend has read all. ``read_to`` is the last place that was looked at, if the page ends
    there though it is not full: the list goes on from that place.
    """

    locks: tuple[LockInfo, ...]
    more: bool
    found: int
    counts: Counts
    hosts: Mapping[str, int]
    note: str = ""
    read_to: Cursor | None = None


#: A lease ends soon when this part of it is left: it is renewed after a third of its length at the
#: latest, so it has then missed more than one renewal. One that is not renewed ends soon only in
#: its last minute, however long it is.
SOON_PART = 1 / 3
SOON_SECONDS = 60.0


def status_of(info: LockInfo) -> DisplayStatus:
    """Return the status of a lock in use."""
    if info.state is State.EXPIRED:
        return DisplayStatus.EXPIRED
    if info.remaining is None or info.lease is None or (info.owner and is_reserved(info.owner)):
        return DisplayStatus.HELD
    soon = info.lease * SOON_PART
    if not info.renews:
        soon = min(soon, SOON_SECONDS)
    return DisplayStatus.EXPIRING if info.remaining <= soon else DisplayStatus.HELD


def cursor_of(info: LockInfo, order: Order) -> Cursor:
    """Return the place of a lock in a list."""
    since = info.since if order is Order.AGE else None
    return Cursor(since or _EPOCH, info.name)


def page_of(infos: Iterable[LockInfo], query: LockQuery) -> Page:
    """Return a page of the locks in use, all of which are given."""
    infos = list(infos)
    found = sorted(
        (info for info in infos if _matches(info, query)),
        key=lambda info: cursor_of(info, query.order),
        reverse=query.backwards,
    )
    beyond = [info for info in found if query.is_beyond_start(cursor_of(info, query.order))]
    locks = beyond[: query.size]
    statuses = Counter(map(status_of, infos))
    waiting = [len(info.waiters) for info in infos if info.waiters is not None]
    counts = Counts(
        held=statuses[DisplayStatus.HELD] + statuses[DisplayStatus.EXPIRING],
        expiring=statuses[DisplayStatus.EXPIRING],
        expired=statuses[DisplayStatus.EXPIRED],
        waiting=sum(waiting) if waiting else None,
    )
    return Page(
        locks=tuple(locks[::-1] if query.backwards else locks),
        more=len(beyond) > len(locks),
        found=len(found),
        counts=counts,
        hosts=Counter(info.owner.host for info in infos if info.owner is not None),
    )


def matches_search(info: LockInfo, search: str) -> bool:
    """Return whether a lock is found by a text, in capital or small letters.

    The text is a part of the name, of a description, of a call site or of the name of an owner; or
    the beginning of ``host:process:thread`` of an owner or a waiter; or a thread or a token.
    """
    search, texts = search.lower(), [info.name]
    owners = list(info.waiters or ())
    for holder in info.holders:
        if search == str(holder.token):
            return True
        texts += [holder.description, holder.call_site]
        texts += [holder.owner.key] if is_named(holder.owner) else []
        owners.append(holder.owner)
    return any(search in text.lower() for text in texts) or any(
        str(owner).lower().startswith(search) or owner.thread.lower() == search for owner in owners
    )


def _matches(info: LockInfo, query: LockQuery) -> bool:
    return (
        matches_search(info, query.search)
        and (query.status is None or query.status is status_of(info))
        and (not query.host or (info.owner is not None and query.host == info.owner.host))
        and (not query.held_for or (info.held_for or 0.0) >= query.held_for)
    )


@dataclass(frozen=True, slots=True)
class NamePages:
    """The names, sorted, of locks that may be in use, and how to look at some of these.

    ``look`` takes names and returns those of their locks that are in use, in the order of the
    names. It is asked for no more than ``most`` locks, and for those of one page.
    """

    names: Sequence[str]
    look: Callable[[Sequence[str]], Iterable[LockInfo]]
    most: int
    deadline: float | None

    def page(self, query: LockQuery) -> Page:
        """See BaseBackend.page()."""
        names, most = self.names, self.most
        if len(names) <= most:
            return page_of(self.look(names), query)
        note = (
            f"{len(names)} names are too many to look at each lock: all are counted as held, also"
            " recently released ones, and no waiters are counted."
        )
        counts = Counts(held=len(names))
        search = query.search.lower()
        wanted = [name for name in names if search in name.lower()]
        if search and wanted:
            note += " Some of the names match, so only names were searched."
        if 0 < len(wanted) <= most:
            return replace(page_of(self.look(wanted), query), counts=counts, note=note)
        by_state = query.status not in (None, DisplayStatus.HELD)
        if by_state or query.order is Order.AGE or query.host or query.held_for:
            note += (
                " To sort them by age, or to choose by state, host or time, search for a part of"
                f" the name that at most {most} of them have."
            )
            return Page((), False, len(wanted), counts, {}, note)
        if search and not wanted:
            note += " No name matches, so owners, descriptions and tokens are searched."
        page = self._from_cursor_on(wanted, query)
        return replace(page, counts=counts, note=note + page.note)

    def _from_cursor_on(self, wanted: Sequence[str], query: LockQuery) -> Page:
        """Return a page of the locks of these names, or of all that match, if there are no names.

        The names of locks that were freed lately are passed over, for as long as there is time. Of
        all locks no more than ``most`` are looked at for a page.
        """
        names = [name for name in wanted or self.names if query.is_beyond_start(Cursor(name=name))]
        if query.backwards:
            names.reverse()
        ends = clock() + left(self.deadline, math.inf) * _READING
        end, step = len(names) if wanted else self.most, query.size + 1
        found: list[LockInfo] = []
        read = 0
        while read < len(names) and len(found) <= query.size:
            if read and (clock() >= ends or read >= end):
                break
            some = self.look(names[read : read + step])
            found += [info for info in some if matches_search(info, query.search)]
            read += step
        unread = read < len(names) and len(found) <= query.size
        note, read_to = "", None
        if unread and wanted:  # what other kinds have further on is shown all the same
            note = " Not all names from here on could be looked at in time."
        elif unread:
            note = f" {read} locks were looked at for this page; the list goes on from there."
            read_to = Cursor(name=names[read - 1])
        locks, more = tuple(found[: query.size]), len(found) > query.size or unread
        locks = locks[::-1] if query.backwards else locks
        return Page(locks, more, len(wanted) or len(found), Counts(), {}, note, read_to)
