"""What a request asks of the list of held locks, and the addresses of other such lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import QueryDict
from django.utils.http import urlencode

from distlock.types.lease import LockInfo
from distlock.types.names import MAX_NAME
from distlock.types.query import Cursor, DisplayStatus, LockQuery, Order, cursor_of

#: Locks on a page.
SIZE = 50
#: Times, in seconds, that one can ask locks to have been held for.
SPANS = (10, 60, 300, 900, 3600, 6 * 3600, 86400)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_HOST = 255


@dataclass(frozen=True, slots=True)
class PageCursor:
    """A lock in a list, after or before which another page begins."""

    alias: str
    place: Cursor

    @classmethod
    def at(cls, info: LockInfo, order: Order) -> PageCursor:
        """Return the cursor at a lock of a list in this order."""
        return cls(info.using, cursor_of(info, order))

    @classmethod
    def read(cls, text: str) -> PageCursor | None:
        """Understand what str() wrote; None for anything else."""
        alias, _, rest = text.partition(":")
        microseconds, _, name = rest.partition(":")
        try:
            since = _EPOCH + timedelta(microseconds=int(microseconds))
        except (ValueError, OverflowError):
            return None
        if len(name) > MAX_NAME or "\0" in name:
            return None
        return cls(alias, Cursor(name, since))

    def __str__(self) -> str:
        microseconds = (self.place.since - _EPOCH) // timedelta(microseconds=1)
        return f"{self.alias}:{microseconds}:{self.place.name}"


@dataclass(frozen=True, slots=True)
class Query:
    """Filters, order and place of a list; what makes no sense in an address is left out."""

    aliases: tuple[str, ...]  # all that there are
    search: str = ""
    backend: str = ""
    status: DisplayStatus | None = None
    host: str = ""
    held_for: int = 0
    order: Order = Order.NAME
    after: PageCursor | None = None
    before: PageCursor | None = None

    @classmethod
    def read(cls, given: QueryDict, aliases: Iterable[str]) -> Query:
        """Understand the parameters of an address."""
        aliases = tuple(aliases)
        backend = given.get("backend", "")
        held_for = given.get("held", "")
        after = PageCursor.read(given.get("after", ""))
        return cls(
            aliases,
            search=_text(given.get("q", ""), MAX_NAME),
            backend=backend if backend in aliases else "",
            status=_member(DisplayStatus, given.get("state", "")),
            host=_text(given.get("host", ""), _MAX_HOST),
            held_for=int(held_for) if held_for in map(str, SPANS) else 0,
            order=_member(Order, given.get("order", "")) or Order.NAME,
            after=after,
            before=None if after else PageCursor.read(given.get("before", "")),
        )

    @property
    def asked(self) -> tuple[str, ...]:
        """The aliases of the backends that are to be listed."""
        return (self.backend,) if self.backend else self.aliases

    @property
    def filtered(self) -> bool:
        """Whether some locks are left out on purpose."""
        return bool(self.search or self.backend or self.status or self.host or self.held_for)

    @property
    def backwards(self) -> bool:
        return self.before is not None

    def lock_query(self, alias: str) -> LockQuery:
        """Return what this asks of one backend.

        Locks of one place in several backends stand in the order of their aliases.
        """
        cursor = self.before or self.after
        inclusive = cursor is not None and (
            alias < cursor.alias if self.backwards else alias > cursor.alias
        )
        return LockQuery(
            search=self.search,
            statuses=frozenset({self.status}) if self.status else frozenset(),
            host=self.host,
            held_for=float(self.held_for),
            order=self.order,
            start=cursor.place if cursor else None,
            inclusive=inclusive,
            backwards=self.backwards,
            size=SIZE,
        )

    def url(self, **changes: Any) -> str:
        """Return the address of another list: ``?…``."""
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
    def first(self) -> str:
        """The address of the first page of this list."""
        return self.url(after=None, before=None)

    def sorted_by(self, order: Order) -> str:
        """Return the address of the first page of this list in another order."""
        return self.url(order=order, after=None, before=None)


def _text(given: str, longest: int) -> str:
    return given.replace("\0", "").strip()[:longest]


def _member(kind: Any, value: str) -> Any:
    return kind(value) if value in {member.value for member in kind} else None
