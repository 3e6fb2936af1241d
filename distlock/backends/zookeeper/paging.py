"""A page of the locks in use, also where there are too many to look at each."""

from __future__ import annotations

import math
from dataclasses import replace

from distlock.backends.zookeeper.survey import Survey
from distlock.clock import clock, left
from distlock.types.lease import LockInfo
from distlock.types.query import Counts, DisplayStatus, LockQuery, Order, Page, page_of

#: Locks that are looked at one by one: three requests or more for each, some 10,000 a second.
MOST_READ = 2000
#: The part of the time for a page after which no more locks are looked at.
_READING = 1 / 2


def page(survey: Survey, query: LockQuery) -> Page:
    """Return a page from the names of all locks and the nodes of no more than ``MOST_READ``.

    What would take more is left out, and the page's note says so.
    """
    names = survey.names()
    if len(names) <= MOST_READ:
        return page_of(survey.held_of(names), query)
    note = (
        f"{len(names)} names are too many to look at each lock: all are counted as held, also"
        " those that were freed lately, and nobody as waiting."
    )
    nothing = Page((), False, 0, Counts(held=len(names)), {}, note)
    if query.statuses and DisplayStatus.HELD not in query.statuses:
        return nothing  # no other can be told of a session
    search = query.search.lower()
    wanted = [name for name in names if search in name.lower()]
    if len(wanted) <= MOST_READ:
        found = page_of(survey.held_of(wanted), query)
        return replace(found, counts=nothing.counts, note=note)
    if query.order is Order.AGE or query.host or query.held_for:
        note += (
            " To sort them by age, or to choose by host or time, search for a part of the name"
            f" that at most {MOST_READ} of them have."
        )
        return replace(nothing, found=len(wanted), note=note)
    locks, more, in_time = _cut(survey, wanted, query)
    if not in_time:
        note += " Not all names from here on could be looked at in time."
    return Page(locks, more, len(wanted), nothing.counts, {}, note)


def _cut(
    survey: Survey, names: list[str], query: LockQuery
) -> tuple[tuple[LockInfo, ...], bool, bool]:
    """Return the held ones from the place on, whether there may be more, and if time was enough.

    The names of locks that were freed lately are passed over, for as long as there is time.
    """
    names = [name for name in names if _is_beyond(name, query)]
    if query.backwards:
        names.reverse()
    began = clock()
    ends = began + left(survey.deadline, math.inf) * _READING
    found: list[LockInfo] = []
    read, step = 0, query.size + 1
    while read < len(names) and len(found) <= query.size and (not read or clock() < ends):
        found += survey.held_of(names[read : read + step])
        read += step
    in_time = read >= len(names) or len(found) > query.size
    locks = found[: query.size]
    more = len(found) > len(locks) or not in_time
    return tuple(locks[::-1] if query.backwards else locks), more, in_time


def _is_beyond(name: str, query: LockQuery) -> bool:
    start = query.start
    if start is None:
        return True
    if name == start.name:
        return query.inclusive
    return name < start.name if query.backwards else name > start.name
