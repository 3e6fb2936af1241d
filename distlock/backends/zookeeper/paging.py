"""A page of the locks in use, also where there are too many to look at each."""

from __future__ import annotations

import math
from dataclasses import replace

from distlock.backends.zookeeper.survey import Survey
from distlock.clock import clock, left
from distlock.lease import LockInfo
from distlock.listing import Counts, Order, Page, Selection, Standing, page_of

#: Locks that are looked at one by one: three requests or more for each, some 10,000 a second.
MOST_READ = 2000
#: The part of the time for a page after which no more locks are looked at.
_READING = 1 / 2


def page(survey: Survey, selection: Selection) -> Page:
    """Return a page from the names of all locks and the nodes of no more than ``MOST_READ``.

    What would take more is left out, and the page's note says so.
    """
    names = survey.names()
    if len(names) <= MOST_READ:
        return page_of(survey.held_of(names), selection)
    note = (
        f"{len(names)} names are too many to look at each lock: all are counted as held, also"
        " those that were freed lately, and nobody as waiting."
    )
    nothing = Page((), False, 0, Counts(held=len(names)), {}, note)
    if selection.standings and Standing.HELD not in selection.standings:
        return nothing  # no other can be told of a session
    search = selection.search.lower()
    wanted = [name for name in names if search in name.lower()]
    if len(wanted) <= MOST_READ:
        found = page_of(survey.held_of(wanted), selection)
        return replace(found, counts=nothing.counts, note=note)
    if selection.order is Order.AGE or selection.host or selection.held_for:
        note += (
            " To sort them by age, or to choose by host or time, search for a part of the name"
            f" that at most {MOST_READ} of them have."
        )
        return replace(nothing, found=len(wanted), note=note)
    locks, more, in_time = _cut(survey, wanted, selection)
    if not in_time:
        note += " Not all names from here on could be looked at in time."
    return Page(locks, more, len(wanted), nothing.counts, {}, note)


def _cut(
    survey: Survey, names: list[str], selection: Selection
) -> tuple[tuple[LockInfo, ...], bool, bool]:
    """Return the held ones from the place on, whether there may be more, and if time was enough.

    The names of locks that were freed lately are passed over, for as long as there is time.
    """
    names = [name for name in names if _is_beyond(name, selection)]
    if selection.backwards:
        names.reverse()
    began = clock()
    ends = began + left(survey.deadline, math.inf) * _READING
    found: list[LockInfo] = []
    read, step = 0, selection.size + 1
    while read < len(names) and len(found) <= selection.size and (not read or clock() < ends):
        found += survey.held_of(names[read : read + step])
        read += step
    in_time = read >= len(names) or len(found) > selection.size
    locks = found[: selection.size]
    more = len(found) > len(locks) or not in_time
    return tuple(locks[::-1] if selection.backwards else locks), more, in_time


def _is_beyond(name: str, selection: Selection) -> bool:
    start = selection.start
    if start is None:
        return True
    if name == start.name:
        return selection.inclusive
    return name < start.name if selection.backwards else name > start.name
