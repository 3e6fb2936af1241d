"""Filters, order and page of the list of held locks, read from an address and written to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import QueryDict
from django.utils.http import urlencode

from distlock.types.arguments import MAX_NAME
from distlock.types.lease import LockInfo
from distlock.types.query import Cursor, DisplayStatus, LockQuery, Order, cursor_of

#: Locks on a page.
PAGE_SIZE = 50
#: Values of the filter "held longer than", in seconds.
HELD_FOR_CHOICES = (10, 60, 300, 900, 3600, 6 * 3600, 86400)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_HOST = 255


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The lock after which, or before which, a page begins."""

    alias: str
    cursor: Cursor

    @classmethod
    def at(cls, info: LockInfo, order: Order) -> PageCursor:
        """Return the cursor at a lock of a list in this order."""
        return cls(info.using, cursor_of(info, order))

    @classmethod
    def parse(cls, text: str) -> PageCursor | None:
        """Return the cursor that str() wrote; None for any other text."""
        alias, _, rest = text.partition(":")
        microseconds, _, name = rest.partition(":")
        try:
            since = _EPOCH + timedelta(microseconds=int(microseconds))
        except (ValueError, OverflowError):
            return None
        if len(name) > MAX_NAME or "\0" in name:
            return None
        return cls(alias, Cursor(since, name))

    def __str__(self) -> str:
        microseconds = (self.cursor.since - _EPOCH) // timedelta(microseconds=1)
        return f"{self.alias}:{microseconds}:{self.cursor.name}"


@dataclass(frozen=True, slots=True)
class Query:
    """Filters, order and page of the list."""

    aliases: tuple[str, ...]  # of all backends, whatever the filters are
    search: str = ""
    backend: str = ""
    status: DisplayStatus | None = None
    host: str = ""
    held_for: int = 0
    order: Order = Order.NAME
    after: PageCursor | None = None
    before: PageCursor | None = None

    @classmethod
    def parse(cls, parameters: QueryDict, aliases: Iterable[str]) -> Query:
        """Read the parameters of an address; values that make no sense are ignored."""
        aliases = tuple(aliases)
        backend = parameters.get("backend", "")
        held_for = parameters.get("held", "")
        after = PageCursor.parse(parameters.get("after", ""))
        return cls(
            aliases,
            search=_text(parameters.get("q", ""), MAX_NAME),
            backend=backend if backend in aliases else "",
            status=_member(DisplayStatus, parameters.get("state", "")),
            host=_text(parameters.get("host", ""), _MAX_HOST),
            held_for=int(held_for) if held_for in map(str, HELD_FOR_CHOICES) else 0,
            order=_member(Order, parameters.get("order", "")) or Order.NAME,
            after=after,
            before=None if after else PageCursor.parse(parameters.get("before", "")),
        )

    @property
    def listed_aliases(self) -> tuple[str, ...]:
        """The aliases of the backends whose locks are listed."""
        return (self.backend,) if self.backend else self.aliases

    @property
    def filtered(self) -> bool:
        """Whether filters leave some locks out."""
        return bool(self.search or self.backend or self.status or self.host or self.held_for)

    @property
    def backwards(self) -> bool:
        return self.before is not None

    def lock_query(self, alias: str) -> LockQuery:
        """Return the query for one backend.

        Locks of one name (or age) in several backends are listed in the order of their aliases.
        """
        start = self.before or self.after
        inclusive = start is not None and (
            alias < start.alias if self.backwards else alias > start.alias
        )
        return LockQuery(
            search=self.search,
            status=self.status,
            host=self.host,
            held_for=float(self.held_for),
            order=self.order,
            start=start.cursor if start else None,
            inclusive=inclusive,
            backwards=self.backwards,
            size=PAGE_SIZE,
        )

    def url(self, **changes: Any) -> str:
        """Return the address of this list with some changes: ``?…``."""
        other = replace(self, **changes)
        values = {
            "q": other.search,
            "backend": other.backend,
            "state": other.status.value if other.status else "",
            "host": other.host,
            "held": other.held_for or "",
            "order": "" if other.order is Order.NAME else other.order.value,
            "after": str(other.after) if other.after else "",
            "before": str(other.before) if other.before else "",
        }
        return "?" + urlencode({key: value for key, value in values.items() if value})

    @property
    def first_url(self) -> str:
        """The address of the first page."""
        return self.url(after=None, before=None)

    def url_sorted_by(self, order: Order) -> str:
        """Return the address of the first page in another order."""
        return self.url(order=order, after=None, before=None)


def _text(value: str, max_length: int) -> str:
    return value.replace("\0", "").strip()[:max_length]


def _member(kind: Any, value: str) -> Any:
    return kind(value) if value in {member.value for member in kind} else None
