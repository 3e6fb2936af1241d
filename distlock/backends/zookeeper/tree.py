"""The nodes of locks in ZooKeeper's tree: their paths, what they say, and how they are read.

Below the root each lock has a node of its name. Below that each contender has an ephemeral node,
``<nonce>-<number>``, numbered by ZooKeeper; the lowest number holds the lock.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from kazoo.exceptions import NodeExistsError, NoNodeError, UnimplementedError

from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.requests import (
    CreateContainer,
    Delete,
    GetChildren,
    GetData,
    Reply,
    Sync,
    create_persistent,
)
from distlock.concurrency.clock import clock, left
from distlock.types.lease import Claim, Lease, LockInfo, Owner, State
from distlock.types.query import Counts, DisplayStatus, LockQuery, Order, Page, page_of

# Paths

#: What a component of a path must not contain, and the escape character itself. ZooKeeper counts in
#: UTF-16, so whatever is beyond the first plane is made of surrogates, which it refuses.
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


def make_parent(client: Client, path: str, then: Callable[[Reply], None]) -> None:
    """Make the node of a lock, and what is above it; ``then`` gets the last reply.

    The node is a container: the server removes it some time after its last child. Servers before
    3.5.3 do not know that kind, and need the sweep.
    """

    def made(reply: Reply) -> None:
        if isinstance(reply.error, NoNodeError):
            _make_path(client, client.options.root, again)
        elif isinstance(reply.error, UnimplementedError):
            _make_path(client, path, then)
        else:
            then(reply)

    def again(reply: Reply) -> None:
        if is_there(reply):
            client.send(CreateContainer(path, client.options.acl)).then(then)
        else:
            then(reply)

    client.send(CreateContainer(path, client.options.acl)).then(made)


def is_there(reply: Reply) -> bool:
    """Return whether the node that was to be made is there now."""
    return reply.error is None or isinstance(reply.error, NodeExistsError)


def _make_path(client: Client, path: str, then: Callable[[Reply], None]) -> None:
    requests = [create_persistent(each, client.options.acl) for each in ancestors(path)]
    client.send_all(requests)[-1].then(then)


# What nodes say


def to_data(claim: Claim, session: Session | None) -> bytes:
    """Return the data of the node of the contender with this claim: JSON, for people to read."""
    owner, timeout = claim.owner, session.timeout if session else None
    fields = _fields(
        owner.host, owner.pid, owner.thread, owner.key, claim.description, claim.renews, timeout
    )
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return b'{"since": "%s", %s' % (now.encode(), fields)


@lru_cache(256)
def _fields(
    host: str,
    pid: int,
    thread: str,
    key: str,
    description: str,
    renews: bool,
    timeout: float | None,
) -> bytes:
    fields = {
        "host": host,
        "pid": pid,
        "thread": thread,
        "owner": key,
        "description": description,
        "renews": renews,
        "session_timeout": timeout,
    }
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")[1:]


def held_mark(token: int) -> bytes:
    """Return the data of a lock's own node when its holder has got the lock only after a wait.

    The lock is held since that was written; the holder's node itself is as old as the wait.
    """
    return b"held by %d" % token


@dataclass(frozen=True, slots=True)
class Record:
    """The node of a contender, as read from the server: its data and its stat."""

    owner: Owner
    description: str
    token: int
    created_at: datetime  # by the server's clock
    renews: bool | None = None
    session_timeout: float | None = None

    @classmethod
    def read(cls, data: bytes, stat: Any) -> Record:
        """Understand a node; one whose data is not ours has an owner without a name."""
        try:
            fields = json.loads(data)
            owner = Owner(
                str(fields["owner"]), str(fields["host"]), int(fields["pid"]), str(fields["thread"])
            )
            description, renews = str(fields["description"]), bool(fields["renews"])
            timeout = fields["session_timeout"]
            timeout = None if timeout is None else float(timeout)
        except (ValueError, TypeError, KeyError):
            owner, description = Owner(f"node:{stat.czxid}", "unknown", 0, "unknown"), ""
            return cls(owner, description, stat.czxid, _time(stat.ctime))
        return cls(owner, description, stat.czxid, _time(stat.ctime), renews, timeout)

    def lease(self, name: str, path: str, duration: float) -> Lease:
        """Return the lease that the node stands for; its local deadline means nothing."""
        nonce = nonce_of(path.rpartition("/")[2]) or ""
        return Lease(Claim(name, self.owner, duration, self.description, nonce), self.token, 0.0)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


# Reading and clearing

#: Requests that are on their way at once; more only fill the queues of client and servers.
_BATCH = 200
#: Locks of a page that are looked at one by one: three requests or more for each, some 10,000 a
#: second.
MOST_READ = 2000
#: The part of the time for a page after which no more locks are looked at.
_READING = 1 / 2
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
        yield from self._held([name for name in self._names() if name.startswith(prefix)])

    def nodes_of(self, name: str, nonce: str) -> list[str]:
        """Return the paths of the nodes of one claim."""
        parent = self._path(name)
        return [f"{parent}/{each}" for each in self._children(parent) if nonce_of(each) == nonce]

    def delete(self, paths: Sequence[str]) -> list[Reply]:
        """Delete nodes; those that are gone already are errors of the replies."""
        return self._client.ask([Delete(path, -1) for path in paths], self._deadline)

    def break_hold(self, name: str, token: int, duration: float) -> Lease | None:
        """Delete the node that holds ``name`` with this token; return its lease, None if gone.

        ``duration`` is that of the lease, which the node does not tell.
        """
        found = self._holder(name)
        if found is None or found[1].token != token:
            return None
        path, record = found
        time.sleep(_BREAK_PAUSE)
        (deleted,) = self.delete([path])
        if not isinstance(deleted.error, NoNodeError):
            self._client.checked(deleted)
        elif not deleted.repeated:  # else the first request, whose answer was lost, has deleted it
            return None
        return record.lease(name, path, duration)

    def clear(self) -> int:
        """Remove the nodes of locks that nobody holds or waits for; return how many."""
        root = self._client.options.root
        removed = 0
        for some in _batches(self._children(root)):
            # A node with children, and only such a one, is in use: the server does not delete it.
            replies = self.delete([f"{root}/{each}" for each in some])
            removed += sum(reply.error is None for reply in replies)
        return removed

    def page(self, query: LockQuery) -> Page:
        """Return a page from the names of all locks and the nodes of no more than ``MOST_READ``.

        What would take more is left out, and the page's note says so.
        """
        names = self._names()
        if len(names) <= MOST_READ:
            return page_of(self._held(names), query)
        note = (
            f"{len(names)} names are too many to look at each lock: all are counted as held, also"
            " those that were freed lately, and nobody as waiting."
        )
        nothing = Page((), False, 0, Counts(held=len(names)), {}, note)
        if query.statuses and DisplayStatus.HELD not in query.statuses:
            return nothing  # no other can be told of a session
        search = query.search.lower()
        wanted = [name for name in names if search in name.lower()]
        if len(wanted) <= MOST_READ:
            found = page_of(self._held(wanted), query)
            return replace(found, counts=nothing.counts, note=note)
        if query.order is Order.AGE or query.host or query.held_for:
            note += (
                " To sort them by age, or to choose by host or time, search for a part of the name"
                f" that at most {MOST_READ} of them have."
            )
            return replace(nothing, found=len(wanted), note=note)
        locks, more, in_time = self._held_after(wanted, query)
        if not in_time:
            note += " Not all names from here on could be looked at in time."
        return Page(locks, more, len(wanted), nothing.counts, {}, note)

    def _held_after(
        self, names: list[str], query: LockQuery
    ) -> tuple[tuple[LockInfo, ...], bool, bool]:
        """Return the held locks from the cursor on, if there may be more, and if time was enough.

        The names of locks that were freed lately are passed over, for as long as there is time.
        """
        names = [name for name in names if _is_after(name, query)]
        if query.backwards:
            names.reverse()
        ends = clock() + left(self._deadline, math.inf) * _READING
        found: list[LockInfo] = []
        read, step = 0, query.size + 1
        while read < len(names) and len(found) <= query.size and (not read or clock() < ends):
            found += self._held(names[read : read + step])
            read += step
        in_time = read >= len(names) or len(found) > query.size
        locks = found[: query.size]
        more = len(found) > len(locks) or not in_time
        return tuple(locks[::-1] if query.backwards else locks), more, in_time

    def _names(self) -> list[str]:
        """Return the sorted names of all locks with a node; freed ones have it for a while."""
        return sorted(map(unescaped, self._children(self._client.options.root)))

    def _held(self, names: Sequence[str]) -> Iterator[LockInfo]:
        """Yield those of these locks that are held, in their order."""
        for some in _batches(names):
            yield from (info for info in self._locks(some) if info.state is not State.FREE)

    def _holder(self, name: str) -> tuple[str, Record] | None:
        """Return the path and the record of the node that holds a lock."""
        parent = self._path(name)
        for node in in_order(self._children(parent)):
            path = f"{parent}/{node}"
            if record := self._records([path]).get(path):
                return path, record
        return None

    def _children(self, path: str) -> list[str]:
        """Return the names of all children of a node, as the leader knows them now."""
        (_, listed) = self._client.ask([Sync(path), GetChildren(path, None)], self._deadline)
        return list(self._answer(listed) or ())

    def _locks(self, names: Sequence[str]) -> list[LockInfo]:
        parents = [self._path(name) for name in names]
        reads: list[Any] = [Sync(parents[0])]
        for parent in parents:
            reads += [GetChildren(parent, None), GetData(parent, None)]
        _, *replies = self._client.ask(reads, self._deadline)
        queues = [
            [f"{parent}/{node}" for node in in_order(self._answer(listed) or ())]
            for parent, listed in zip(parents, replies[::2], strict=True)
        ]
        records = self._records([path for queue in queues for path in queue])
        return [
            self._info(name, [records[path] for path in queue if path in records], marked)
            for name, queue, marked in zip(names, queues, replies[1::2], strict=True)
        ]

    def _records(self, nodes: Sequence[str]) -> dict[str, Record]:
        """Return what the nodes say, without those that have gone by now."""
        records = {}
        for some in _batches(nodes):
            replies = self._client.ask([GetData(path, None) for path in some], self._deadline)
            for path, reply in zip(some, replies, strict=True):
                if found := self._answer(reply):
                    records[path] = Record.read(*found)
        return records

    def _info(self, name: str, queue: Sequence[Record], marked: Reply) -> LockInfo:
        if not queue:
            return LockInfo(name, self._alias, waiters=())
        holder, *waiters = queue
        since = holder.created_at
        if (mark := self._answer(marked)) and mark[0] == held_mark(holder.token):
            since = _time(mark[1].mtime)
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

    def _answer(self, reply: Reply) -> Any:
        """Return the answer; None if there is no such node."""
        if isinstance(reply.error, NoNodeError):
            return None
        return self._client.checked(reply)


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _is_after(name: str, query: LockQuery) -> bool:
    start = query.start
    if start is None:
        return True
    if name == start.name:
        return query.inclusive
    return name < start.name if query.backwards else name > start.name
