"""Filters, order and page of the list of held locks, read from an address and written to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.http import QueryDict
from django.utils.http import urlencode

from distlock.types.arguments import MAX_NAME
from distlock.types.lease import LockInfo
from distlock.types.query import Cursor, DisplayStatus, LockQuery, Order, cursor_of

#: Values of the filter "held longer than", in seconds.
HELD_FOR_CHOICES = (10, 60, 300, 900, 3600, 6 * 3600, 86400)

_EPOCH = Cursor().since
_MAX_HOST = 255


@dataclass(frozen=True, slots=True)
class Query(LockQuery):
    """Filters, order and page of the list of the locks of all backends.

    Locks of one name (or age) in several backends are listed in the order of their aliases.
    """

    aliases: tuple[str, ...] = ()  # of all backends, whatever the filters are
    backend: str = ""  # the only one whose locks are listed; empty for all
    start_alias: str = ""  # the backend of the lock at ``start``

    @classmethod
    def parse(cls, parameters: QueryDict, aliases: Iterable[str]) -> Query:
        """Read the parameters of an address; values that make no sense are ignored."""
        aliases = tuple(aliases)
        backend, status, held_for = (parameters.get(key) for key in ("backend", "state", "held"))
        after = _parse_place(parameters.get("after", ""))
        before = None if after else _parse_place(parameters.get("before", ""))
        start_alias, start = after or before or ("", None)
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
            start_alias=start_alias,
        )

    @property
    def listed_aliases(self) -> tuple[str, ...]:
        """The aliases of the backends whose locks are listed."""
        return (self.backend,) if self.backend else self.aliases

    @property
    def filtered(self) -> bool:
        """Whether filters leave some locks out."""
        return bool(self.search or self.backend or self.status or self.host or self.held_for)

    def for_backend(self, alias: str) -> LockQuery:
        """Return the query for one backend."""
        later = alias < self.start_alias if self.backwards else alias > self.start_alias
        return replace(self, inclusive=later)

    def url(self, **changes: Any) -> str:
        """Return the address of this list with some changes: ``?…``."""
        other = replace(self, **changes)
        values = {
            "q": other.search,
            "backend": other.backend,
            "state": other.status,
            "host": other.host,
            "held": int(other.held_for),
            "order": other.order if other.order is not Order.NAME else "",
        }
        if other.start is not None:
            microseconds = (other.start.since - _EPOCH) // timedelta(microseconds=1)
            place = f"{other.start_alias}:{microseconds}:{other.start.name}"
            values["before" if other.backwards else "after"] = place
        return "?" + urlencode({key: value for key, value in values.items() if value})

    @property
    def first_url(self) -> str:
        """The address of the first page."""
        return self.url(start=None)

    def url_from(self, info: LockInfo, *, backwards: bool) -> str:
        """Return the address of the page that begins after a lock, or ends before it."""
        start = cursor_of(info, self.order)
        return self.url(start=start, start_alias=info.using, backwards=backwards)


def _parse_place(text: str) -> tuple[str, Cursor] | None:
    """Return the alias and the place that url() wrote; None for any other text."""
    alias, _, rest = text.partition(":")
    microseconds, _, name = rest.partition(":")
    try:
        since = _EPOCH + timedelta(microseconds=int(microseconds))
    except (ValueError, OverflowError):
        return None
    if len(name) > MAX_NAME or "\0" in name:
        return None
    return alias, Cursor(since, name)


def _text(value: str, max_length: int) -> str:
    return value.replace("\0", "").strip()[:max_length]
