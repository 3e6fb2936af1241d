"""The nodes of locks in ZooKeeper's tree: paths, what they say, reading, clearing.

Below the root each lock has a node of its name. Below that each contender has an ephemeral node,
``<nonce>-<number>``, numbered by ZooKeeper; the lowest number holds the lock.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from kazoo.exceptions import NodeExistsError, NoNodeError, UnimplementedError
from kazoo.protocol.serialization import Create, Delete, GetChildren, GetData, Sync

from distlock.backends.zookeeper.client import ZooKeeperClient, ZooKeeperSession
from distlock.backends.zookeeper.requests import BATCH, CreateContainer, Reply
from distlock.types.lease import Claim, Lease, LockInfo, Owner, State
from distlock.types.values import batches

# Paths

#: The node below the root that has the records. An escape has hexadecimal digits, so no lock has
#: this name.
RECORDS = "%records"
#: Characters that a component of a path must not contain, and the escape character itself.
#: ZooKeeper counts in UTF-16, so characters beyond the first plane are made of surrogates, which it
#: refuses.
_ESCAPED = re.compile("[^\x20-\x24\x26-\x2e\x30-\x7e\xa0-\ud7ff\uf900-\uffef]")
_DOTS = re.compile(r"\.\.?")
_CONTENDER = re.compile(r"([0-9a-f]{32})-(-?\d+)")
_SEQUENCES = 2**32


@lru_cache(1024)
def escaped(name: str) -> str:
    """Return a lock's name as one component of a path; most names stay as they are."""
    if _DOTS.fullmatch(name):
        return name.replace(".", "%2E")
    return _ESCAPED.sub(lambda found: quote(found[0], safe=""), name)


@lru_cache(1024)
def unescaped(component: str) -> str:
    """Return the name of a lock from its component."""
    return unquote(component)


def nonce_of(node: str) -> str | None:
    """Return the nonce of the claim that a contender's node stands for; None for a foreign node."""
    found = _CONTENDER.fullmatch(node)
    return found[1] if found else None


def in_order(nodes: Iterable[str]) -> list[str]:
    """Return the nodes of contenders, the holder first; foreign nodes are left out.

    Sequence numbers are Java's ints, which go on below zero after 2,147,483,647.
    """
    numbers = {node: int(found[2]) for node in nodes if (found := _CONTENDER.fullmatch(node))}
    if numbers and max(numbers.values()) - min(numbers.values()) > _SEQUENCES // 2:
        numbers = {node: number % _SEQUENCES for node, number in numbers.items()}
    return sorted(numbers, key=numbers.__getitem__)


def ancestors(path: str) -> list[str]:
    """Return ``path`` and what is above it, the highest first, without the root."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]


# Making the node of a lock


def make_parent(client: ZooKeeperClient, path: str) -> Generator[Reply, Reply, None]:
    """Make the node of a lock, or what is above it if that is missing; yields what it waits for.

    The node is a container: the server removes it some time after its last child. Servers before
    3.5.3 do not know that kind, and need the sweep.
    """
    made = yield client.send(CreateContainer(path, client.options.acl))
    if isinstance(made.error, NoNodeError):
        made = yield client.send_all(creates_of(client, client.options.root))[-1]
    elif isinstance(made.error, UnimplementedError):
        made = yield client.send_all(creates_of(client, path))[-1]
    with suppress(NodeExistsError):
        made.get()


def creates_of(client: ZooKeeperClient, path: str) -> list[Create]:
    """Return the requests that make a node that stays, and what is above it, the highest first."""
    return [Create(each, b"", client.options.acl, 0) for each in ancestors(path)]


# What nodes say


def to_data(claim: Claim, session: ZooKeeperSession) -> bytes:
    """Return the data of the node of the contender with this claim: JSON, for people to read."""
    owner, now = claim.owner, datetime.now(UTC).isoformat(timespec="milliseconds")
    rest = _fields(
        owner, owner.thread, claim.label or claim.description, claim.renews, session.timeout
    )
    return b'{"since": "%s", %s' % (now.encode(), rest)


@lru_cache(256)
def _fields(
    owner: Owner, thread: str, description: str, renews: bool, session_timeout: float
) -> bytes:
    """Return the rest of that data; to write it as JSON is a tenth of the work for a lock."""
    fields = {
        **owner.to_fields(),
        "thread": thread,
        "description": description,
        "renews": renews,
        "session_timeout": session_timeout,
    }
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")[1:]


def held_mark(token: int) -> bytes:
    """Return the data of a lock's own node when its holder has got the lock only after a wait.

    The lock is held since that was written; the holder's node itself is as old as the wait.
    """
    return b"held by %d" % token


@dataclass(frozen=True, slots=True)
class NodeData:
    """The node of a contender, as read from the server: its data and its stat."""

    owner: Owner
    description: str
    token: int
    created_at: datetime  # by the server's clock
    renews: bool | None = None
    session_timeout: float | None = None

    @classmethod
    def read(cls, data: bytes, stat: Any) -> NodeData:
        """Understand a node; one whose data is not ours has an owner without a name."""
        try:
            fields = json.loads(data)
            owner = Owner.from_fields(fields)
            description, renews = str(fields["description"]), bool(fields["renews"])
            timeout = float(fields["session_timeout"])
        except (ValueError, TypeError, KeyError):
            owner, description = Owner(f"node:{stat.czxid}", "unknown", 0, "unknown"), ""
            return cls(owner, description, stat.czxid, to_time(stat.ctime))
        return cls(owner, description, stat.czxid, to_time(stat.ctime), renews, timeout)


def to_time(milliseconds: int) -> datetime:
    """Return a time of the server's clock."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


#: Seconds between seeing a hold and breaking it. So a hold that is younger than ``UNBREAKABLE``
#: seconds cannot have been broken: its release need not wait for the server's answer.
_BREAK_PAUSE = 0.1
UNBREAKABLE = 0.05


class TreeReader:
    """See NameReader; it clears, too."""

    def __init__(self, client: ZooKeeperClient, alias: str, deadline: float | None) -> None:
        self._client = client
        self._alias = alias
        self._deadline = deadline

    def names(self, prefix: str) -> list[str]:
        """See NameReader.names(). Locks that were freed have a node for a while."""
        names = sorted(map(unescaped, self._nodes()))
        return [name for name in names if name.startswith(prefix)]

    def look(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """See NameReader.look()."""
        for some in batches(names, BATCH):
            yield from self._locks(some)

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
        for some in batches(self._nodes(), BATCH):
            # A node with children, and only such a one, is in use: the server does not delete it.
            replies = self._delete([f"{root}/{each}" for each in some])
            removed += sum(reply.error is None for reply in replies)
        return removed

    def _nodes(self) -> list[str]:
        """Return the names of the nodes of all locks."""
        return [each for each in self._children(self._client.options.root) if each != RECORDS]

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

    def _contenders(self, nodes: Sequence[str]) -> dict[str, NodeData]:
        """Return what the nodes say, in their order, without those that have gone by now."""
        found = self._client.find(GetData, nodes, self._deadline)
        return {path: NodeData.read(*node) for path, node in found.items() if node}

    def _info(self, name: str, queue: Sequence[NodeData], marked: Reply) -> LockInfo:
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
