"""Reads locks: who holds them, and who waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distlock.backends.etcd.client import Client
from distlock.backends.etcd.kv import MOST_OPERATIONS, KeyValue, get, get_from
from distlock.backends.etcd.lock_keys import (
    LockKey,
    LockKeys,
    info_of,
    locks_beginning,
    name_of,
)
from distlock.backends.paging import MOST_READ, NamePages
from distlock.types.lease import LockInfo, State
from distlock.types.query import LockQuery, Page

#: Keys that are read in one request.
_BATCH = 1000


class LockReader:
    """Reads for one question; all is to be answered by one deadline."""

    def __init__(self, client: Client, alias: str, deadline: float | None) -> None:
        self._client = client
        self._alias = alias
        self._deadline = deadline

    def lock(self, name: str) -> LockInfo:
        """Return what is known of one lock."""
        return info_of(name, self._alias, map(LockKey.read, self._keys_of(name)))

    def stored(self, name: str) -> dict[str, str]:
        """Return the keys of a lock, oldest first, and what they say."""
        found = sorted(self._keys_of(name), key=lambda kv: kv.created)
        return {kv.key: kv.value.decode(errors="replace") for kv in found}

    def _keys_of(self, name: str) -> list[KeyValue]:
        keys = LockKeys(self._client.options.prefix, name)
        return self._client.txn([], [get(keys.all, prefix=True)], deadline=self._deadline).found()

    def held(self, prefix: str) -> Iterator[LockInfo]:
        """Yield the locks that are held and whose names begin with ``prefix``, by name."""
        return self._held(self._names(prefix))

    def page(self, query: LockQuery) -> Page:
        """Return a page from the names of all locks and the keys of no more than ``MOST_READ``."""
        return NamePages(self._names(""), self._held, MOST_READ, self._deadline).page(query)

    def _names(self, prefix: str) -> list[str]:
        keys = self._keys(locks_beginning(self._client.options.prefix, prefix), keys_only=True)
        return sorted({name_of(kv.key) for kv in keys})

    def _held(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield those of these locks that are held, in their order."""
        for start in range(0, len(names), MOST_OPERATIONS):
            some = names[start : start + MOST_OPERATIONS]
            keys = [LockKeys(self._client.options.prefix, name).all for name in some]
            reads = [get(key, prefix=True) for key in keys]
            reply = self._client.txn([], reads, deadline=self._deadline)
            for number, name in enumerate(some):
                info = info_of(name, self._alias, map(LockKey.read, reply.found(number)))
                if info.state is not State.FREE:
                    yield info

    def _keys(self, prefix: str, *, keys_only: bool = False) -> Iterator[KeyValue]:
        """Yield all keys that begin so, some thousand at a time, in their order."""
        start = prefix
        while True:
            some = get_from(start, prefix, limit=_BATCH, keys_only=keys_only)
            found = self._client.txn([], [some], deadline=self._deadline).found()
            yield from found
            if len(found) < _BATCH:
                return
            start = f"{found[-1].key}\0"
