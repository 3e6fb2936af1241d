"""All backends at a glance, and one page of the locks in them, merged."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from distlock.admin.fan_out import Answer, ask_all
from distlock.admin.local_holds import own_locks
from distlock.admin.lock_row import Listed
from distlock.admin.query import SIZE, PageCursor, Query
from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.types.lease import LockInfo
from distlock.types.query import Counts, DisplayStatus, Order, Page, cursor_of, page_of, sorting_key


@dataclass(frozen=True, slots=True)
class Card:
    """One backend: whether it answers, how fast, and how many locks are in use there."""

    alias: str
    kind: str
    counts: Counts | None  # None if it does not answer
    problem: str
    milliseconds: float
    note: str = ""  # what the backend says of what it has not read
    last: Counts | None = None  # what it last said to this process, where it does not answer
    age: float = 0.0  # seconds since then

    @property
    def full(self) -> str:
        """What the backend would call itself in an error."""
        return f"DISTLOCK[{self.alias!r}]"

    @property
    def can_be_asked_again(self) -> bool:
        """Whether it may answer if it is asked once more."""
        return self.counts is None and bool(self.kind)


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page of held locks shows."""

    cards: list[Card]
    rows: list[Listed]
    found: int
    hosts: list[str]
    next: str
    previous: str

    @property
    def silent(self) -> list[Card]:
        """The backends that have not answered."""
        return [card for card in self.cards if card.counts is None]

    @property
    def noted(self) -> list[Card]:
        """The backends that have something to say of what they have not read."""
        return [card for card in self.cards if card.note]

    @property
    def expired(self) -> int:
        """How many leases have ended and wait for a sweep."""
        return sum(card.counts.expired for card in self.cards if card.counts)


#: Hosts that are proposed for the filter.
_MOST_HOSTS = 500

#: What each backend last said to this process, and when by the local clock.
_last: weakref.WeakKeyDictionary[BaseBackend, tuple[Counts, float]] = weakref.WeakKeyDictionary()


def overview(query: Query, *, patient: bool = True) -> Overview:
    """Ask all backends and return what they say; raises nothing that a backend could cause.

    Unless ``patient``, one that has lately not answered is not waited for.
    """

    def page(backend: BaseBackend, deadline: float) -> Page:
        asked_at = clock()
        found = backend.page(query.lock_query(backend.alias), deadline)
        if (last := _last.get(backend)) is None or last[1] < asked_at:
            _last[backend] = found.counts, asked_at
        return found

    answers = ask_all(query.aliases, page, patient=patient)
    pages = {alias: _page(answers[alias], query) for alias in query.asked}
    every = sorted(
        (info for page in pages.values() for info in page.locks), key=_sorting(query.order)
    )
    shown = every[-SIZE:] if query.backwards else every[:SIZE]
    more = len(every) > SIZE or any(page.more for page in pages.values())
    rows = [listed for info in shown if (listed := _listed(info, answers[info.using]))]
    hosts = {host for page in pages.values() for host in page.hosts if host.isprintable()}
    return Overview(
        cards=[_card(answer) for answer in answers.values()],
        rows=rows,
        found=sum(page.found for page in pages.values()),
        hosts=sorted(hosts - {""})[:_MOST_HOSTS],
        next=_next(query, shown, more),
        previous=_previous(query, shown, more),
    )


def _page(answer: Answer[Page], query: Query) -> Page:
    """Return what a backend said, or what this process holds there if it said nothing."""
    if answer.value is not None:
        return answer.value
    wanted = query.lock_query(answer.alias)
    if query.status not in (None, DisplayStatus.SUSPENDED):
        return page_of((), wanted)
    return page_of(own_locks(answer.alias), replace(wanted, statuses=frozenset()))


def _sorting(order: Order) -> Callable[[LockInfo], tuple[object, ...]]:
    return lambda info: (*sorting_key(cursor_of(info, order)), info.using)


def _listed(info: LockInfo, answer: Answer[Page]) -> Listed | None:
    if answer.backend is None:
        return None
    return Listed.of(info, answer.backend, suspended=answer.value is None)


def _card(answer: Answer[Page]) -> Card:
    last = None if answer.value or answer.backend is None else _last.get(answer.backend)
    return Card(
        answer.alias,
        type(answer.backend).__name__.removesuffix("Backend") if answer.backend else "",
        answer.value.counts if answer.value else None,
        answer.problem,
        answer.seconds * 1000,
        answer.value.note if answer.value else "",
        last[0] if last else None,
        clock() - last[1] if last else 0.0,
    )


def _next(query: Query, shown: Sequence[LockInfo], more: bool) -> str:
    # Who came back from a later page can go there again.
    if not shown or not (more or query.backwards):
        return ""
    return query.url(after=PageCursor.at(shown[-1], query.order), before=None)


def _previous(query: Query, shown: Sequence[LockInfo], more: bool) -> str:
    if query.backwards:
        return query.url(before=PageCursor.at(shown[0], query.order), after=None) if more else ""
    if query.after is None:
        return ""
    if not shown:
        return query.first
    return query.url(before=PageCursor.at(shown[0], query.order), after=None)
