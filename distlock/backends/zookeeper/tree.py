"""The nodes of locks in ZooKeeper's tree: their paths, what they say, and how they are made.

Below the root each lock has a node of its name. Below that each contender has an ephemeral node,
``<nonce>-<number>``, numbered by ZooKeeper; the lowest number holds the lock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from kazoo.exceptions import NodeExistsError, NoNodeError, UnimplementedError
from kazoo.protocol.serialization import Create

from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.requests import CreateContainer, Reply
from distlock.types.lease import Claim, Owner

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


def make_parent(client: Client, path: str) -> Generator[Reply, Reply, None]:
    """Make the node of a lock, or what is above it if that is missing; yields what it waits for.

    The node is a container: the server removes it some time after its last child. Servers before
    3.5.3 do not know that kind, and need the sweep.
    """
    made = yield client.send(CreateContainer(path, client.options.acl))
    if isinstance(made.error, NoNodeError):
        made = yield make_path(client, client.options.root)
    elif isinstance(made.error, UnimplementedError):
        made = yield make_path(client, path)
    with suppress(NodeExistsError):
        made.get()


def make_path(client: Client, path: str) -> Reply:
    """Make a node that stays, and what is above it; return the reply to the last request."""
    acl = client.options.acl
    return client.send_all([Create(each, b"", acl, 0) for each in ancestors(path)])[-1]


# What nodes say


def to_data(claim: Claim, session: Session) -> bytes:
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
class ContenderData:
    """The node of a contender, as read from the server: its data and its stat."""

    owner: Owner
    description: str
    token: int
    created_at: datetime  # by the server's clock
    renews: bool | None = None
    session_timeout: float | None = None

    @classmethod
    def read(cls, data: bytes, stat: Any) -> ContenderData:
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
