"""The list of held locks: a card for each backend, and one page of the locks of all of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from distlock.admin.fan_out import Answer, call_backends
from distlock.admin.query import PAGE_SIZE, PageCursor, Query
from distlock.admin.rows import LockRow, local_holds
from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.types.lease import LockInfo
from distlock.types.query import Counts, DisplayStatus, Order, Page, cursor_of, page_of


@dataclass(frozen=True, slots=True)
class BackendCard:
    """One backend: whether it answers, how fast, and how many locks are in use in it."""

    alias: str
    kind: str
    counts: Counts | None  # None if it does not answer
    problem: str
    milliseconds: float
    note: str = ""  # what the backend says about locks that it has not read
    last_counts: Counts | None = None  # if it does not answer: its last answer to this process
    last_age: float = 0.0  # seconds since then

    @property
    def can_be_retried(self) -> bool:
        """Whether it may answer the next time: its settings are right."""
        return self.counts is None and bool(self.kind)


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page of held locks shows."""

    cards: list[BackendCard]
    rows: list[LockRow]
    found: int
    hosts: list[str]
    next: str
    previous: str

    @property
    def silent(self) -> list[BackendCard]:
        """The backends that have not answered."""
        return [card for card in self.cards if card.counts is None]

    @property
    def noted(self) -> list[BackendCard]:
        """The backends that have not read all of their locks, and say so."""
        return [card for card in self.cards if card.note]


#: Hosts that the filter proposes.
_MAX_HOSTS = 500

#: The last answer of each backend to this process, and when it was asked.
_last_counts: weakref.WeakKeyDictionary[BaseBackend, tuple[Counts, float]] = (
    weakref.WeakKeyDictionary()
)


def overview(query: Query, *, wait_for_silent: bool = True) -> Overview:
    """Ask all backends; raises no error of a backend. See call_backends()."""

    def page(backend: BaseBackend, deadline: float) -> Page:
        asked_at = clock()
        found = backend.page(query.lock_query(backend.alias), deadline)
        if (last := _last_counts.get(backend)) is None or last[1] < asked_at:
            _last_counts[backend] = found.counts, asked_at
        return found

    answers = call_backends(query.aliases, page, wait_for_silent=wait_for_silent)
    pages = {alias: _page(answers[alias], query) for alias in query.listed_aliases}
    merged = sorted(
        (info for page in pages.values() for info in page.locks), key=_sorting_key(query.order)
    )
    shown = merged[-PAGE_SIZE:] if query.backwards else merged[:PAGE_SIZE]
    more = len(merged) > PAGE_SIZE or any(page.more for page in pages.values())
    rows = [row for info in shown if (row := _row(info, answers[info.using]))]
    hosts = {host for page in pages.values() for host in page.hosts if host.isprintable()}
    return Overview(
        cards=[_card(answer) for answer in answers.values()],
        rows=rows,
        found=sum(page.found for page in pages.values()),
        hosts=sorted(hosts - {""})[:_MAX_HOSTS],
        next=_next(query, shown, more),
        previous=_previous(query, shown, more),
    )


def _page(answer: Answer[Page], query: Query) -> Page:
    """Return the answer of a backend, or what this process holds in it if there is no answer."""
    if answer.value is not None:
        return answer.value
    lock_query = query.lock_query(answer.alias)
    if query.status not in (None, DisplayStatus.SUSPENDED):
        return page_of((), lock_query)
    return page_of(local_holds(answer.alias), replace(lock_query, status=None))


def _sorting_key(order: Order) -> Callable[[LockInfo], tuple[object, ...]]:
    return lambda info: (*cursor_of(info, order), info.using)


def _row(info: LockInfo, answer: Answer[Page]) -> LockRow | None:
    if answer.backend is None:
        return None
    return LockRow.of(info, answer.backend, suspended=answer.value is None)


def _card(answer: Answer[Page]) -> BackendCard:
    last = None if answer.value or answer.backend is None else _last_counts.get(answer.backend)
    return BackendCard(
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
    # A page that was reached backwards always has a next page.
    if not shown or not (more or query.backwards):
        return ""
    return query.url(after=PageCursor.at(shown[-1], query.order), before=None)


def _previous(query: Query, shown: Sequence[LockInfo], more: bool) -> str:
    if query.backwards:
        return query.url(before=PageCursor.at(shown[0], query.order), after=None) if more else ""
    if query.after is None:
        return ""
    if not shown:
        return query.first_url
    return query.url(before=PageCursor.at(shown[0], query.order), after=None)
