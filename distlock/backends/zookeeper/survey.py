"""What the tree of nodes tells of locks: who holds them, who waits, and what can be cleared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from kazoo.exceptions import NoNodeError

from distlock.backends.zookeeper import paths
from distlock.backends.zookeeper.client import Client
from distlock.backends.zookeeper.record import Record, when
from distlock.backends.zookeeper.requests import Delete, GetChildren, GetData, Reply, Sync
from distlock.types.lease import LockInfo, State

#: Requests that are on their way at once; more only fill the queues of client and servers.
_BATCH = 200


class Survey:
    """Reads for one question, all to be answered by one deadline."""

    def __init__(self, client: Client, alias: str, deadline: float | None) -> None:
        self.client = client
        self._alias = alias
        self.deadline = deadline

    def lock(self, name: str) -> LockInfo:
        """Return what is known of one lock."""
        return self._locks([name])[0]

    def held(self, prefix: str) -> Iterator[LockInfo]:
        """Yield the locks that are held and whose names begin with ``prefix``, by name."""
        yield from self.held_of([name for name in self.names() if name.startswith(prefix)])

    def names(self) -> list[str]:
        """Return the names of all locks that have a node, sorted.

        A lock has one for a while after it was freed.
        """
        return sorted(map(paths.unescaped, self._known()))

    def held_of(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield those of these locks that are held, in their order."""
        for some in _batches(names):
            yield from (info for info in self._locks(some) if info.state is not State.FREE)

    def holder(self, name: str) -> tuple[str, Record] | None:
        """Return the path and the record of the node that holds a lock."""
        parent = self._path(name)
        (_, listed) = self.client.ask([Sync(parent), GetChildren(parent, None)], self.deadline)
        for node in paths.in_order(self._there(listed) or ()):
            path = f"{parent}/{node}"
            (read,) = self.client.ask([GetData(path, None)], self.deadline)
            if found := self._there(read):
                return path, Record.read(*found)
        return None

    def nodes_of(self, name: str, nonce: str) -> list[str]:
        """Return the paths of the nodes that stand in line for one claim."""
        parent = self._path(name)
        (_, listed) = self.client.ask([Sync(parent), GetChildren(parent, None)], self.deadline)
        nodes = self._there(listed) or ()
        return [f"{parent}/{node}" for node in nodes if paths.nonce_of(node) == nonce]

    def clear(self) -> int:
        """Remove the nodes of locks that nobody holds or waits for; return how many."""
        removed = 0
        for some in _batches(self._known()):
            deletes = [Delete(f"{self.client.options.root}/{each}", -1) for each in some]
            # A node with children, and only such a one, is in use: the server does not delete it.
            removed += sum(reply.error is None for reply in self.client.ask(deletes, None))
        return removed

    def _known(self) -> list[str]:
        root = self.client.options.root
        (_, listed) = self.client.ask([Sync(root), GetChildren(root, None)], self.deadline)
        return list(self._there(listed) or ())

    def _locks(self, names: Sequence[str]) -> list[LockInfo]:
        parents = [self._path(name) for name in names]
        reads: list[Any] = [Sync(parents[0])]
        for parent in parents:
            reads += [GetChildren(parent, None), GetData(parent, None)]
        _, *replies = self.client.ask(reads, self.deadline)
        lines = [
            [f"{parent}/{node}" for node in paths.in_order(self._there(listed) or ())]
            for parent, listed in zip(parents, replies[::2], strict=True)
        ]
        records = self._records([path for line in lines for path in line])
        return [
            self._info(name, [records[path] for path in line if path in records], marked)
            for name, line, marked in zip(names, lines, replies[1::2], strict=True)
        ]

    def _records(self, nodes: Sequence[str]) -> dict[str, Record]:
        """Return what the nodes say, without those that have gone by now."""
        records = {}
        for some in _batches(nodes):
            replies = self.client.ask([GetData(path, None) for path in some], self.deadline)
            for path, reply in zip(some, replies, strict=True):
                if found := self._there(reply):
                    records[path] = Record.read(*found)
        return records

    def _info(self, name: str, line: Sequence[Record], marked: Reply) -> LockInfo:
        if not line:
            return LockInfo(name, self._alias, waiters=())
        holder, *waiters = line
        since = holder.created_at
        if (mark := self._there(marked)) and mark[0] == mark_of(holder.token):
            since = when(mark[1].mtime)
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
        return f"{self.client.options.root}/{paths.escaped(name)}"

    def _there(self, reply: Reply) -> Any:
        """Return the answer; None if there is no such node."""
        if isinstance(reply.error, NoNodeError):
            return None
        return self.client.checked(reply)


def mark_of(token: int) -> bytes:
    """Return what a lock's own node says when its holder has come to hold it only after a wait.

    The time at which that was written is the time since when it is held; the holder's node itself
    is as old as the wait.
    """
    return b"held by %d" % token


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]
