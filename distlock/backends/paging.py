"""Pages of lists from places that can neither sort nor filter: all names, and a look at few locks.

A look at each lock takes time. Where there are more than can be looked at while somebody waits for
a page, what would take it is left out, and the page says so: "too many to look at" is not "down".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from distlock.concurrency.clock import clock, left
from distlock.types.lease import LockInfo
from distlock.types.query import (
    Counts,
    Cursor,
    DisplayStatus,
    LockQuery,
    Order,
    Page,
    matches_search,
    page_of,
)

#: Locks that are looked at for a page, where that takes some 0.1 ms for each.
MOST_READ = 2000
#: The part of the time for a page after which no more locks are looked at.
_READING = 1 / 2


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
            " those that were freed lately, and nobody as waiting."
        )
        counts = Counts(held=len(names))
        search = query.search.lower()
        wanted = [name for name in names if search in name.lower()]
        if search and wanted:
            note += " Some of the names match, so nothing but names was searched."
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
