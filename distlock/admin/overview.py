"""The list of held locks: a card for each backend, and one page of the locks of all of them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

from distlock.admin.fan_out import Answer, call_backends
from distlock.admin.query import Query
from distlock.admin.rows import LockRow, local_holds
from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.types.query import Counts, DisplayStatus, Page, cursor_of, page_of


@dataclass(frozen=True, slots=True)
class BackendCard:
    """One backend: whether it answers, how fast, and how many locks are in use in it."""

    alias: str
    kind: str = ""  # empty if its settings are wrong
    counts: Counts | None = None  # None if it does not answer
    problem: str = ""
    seconds: float = 0.0
    note: str = ""  # what the backend says about locks that it has not read
    last_counts: Counts | None = None  # if it does not answer: its last answer to this process
    last_age: float = 0.0  # seconds since then


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page of held locks shows."""

    cards: list[BackendCard]
    rows: list[LockRow]
    found: int
    hosts: list[str]
    next: str = ""
    previous: str = ""

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

    def ask(backend: BaseBackend, deadline: float) -> Page:
        asked_at = clock()
        page = backend.page(query.for_backend(backend.alias), deadline)
        _last_counts[backend] = page.counts, asked_at
        return page

    answers = call_backends(query.aliases, ask, wait_for_silent=wait_for_silent)
    pages = {
        alias: answers[alias].value or _page_of_local_holds(alias, query)
        for alias in query.listed_aliases
    }
    merged = sorted(
        (info for page in pages.values() for info in page.locks),
        key=lambda info: (cursor_of(info, query.order), info.using),
    )
    shown = merged[-query.size :] if query.backwards else merged[: query.size]
    more = len(merged) > query.size or any(page.more for page in pages.values())
    following = previous = ""
    if shown:
        # A page that was reached backwards always has a next page.
        if more or query.backwards:
            following = query.url_from(shown[-1], backwards=False)
        if more if query.backwards else query.start:
            previous = query.url_from(shown[0], backwards=True)
    elif query.start:
        previous = query.first_url
    hosts = {host for page in pages.values() for host in page.hosts if host.isprintable()}
    return Overview(
        cards=[_card(answer) for answer in answers.values()],
        rows=[LockRow(info, suspended=answers[info.using].value is None) for info in shown],
        found=sum(page.found for page in pages.values()),
        hosts=sorted(hosts - {""})[:_MAX_HOSTS],
        next=following,
        previous=previous,
    )


def _page_of_local_holds(alias: str, query: Query) -> Page:
    """Return what this process holds in a backend that does not answer."""
    wanted = query.status in (None, DisplayStatus.SUSPENDED)
    local_query = replace(query.for_backend(alias), status=None)
    return page_of(local_holds(alias) if wanted else (), local_query)


def _card(answer: Answer[Page]) -> BackendCard:
    if answer.backend is None:
        return BackendCard(answer.alias, problem=answer.problem)
    kind = type(answer.backend).__name__.removesuffix("Backend")
    if page := answer.value:
        return BackendCard(answer.alias, kind, page.counts, "", answer.seconds, page.note)
    last, asked_at = _last_counts.get(answer.backend, (None, 0.0))
    age = clock() - asked_at
    return BackendCard(answer.alias, kind, problem=answer.problem, last_counts=last, last_age=age)
