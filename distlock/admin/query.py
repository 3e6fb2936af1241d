"""Filters, order and page of the list of held locks, read from an address and written to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.http import QueryDict
from django.utils.http import urlencode

from distlock.types.arguments import MAX_NAME
from distlock.types.lease import LOCK_KINDS, Kind, LockInfo
from distlock.types.query import Cursor, DisplayStatus, LockQuery, Order, cursor_of

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
        filters = self.search, self.backend, self.status, self.host, self.held_for, self.kind
        return any(filters)

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
