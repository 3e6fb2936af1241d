"""The list of held locks: a card for each backend, and one page of the locks of all of them.

Its filters, order and page are read from an address, and written to one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from django.http import QueryDict
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from distlock.admin.locks import KINDS, LockRow, local_holds, rows_of
from distlock.backends.base import BaseBackend
from distlock.backends.reading import together
from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockError, NotSupported
from distlock.fan_out import BackendAnswer, call_backends, one_line
from distlock.records.shared_backend import SHARED_KINDS, shared_locks
from distlock.runtime.local_queue import Crowds
from distlock.runtime.manager import manager
from distlock.types.lease import LOCK_KINDS, Kind, LockInfo, LockKey
from distlock.types.query import (
    Counts,
    Cursor,
    DisplayStatus,
    LockQuery,
    NamePages,
    Order,
    Page,
    cursor_of,
    page_of,
)
from distlock.types.values import MAX_NAME

#: Values of the filter "held longer than", in seconds.
HELD_FOR_CHOICES = (10, 60, 300, 900, 3600, 6 * 3600, 86400)

_EPOCH = Cursor().since
_MAX_HOST = 255

#: A place in the list of all backends: what it is sorted by, and the source.
Place = tuple[Cursor, str]


@dataclass(frozen=True, slots=True)
class Query(LockQuery):
    """Filters, order and page of the list of the locks of all backends.

    Locks of one name (or age) in several backends are listed in the order of source_of().
    """

    aliases: tuple[str, ...] = ()  # of all backends, whatever the filters are
    backend: str = ""  # the only one whose locks are listed; empty for all
    kind: Kind | None = None  # the only kind of lock that is listed
    start_source: str = ""  # the source of the lock at ``start``

    @classmethod
    def parse(cls, parameters: QueryDict, aliases: Iterable[str]) -> Query:
        """Read the parameters of an address; values that make no sense are ignored."""
        aliases = tuple(aliases)
        backend, status, held_for = (parameters.get(key) for key in ("backend", "state", "held"))
        after = _parse_place(parameters.get("after", ""))
        before = None if after else _parse_place(parameters.get("before", ""))
        start_source, start = after or before or ("", None)
        return cls(
            search=_text(parameters.get("q", ""), MAX_NAME),
            status=next((each for each in DisplayStatus if each == status), None),
            host=_text(parameters.get("host", ""), _MAX_HOST),
            held_for=next((each for each in HELD_FOR_CHOICES if str(each) == held_for), 0),
            order=Order.AGE if parameters.get("order") == Order.AGE else Order.NAME,
            start=start,
            backwards=before is not None,
            aliases=aliases,
            backend=backend if backend in aliases else "",
            kind=next((each for each in LOCK_KINDS if each == parameters.get("kind")), None),
            start_source=start_source,
        )

    @property
    def listed_aliases(self) -> tuple[str, ...]:
        """The aliases of the backends whose locks are listed."""
        return (self.backend,) if self.backend else self.aliases

    @property
    def filtered(self) -> bool:
        """Whether filters leave some locks out."""
        return any((self.search, self.backend, self.status, self.host, self.held_for, self.kind))

    def for_source(self, alias: str, kind: Kind) -> LockQuery:
        """Return the query for one kind of lock of one backend."""
        source = source_of(alias, kind)
        later = source < self.start_source if self.backwards else source > self.start_source
        return replace(self, inclusive=later)

    def url(self, **changes: Any) -> str:
        """Return the address of this list with some changes: ``?…``."""
        other = replace(self, **changes)
        values = {
            "q": other.search,
            "backend": other.backend,
            "state": other.status,
            "kind": other.kind,
            "host": other.host,
            "held": int(other.held_for),
            "order": other.order if other.order is not Order.NAME else "",
        }
        if other.start is not None:
            microseconds = (other.start.since - _EPOCH) // timedelta(microseconds=1)
            place = f"{other.start_source}:{microseconds}:{other.start.name}"
            values["before" if other.backwards else "after"] = place
        return "?" + urlencode({key: value for key, value in values.items() if value})

    @property
    def first_url(self) -> str:
        """The address of the first page."""
        return self.url(start=None)

    def place_of(self, info: LockInfo) -> Place:
        """Return the place of a lock in the list of all backends."""
        return cursor_of(info, self.order), source_of(info.using, info.kind)

    def url_from(self, place: Place, *, backwards: bool) -> str:
        """Return the address of the page that begins after a place, or ends before it."""
        start, source = place
        return self.url(start=start, start_source=source, backwards=backwards)


def source_of(alias: str, kind: Kind) -> str:
    """Return where a list has locks from: one kind of lock of one backend."""
    return alias if kind is Kind.LOCK else f"{alias}/{kind}"


def _parse_place(text: str) -> tuple[str, Cursor] | None:
    """Return the source and the place that url() wrote; None for any other text."""
    source, _, rest = text.partition(":")
    microseconds, _, name = rest.partition(":")
    try:
        since = _EPOCH + timedelta(microseconds=int(microseconds))
    except (ValueError, OverflowError):
        return None
    if len(name) > MAX_NAME or "\0" in name:
        return None
    return source, Cursor(since, name)


def _text(value: str, max_length: int) -> str:
    return value.replace("\0", "").strip()[:max_length]


@dataclass(frozen=True, slots=True)
class BackendCard:
    """One backend: whether it answers, how fast, and how many locks are in use in it."""

    alias: str
    kind: str = ""  # empty if its settings are wrong
    counts: Counts | None = None  # None if it does not answer
    problem: str = ""  # why it does not answer, or why a part of it cannot be read
    seconds: float = 0.0
    note: str = ""  # what the backend says about locks that it has not read
    last_counts: Counts | None = None  # if it does not answer: its last answer to this process
    last_age: float = 0.0  # seconds since then


@dataclass(frozen=True, slots=True)
class Overview:
    """The content of the page of held locks."""

    cards: list[BackendCard]
    rows: list[LockRow]
    shown: int  # locks; one may have several holders, and as many rows
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
#: Semaphores, and read/write locks, that are looked at for a page.
_MOST_READ = 200
#: The part of the time that is left after the locks for semaphores and read/write locks: if these
#: cannot be read in time, the locks are shown all the same.
_FOR_SHARED = 3 / 4

#: The last answer of each backend to this process, and when it was asked.
_last_counts: weakref.WeakKeyDictionary[BaseBackend, tuple[Counts, float]] = (
    weakref.WeakKeyDictionary()
)


def overview(query: Query, *, wait_for_silent: bool = True) -> Overview:
    """Ask all backends; raises no error of a backend. See call_backends()."""

    def ask(backend: BaseBackend, deadline: float) -> _Pages:
        asked_at = clock()
        pages = _Pages.of(backend, query, deadline)
        _last_counts[backend] = pages.counts, asked_at
        return pages

    answers = call_backends(query.aliases, ask, wait_for_silent=wait_for_silent)
    pages: list[Page] = []
    stops: list[Place] = []
    for alias in query.listed_aliases:
        answer = answers[alias].value
        some = answer.by_kind if answer else _pages_of_local_holds(alias, query)
        listed = {kind: page for kind, page in some.items() if query.kind in (None, kind)}
        pages += listed.values()
        stops += [(page.read_to, source_of(alias, k)) for k, page in listed.items() if page.read_to]
    shown, previous, following = _shown(pages, stops, query)
    hosts = {host for page in pages for host in page.hosts if host.isprintable()}
    return Overview(
        cards=[_card(answer) for answer in answers.values()],
        rows=[
            row
            for info in shown
            for row in rows_of(info, suspended=answers[info.using].value is None)
        ],
        shown=len(shown),
        found=sum(page.found for page in pages),
        hosts=sorted(hosts - {""})[:_MAX_HOSTS],
        next=following,
        previous=previous,
    )


def _shown(
    pages: Sequence[Page], stops: Sequence[Place], query: Query
) -> tuple[list[LockInfo], str, str]:
    """Return the locks on the page of all backends, and the addresses of the pages around it.

    ``stops`` are the places to which sources were read: the page ends at the first of them.
    """
    merged = sorted((info for page in pages for info in page.locks), key=query.place_of)
    stop = (max if query.backwards else min)(stops, default=None)
    if stop is not None:
        merged = [
            info
            for info in merged
            if query.place_of(info) == stop or (query.place_of(info) < stop) is not query.backwards
        ]
    shown = merged[-query.size :] if query.backwards else merged[: query.size]
    more = len(merged) > query.size or any(page.more for page in pages)
    first, last = (query.place_of(shown[0]), query.place_of(shown[-1])) if shown else (None, None)
    if stop is not None and len(merged) <= query.size:
        first, last = (stop, last or stop) if query.backwards else (first, stop)
    previous = following = ""
    # A page that was reached backwards always has a next page.
    if last and (more or query.backwards):
        following = query.url_from(last, backwards=False)
    if first and (more if query.backwards else query.start):
        previous = query.url_from(first, backwards=True)
    elif not shown and query.start:
        previous = query.first_url
    return shown, previous, following


@dataclass(frozen=True, slots=True)
class _Pages:
    """The locks of a backend by kind, and the kinds that could not be read."""

    by_kind: Mapping[Kind, Page]
    note: str = ""
    problem: str = ""

    @classmethod
    def of(cls, backend: BaseBackend, query: Query, deadline: float) -> Self:
        """Ask a backend. If its semaphores cannot be read, the page has the locks, and says so."""
        alias, problem = backend.alias, ""
        page = backend.page(query.for_source(alias, Kind.LOCK), deadline)
        crowds = Crowds.read(backend, manager().queue, deadline)
        page = replace(page, locks=tuple(map(crowds.added_to, page.locks)))
        if page.counts.waiting is not None:
            waiting = page.counts.waiting + crowds.total
            page = replace(page, counts=replace(page.counts, waiting=waiting))
        by_kind, notes = {Kind.LOCK: page}, [page.note] if page.note else []
        until = clock() + left(deadline, math.inf) * _FOR_SHARED
        try:
            for kind in SHARED_KINDS:
                wanted = query.for_source(alias, kind)
                by_kind[kind] = page = _page_of_kind(backend, kind, wanted, until)
                notes += [f"{KINDS[kind]}: {page.note}"] if page.note else []
        except NotSupported:
            pass  # it keeps nothing but locks
        except LockError as error:
            problem = one_line(error)
            notes.append(_("Semaphores and read/write locks cannot be read."))
        return cls(by_kind, " ".join(notes), problem)

    @property
    def counts(self) -> Counts:
        """How many locks of all kinds are in use."""
        every = [page.counts for page in self.by_kind.values()]
        waiting = [each.waiting for each in every if each.waiting is not None]
        return Counts(
            held=sum(each.held for each in every),
            expiring=sum(each.expiring for each in every),
            expired=sum(each.expired for each in every),
            waiting=sum(waiting) if waiting else None,
        )


def _page_of_kind(backend: BaseBackend, kind: Kind, query: LockQuery, deadline: float) -> Page:
    """Return some of the semaphores, or read/write locks, that are held.

    Of very many, only those on the page are looked at. NotSupported if
    the backend keeps nothing but locks.
    """
    shared, key = shared_locks(backend), LockKey(backend.alias, kind, "")
    found = backend.store.directories(key.directory, deadline)
    names = sorted(each.removeprefix(key.directory) for each in found)

    def look(names: Sequence[str]) -> Iterator[LockInfo]:
        def inspect(name: str) -> LockInfo:
            return shared.inspect(key._replace(name=name).directory, deadline)

        return (info for _, info in together(names, inspect) if info.holders)

    return NamePages(names, look, _MOST_READ, deadline).page(query)


def _pages_of_local_holds(alias: str, query: Query) -> dict[Kind, Page]:
    """Return what this process holds in a backend that does not answer."""
    wanted = query.status in (None, DisplayStatus.SUSPENDED)
    infos = local_holds(alias) if wanted else []
    return {
        kind: page_of(
            [info for info in infos if info.kind is kind],
            replace(query.for_source(alias, kind), status=None),
        )
        for kind in LOCK_KINDS
    }


def _card(answer: BackendAnswer[_Pages]) -> BackendCard:
    if pages := answer.value:
        known = pages.counts, pages.problem, answer.seconds, pages.note
        return BackendCard(answer.alias, answer.kind, *known)
    last, asked_at = answer.backend and _last_counts.get(answer.backend) or (None, 0.0)
    card = BackendCard(answer.alias, answer.kind, problem=answer.problem)
    return replace(card, last_counts=last, last_age=clock() - asked_at)
