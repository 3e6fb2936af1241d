"""Holds in ZooKeeper that outlive the session that took them.

Such a hold is two persistent nodes below the node of its lock, made and deleted together:
``taken``, which there can be but one of, names the other, whose name has the nonce of the claim. So
whoever deletes a hold deletes exactly the one he has seen, and never its successor. It ends when
its time is over by the servers' own clock, which is read from the time of a write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, Transaction

from distlock.backends.base import BaseBackend
from distlock.backends.settings import BackendSettings
from distlock.backends.zookeeper import paths
from distlock.backends.zookeeper.client import Client
from distlock.backends.zookeeper.parents import is_there, make_parent
from distlock.backends.zookeeper.record import Record, when, written
from distlock.backends.zookeeper.requests import (
    Delete,
    GetChildren,
    GetData,
    Reply,
    SetData,
    Sync,
)
from distlock.clock import clock, left
from distlock.exceptions import LockUnavailable
from distlock.lease import Claim, Lease, LockInfo, State, Swept

_TAKEN = "taken"
#: How often what was read may have changed by the time that something is made of it.
_TRIES = 20
_BATCH = 200


@dataclass(frozen=True, slots=True)
class _Held:
    """A hold as it was read, and what the servers' clock said then, in milliseconds."""

    path: str
    record: Record
    version: int  # grows with every renewal
    renewed: int
    duration: float
    now: int

    @property
    def remaining(self) -> float:
        return self.duration - (self.now - self.renewed) / 1000

    @property
    def ended(self) -> bool:
        return self.remaining <= 0


class LastingBackend(BaseBackend):
    """The same locks, held until their time is over, whatever becomes of the process.

    They are for claims that are tried once: nobody is in line for them.
    """

    supports_owner: ClassVar[bool] = True

    def __init__(
        self, alias: str, settings: BackendSettings, connected: Callable[[], Client]
    ) -> None:
        self.alias = alias
        self.settings = settings
        self.listener = None
        self._connected = connected

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        client = self._connected()
        parent = _path(client, claim.name)
        taken, node = f"{parent}/{_TAKEN}", f"{parent}/{claim.nonce}-0"
        acl, data = client.options.acl, _written(claim)
        create = [Create(taken, node.encode(), acl, 0), Create(node, data, acl, 0)]
        sent_at = clock()
        for _ in range(_TRIES):
            made, read = client.ask([Transaction(create), GetData(node, None)], deadline)
            if read.error is None:  # ours, even if the answer to a first request was lost
                return self._unless_behind(claim.granted(read.value[1].czxid, sent_at), deadline)
            error = _error(made)
            if isinstance(error, NoNodeError):
                self._make(client, parent, deadline)
                continue
            if not isinstance(error, NodeExistsError):
                raise client.unavailable("refused", error) from error
            held = self._held(client, parent, deadline)
            if held is None:
                continue
            if not held.ended and held.record.owner != claim.owner:
                return None
            if self._first_in_line(client, claim, deadline) is not None:
                if held.ended:
                    client.ask([Transaction(_removal(held))], deadline)
                return None
            over = Transaction([*_removal(held), *create])
            _, read = client.ask([over, GetData(node, None)], deadline)
            if read.error is None:
                return self._unless_behind(claim.granted(read.value[1].czxid, sent_at), deadline)
        raise LockUnavailable(f"lock {claim.name!r} changes hands too fast to be taken")

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        client = self._connected()
        requests = [SetData(_node(client, x.claim), _written(x.claim), -1) for x in leases]
        answer = {}
        for lease, reply in zip(leases, client.ask(requests, deadline), strict=True):
            if not isinstance(reply.error, NoNodeError):
                client.checked(reply)
            answer[lease.nonce] = reply.error is None
        return answer

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        return self._free(lease.claim, deadline)

    def keep(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        client = self._connected()
        nobody = replace(lease.owner, key=lease.nonce)
        rest = replace(lease.claim, owner=nobody, duration=seconds)
        (kept,) = client.ask([SetData(_node(client, rest), _written(rest), -1)], deadline)
        if not isinstance(kept.error, NoNodeError):
            client.checked(kept)
        return kept.error is None

    def withdraw(self, claim: Claim, deadline: float | None = None) -> None:
        self._free(claim, deadline)

    def _free(self, claim: Claim, deadline: float | None) -> bool:
        client = self._connected()
        node = _node(client, claim)
        taken = f"{node.rpartition('/')[0]}/{_TAKEN}"
        (freed,) = client.ask([Transaction([Delete(node, -1), Delete(taken, -1)])], deadline)
        error = _error(freed)
        if error is not None and not isinstance(error, NoNodeError):
            raise client.unavailable("refused", error) from error
        return error is None or freed.repeated

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        client = self._connected()
        path = _node(client, lease.claim)
        _, read = client.ask([Sync(path), GetData(path, None)], deadline)
        return read.error is None and read.value[1].czxid == lease.token

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        client = self._connected()
        held = self._held(client, _path(client, name), deadline)
        if held is None:
            return LockInfo(name, self.alias)
        record = held.record
        return LockInfo(
            name,
            self.alias,
            State.EXPIRED if held.ended else State.HELD,
            owner=record.owner,
            token=record.token,
            since=record.created_at,
            until=when(held.renewed) + timedelta(seconds=held.duration),
            held_for=max((when(held.now) - record.created_at).total_seconds(), 0.0),
            remaining=max(held.remaining, 0.0),
            description=record.description,
        )

    def list(self, prefix: str = "", deadline: float | None = None) -> Iterable[LockInfo]:
        infos = (self.inspect(name, deadline) for name in sorted(self._names()))
        return [x for x in infos if x.name.startswith(prefix) and x.state is not State.FREE]

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        client = self._connected()
        held = self._held(client, _path(client, name), deadline)
        if held is None or held.record.token != token:
            return None
        lease = held.record.lease(name, held.path, held.duration)
        return lease if self._free(lease.claim, deadline) else None

    def sweep(self) -> Swept:
        """Remove the holds whose time is over."""
        client, expired = self._connected(), 0
        for name in self._names():
            held = self._held(client, _path(client, name), None)
            if held is not None and held.ended:
                (removed,) = client.ask([Transaction(_removal(held))], None)
                expired += _error(removed) is None
        return Swept(expired=expired)

    # Inside

    def _unless_behind(self, lease: Lease, deadline: float | None) -> Lease | None:
        """Return the lease, or free it again: a session may have had the lock, or a claim to it."""
        first = self._first_in_line(self._connected(), lease.claim, deadline)
        if first is None or first > lease.token:
            return lease
        self._free(lease.claim, deadline)
        return None

    def _first_in_line(self, client: Client, claim: Claim, deadline: float | None) -> int | None:
        """Return the token of the session's node that is first in line; None if there is none."""
        parent = _path(client, claim.name)
        _, listed, taken = client.ask(
            [Sync(parent), GetChildren(parent, None), GetData(f"{parent}/{_TAKEN}", None)], deadline
        )
        if isinstance(listed.error, NoNodeError):
            return None
        lasting = taken.value[0].decode().rpartition("/")[2] if taken.error is None else ""
        for node in paths.in_order(client.checked(listed)):
            if node not in (lasting, f"{claim.nonce}-0"):
                (read,) = client.ask([GetData(f"{parent}/{node}", None)], deadline)
                if not isinstance(read.error, NoNodeError):
                    return int(client.checked(read)[1].czxid)
        return None

    def _held(self, client: Client, parent: str, deadline: float | None) -> _Held | None:
        """Return who holds the lock now; None if nobody does by the time that this is read."""
        taken = f"{parent}/{_TAKEN}"
        now, read = client.ask([SetData(parent, b"", -1), GetData(taken, None)], deadline)
        if isinstance(now.error, NoNodeError) or isinstance(read.error, NoNodeError):
            return None
        time = client.checked(now).mtime
        named, stat = client.checked(read)
        path = named.decode()
        (found,) = client.ask([GetData(path, None)], deadline)
        if isinstance(found.error, NoNodeError):
            # Broken from outside, which takes the one node only; or freed just now.
            (still,) = client.ask([GetData(taken, None)], deadline)
            if still.error is None and still.value[1].czxid == stat.czxid:
                client.ask([Delete(taken, -1)], deadline)
            return None
        data, stat = client.checked(found)
        record = Record.read(data, stat)
        return _Held(path, record, stat.version, stat.mtime, _duration(data), time)

    def _names(self) -> Iterable[str]:
        """Return the names of the locks that are held in this way."""
        client = self._connected()
        root = client.options.root
        _, listed = client.ask([Sync(root), GetChildren(root, None)], None)
        known = [] if isinstance(listed.error, NoNodeError) else client.checked(listed)
        names = []
        for start in range(0, len(known), _BATCH):
            some = known[start : start + _BATCH]
            reads = client.ask([GetData(f"{root}/{each}/{_TAKEN}", None) for each in some], None)
            pairs = zip(some, reads, strict=True)
            names += [paths.unescaped(each) for each, read in pairs if read.error is None]
        return names

    def _make(self, client: Client, parent: str, deadline: float | None) -> None:
        made = Reply()
        make_parent(client, parent, lambda reply: made.set(reply))
        if not made.wait(left(deadline, client.options.timeout)):
            raise client.unavailable("does not answer")
        if not is_there(made.value):
            client.checked(made.value)


def _path(client: Client, name: str) -> str:
    return f"{client.options.root}/{paths.escaped(name)}"


def _node(client: Client, claim: Claim) -> str:
    return f"{_path(client, claim.name)}/{claim.nonce}-0"


def _removal(held: _Held) -> list[Delete]:
    """Return what removes a hold, unless it was renewed since it was read."""
    return [Delete(held.path, held.version), Delete(f"{held.path.rpartition('/')[0]}/{_TAKEN}", -1)]


def _written(claim: Claim) -> bytes:
    said = {**json.loads(written(claim)), "lease": claim.duration}
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")


def _duration(data: bytes) -> float:
    try:
        return float(json.loads(data)["lease"])
    except (ValueError, TypeError, KeyError):
        return 0.0


def _error(reply: Reply) -> Exception | None:
    """Return why a transaction was not carried out; None if it was."""
    if reply.error is not None:
        return reply.error
    errors = [result for result in reply.value if isinstance(result, Exception)]
    # Those that are only told of the one that failed come as errors, too.
    named = [error for error in errors if isinstance(error, (NoNodeError, NodeExistsError))]
    return next(iter(named or errors), None)
