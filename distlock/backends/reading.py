"""Reading of directories and of locks; and what many recipes read together."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from distlock.backends.base import BaseBackend
from distlock.backends.store import KeyRange, Peek, RecordStore, Snapshot
from distlock.concurrency.reentry import calls_others
from distlock.types.lease import LockInfo, State
from distlock.types.query import MOST_READ, LockQuery, NamePages, Page

T = TypeVar("T")


class NameReader(Protocol):
    """Reads for one question; all is to be answered by one deadline."""

    def names(self, prefix: str) -> Sequence[str]:
        """Return the sorted names that begin so, of all locks that are held, and perhaps others."""

    def look(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield what is known of these locks, in their order."""


class BackendWithNames(BaseBackend):
    """A backend that lists the names of locks first, and then looks at some of them."""

    @abstractmethod
    def _reader(self, deadline: float | None) -> NameReader: ...

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        """See BaseBackend.inspect()."""
        return next(self._reader(deadline).look([name]))

    def list(self, prefix: str = "", deadline: float | None = None) -> Iterator[LockInfo]:
        """See BaseBackend.list()."""
        reader = self._reader(deadline)
        return _held(reader, reader.names(prefix))

    def page(self, query: LockQuery, deadline: float | None = None) -> Page:
        """See BaseBackend.page(). Of very many locks, only those on the page are looked at."""
        reader = self._reader(deadline)
        return NamePages(reader.names(""), partial(_held, reader), MOST_READ, deadline).page(query)


def _held(reader: NameReader, names: Sequence[str]) -> Iterator[LockInfo]:
    return (info for info in reader.look(names) if info.state is not State.FREE)


class ReadAhead:
    """Answers what recipes of several names ask one after the other, in few questions.

    The requests of the first one are made for the next ones, too: they look at the same things
    under their own names. So all of them must be of one kind and one backend. An answer may be some
    moments old when it is used, so this is only for what is shown.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        #: the place of the name that is looked at now
        self.place = 0
        #: by question, and what stands before the names, the last answers
        self._found: dict[tuple[str, str], Mapping[str, Any]] = {}

    def answer(
        self, question: str, text: str, ask: Callable[[Sequence[str]], Mapping[str, T]], most: int
    ) -> T:
        """Return the answer about ``text``, which ends with the name that is looked at now."""
        before = text.removesuffix(self._names[self.place])
        found: Mapping[str, T] = self._found.get((question, before), {})
        if text not in found:
            names = self._names[self.place : self.place + most]
            texts = [before + name for name in names] if before != text else [text]
            found = self._found[question, before] = ask(texts)
        return found[text]


class _AheadOfThread(threading.local):
    ahead: ReadAhead | None = None


_this = _AheadOfThread()


def is_ahead() -> bool:
    """Return whether what this thread reads may have been read some moments ago."""
    return _this.ahead is not None


def read(
    store: RecordStore,
    directory: str,
    deadline: float | None,
    keys: Collection[str] = (),
    peek: Peek | None = None,
) -> Snapshot:
    """Read a directory, some keys of it, or what ``peek`` says. See together()."""
    if (ahead := _this.ahead) is not None:
        ask = partial(store.read_many, deadline=deadline, keys=keys, peek=peek)
        return ahead.answer(repr((keys, peek)), directory, ask, store.at_once)
    if peek is not None:
        return store.peek(directory, peek, deadline)
    return store.look(directory, keys, deadline) if keys else store.read(directory, deadline)


def inspect_holder(backend: BaseBackend, name: str, deadline: float | None) -> LockInfo:
    """See BaseBackend.inspect_holder(), and together()."""
    if (ahead := _this.ahead) is not None:
        ask = partial(backend.inspect_holders, deadline=deadline)
        return ahead.answer("holder", name, ask, backend.store.at_once)
    return backend.inspect_holder(name, deadline)


@calls_others
def together(names: Sequence[str], look: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    """Yield each name, and what ``look(name)`` returns; see ReadAhead for what it looks at."""
    ahead = ReadAhead(names)
    for ahead.place, name in enumerate(names):  # noqa: B020
        _this.ahead = ahead
        try:
            found = look(name)
        finally:
            _this.ahead = None
        yield name, found


def list_keys(keys: Iterable[str], listed: KeyRange | None) -> list[str]:
    """Return the keys that are in a range, in its order."""
    if listed is None:
        return []
    prefix, limit, after, reverse = listed
    found = (key for key in keys if key.startswith(prefix))
    if reverse:
        return sorted((key for key in found if not after or key < after), reverse=True)[:limit]
    return sorted(key for key in found if key > after)[:limit]


def first_keys(keys: Iterable[str], first: Mapping[str, int]) -> list[str]:
    """Return the keys, sorted, of which peek() returns the records."""
    found = sorted(keys)
    chosen: set[str] = set()
    for prefix, limit in first.items():
        chosen.update(islice((key for key in found if key.startswith(prefix)), limit))
    return sorted(chosen)


def count_keys(keys: Collection[str], count: Collection[str]) -> dict[str, int]:
    """Return how many of the keys begin with each prefix."""
    return {prefix: sum(key.startswith(prefix) for key in keys) for prefix in count}
