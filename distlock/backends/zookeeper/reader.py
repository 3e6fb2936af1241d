"""Reads locks from the tree, and clears it: who holds them, who waits, what can be removed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Delete, GetChildren, GetData, Sync

from distlock.backends.paging import MOST_READ, NamePages
from distlock.backends.zookeeper.client import Client
from distlock.backends.zookeeper.record_nodes import RECORDS
from distlock.backends.zookeeper.requests import Reply, batches
from distlock.backends.zookeeper.tree import (
    ContenderData,
    escaped,
    held_mark,
    in_order,
    nonce_of,
    to_time,
    unescaped,
)
from distlock.types.lease import Claim, Lease, LockInfo, State
from distlock.types.query import LockQuery, Page

#: Seconds between seeing a hold and breaking it. So a hold that is younger than ``UNBREAKABLE``
#: seconds cannot have been broken: its release need not wait for the server's answer.
_BREAK_PAUSE = 0.1
UNBREAKABLE = 0.05


class TreeReader:
    """Reads, or clears, for one question; all is to be answered by one deadline."""

    def __init__(self, client: Client, alias: str, deadline: float | None) -> None:
        self._client = client
        self._alias = alias
        self._deadline = deadline

    def lock(self, name: str) -> LockInfo:
        """Return what is known of one lock."""
        return self._locks([name])[0]

    def held(self, prefix: str) -> Iterator[LockInfo]:
        """Yield the locks that are held and whose names begin with ``prefix``, by name."""
        return self._held([name for name in self._names() if name.startswith(prefix)])

    def remove(self, name: str, nonce: str) -> None:
        """Delete the nodes of one claim; there are more of them than one if it was sent again."""
        parent = self._path(name)
        own = [f"{parent}/{each}" for each in self._children(parent) if nonce_of(each) == nonce]
        if own:
            self._delete(own)

    def break_hold(self, name: str, token: int, duration: float) -> Lease | None:
        """Delete the node that holds ``name`` with this token; return its lease, None if gone.

        ``duration`` is the length of the lease, in seconds, which is not in the node. Its local
        deadline means nothing.
        """
        parent = self._path(name)
        queue = self._contenders([f"{parent}/{node}" for node in in_order(self._children(parent))])
        path = next(iter(queue), "")  # of the holder
        if not path or queue[path].token != token:
            return None
        time.sleep(_BREAK_PAUSE)
        (deleted,) = self._delete([path])
        if not isinstance(deleted.error, NoNodeError):
            self._client.checked(deleted)
        elif not deleted.repeated:  # else the first request has deleted it; its answer was lost
            return None
        holder, nonce = queue[path], nonce_of(path.rpartition("/")[2]) or ""
        claim = Claim(name, holder.owner, duration, holder.description, nonce)
        return Lease(claim, token, 0.0)

    def clear(self) -> int:
        """Remove the nodes of locks without contenders; return how many."""
        root = self._client.options.root
        removed = 0
        for some in batches(self._nodes()):
            # A node with children, and only such a one, is in use: the server does not delete it.
            replies = self._delete([f"{root}/{each}" for each in some])
            removed += sum(reply.error is None for reply in replies)
        return removed

    def page(self, query: LockQuery) -> Page:
        """Return a page from the names of all locks and the nodes of no more than ``MOST_READ``."""
        return NamePages(self._names(), self._held, MOST_READ, self._deadline).page(query)

    def _names(self) -> list[str]:
        """Return the sorted names of all locks with a node; freed ones have it for a while."""
        return sorted(map(unescaped, self._nodes()))

    def _nodes(self) -> list[str]:
        """Return the names of the nodes of all locks."""
        return [each for each in self._children(self._client.options.root) if each != RECORDS]

    def _held(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield those of these locks that are held, in their order."""
        for some in batches(names):
            yield from (info for info in self._locks(some) if info.state is not State.FREE)

    def _delete(self, paths: Sequence[str]) -> list[Reply]:
        """Delete nodes; those that are gone already are errors of the replies."""
        return self._client.ask([Delete(path, -1) for path in paths], self._deadline)

    def _children(self, path: str) -> list[str]:
        """Return the names of all children of a node, as the leader knows them now."""
        (_, listed) = self._client.ask([Sync(path), GetChildren(path, None)], self._deadline)
        return list(self._client.found(listed) or ())

    def _locks(self, names: Sequence[str]) -> list[LockInfo]:
        parents = [self._path(name) for name in names]
        reads: list[Any] = [Sync(parents[0])]
        for parent in parents:
            reads += [GetChildren(parent, None), GetData(parent, None)]
        _, *replies = self._client.ask(reads, self._deadline)
        queues = [
            [f"{parent}/{node}" for node in in_order(self._client.found(listed) or ())]
            for parent, listed in zip(parents, replies[::2], strict=True)
        ]
        contenders = self._contenders([path for queue in queues for path in queue])
        return [
            self._info(name, [contenders[path] for path in queue if path in contenders], marked)
            for name, queue, marked in zip(names, queues, replies[1::2], strict=True)
        ]

    def _contenders(self, nodes: Sequence[str]) -> dict[str, ContenderData]:
        """Return what the nodes say, in their order, without those that have gone by now."""
        found = self._client.find(GetData, nodes, self._deadline)
        return {path: ContenderData.read(*node) for path, node in found.items() if node}

    def _info(self, name: str, queue: Sequence[ContenderData], marked: Reply) -> LockInfo:
        if not queue:
            return LockInfo(name, self._alias, waiters=())
        holder, *waiters = queue
        since = holder.created_at
        if (mark := self._client.found(marked)) and mark[0] == held_mark(holder.token):
            since = to_time(mark[1].mtime)
        return LockInfo(
            name,
            self._alias,
            State.HELD,
            owner=holder.owner,
            token=holder.token,
            since=since,
            held_for=max((datetime.now(UTC) - since).total_seconds(), 0.0),
            description=holder.description,
            waiters=tuple(waiter.owner for waiter in waiters),
            lease=holder.session_timeout,
            renews=holder.renews,
        )

    def _path(self, name: str) -> str:
        return f"{self._client.options.root}/{escaped(name)}"
