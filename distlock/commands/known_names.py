"""Which names are in use, of what kind and where; and which of them are like one that is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple

from distlock.backends.base import BaseBackend
from distlock.commands import output
from distlock.commands.list_locks import locks_in_use
from distlock.exceptions import NotSupported
from distlock.recipes.recipe import names_of
from distlock.types.lease import LOCK_KINDS, Kind

#: Names that are proposed in place of one that is not known.
_PROPOSED = 5


class KnownName(NamedTuple):
    """A name that is in use somewhere."""

    name: str
    kind: Kind
    using: str

    def __str__(self) -> str:
        return f"{output.quoted(self.name)} ({self.kind} on {self.using})"


def known_names(backend: BaseBackend) -> Iterator[KnownName]:
    """Return all names that are in use in a backend."""
    for info in locks_in_use(backend):
        yield KnownName(info.name, info.kind, backend.alias)
    yield from recipe_names(backend)


def recipe_names(backend: BaseBackend, beginning: str = "") -> Iterator[KnownName]:
    """Return the names of elections, queues and the like that begin so."""
    for kind in Kind:
        try:
            names = [] if kind in LOCK_KINDS else names_of(kind, backend.alias, beginning)
        except NotSupported:
            return  # it keeps nothing but locks
        yield from (KnownName(name, kind, backend.alias) for name in names)


def alike(name: str, known: Iterable[KnownName]) -> list[KnownName]:
    """Return the names that someone who wrote ``name`` may have meant, the likeliest first."""
    wanted = name.casefold()
    by_name: dict[str, list[KnownName]] = {}
    for each in known:
        by_name.setdefault(each.name.casefold(), []).append(each)
    found = get_close_matches(wanted, by_name, _PROPOSED)
    found += (each for each in by_name if wanted in each and each not in found)
    return [known for each in found for known in by_name[each]][:_PROPOSED]
