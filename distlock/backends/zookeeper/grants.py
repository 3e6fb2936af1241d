"""The leases of this process, and the nodes that stand for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kazoo.exceptions import NoNodeError

from distlock.backends.zookeeper.client import ZooKeeperClient, ZooKeeperSession
from distlock.backends.zookeeper.requests import Reply
from distlock.concurrency.clock import clock
from distlock.types.lease import Lease, Owner

SESSION_OVER = "its ZooKeeper session ended"
NODE_DELETED = "its node in ZooKeeper was deleted: it was broken"


@dataclass(frozen=True, slots=True, eq=False)
class ContenderNode:
    """A contender's node that this process has made."""

    session: ZooKeeperSession
    path: str
    czxid: int
    created_after: float  # of clock()

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True, eq=False)
class Grant:
    """A lease, and the node that stands for it."""

    lease: Lease
    client: ZooKeeperClient
    node: ContenderNode
    #: whether the caller has got it, and will release it or have it renewed
    taken: bool = False
    is_watched: bool = False

    def drop(self) -> None:
        """Delete the node without waiting for it."""
        self.client.delete_node(self.node.session, self.node.path)


class Grants:
    """The current grants of a process, at most one for each lock.

    ``on_loss`` is called with those that end otherwise than by being taken from here.
    """

    def __init__(self, on_loss: Callable[[Lease, str], None]) -> None:
        self._on_loss = on_loss
        self._mutex = threading.Lock()
        self._by_name: dict[str, Grant] = {}
        #: Why a lease was lost, by its nonce, while its holder may not have heard of it.
        self._lost: dict[str, str] = {}

    def add(self, grant: Grant) -> None:
        """Note a grant, before the caller gets it."""
        with self._mutex:
            self._by_name[grant.lease.name] = grant
        if grant.node.session.over:  # lose_all() may have run just before the line above
            self.lose(grant, SESSION_OVER)

    def note_taken(self, lease: Lease) -> None:
        """Note that the caller has got the lease."""
        if grant := self.find(lease.name, lease.nonce):
            grant.taken = True

    def drop_untaken(self) -> None:
        """Free what no caller took during its lease: its event loop may be stopped for good."""
        now = clock()
        for grant in self._by_name.copy().values():
            if not grant.taken and now >= grant.lease.deadline:
                self.drop(grant.lease)

    def find(self, name: str, nonce: str) -> Grant | None:
        """Return the grant that answers the claim with this nonce."""
        grant = self._by_name.get(name)
        return grant if grant is not None and grant.lease.nonce == nonce else None

    def remove(self, name: str, nonce: str) -> Grant | None:
        """Remove the grant that answers the claim with this nonce; None if it is not there."""
        with self._mutex:
            self._lost.pop(nonce, None)
            grant = self.find(name, nonce)
            if grant is not None:
                del self._by_name[name]
            return grant

    def drop(self, lease: Lease) -> None:
        """Remove the grant of this lease, and delete its node without waiting for it."""
        if grant := self.remove(lease.name, lease.nonce):
            grant.drop()

    def drop_of_owner(self, name: str, owner: Owner) -> None:
        """Free a lock that this owner held, before it asks for it again."""
        grant = self._by_name.get(name)
        if grant is not None and grant.lease.owner == owner:
            self.drop(grant.lease)

    def loss_reason(self, nonce: str) -> str | None:
        """Return why the lease with this nonce was lost; None if it was not."""
        return self._lost.get(nonce)

    def lose(self, grant: Grant, reason: str) -> None:
        """Note that a grant has ended, and call ``on_loss``; once."""
        with self._mutex:
            if self._by_name.get(grant.lease.name) is not grant:
                return
            del self._by_name[grant.lease.name]
            self._lost[grant.lease.nonce] = reason
        self._on_loss(grant.lease, reason)

    def lose_all(self, reason: str, session: ZooKeeperSession | None = None) -> None:
        """Note that all grants, or those of one session, have ended."""
        for grant in self._by_name.copy().values():
            if session is None or grant.node.session is session:
                self.lose(grant, reason)

    def watch(self, lease: Lease) -> bool:
        """Watch the node of a lease, and tell of a loss when it is deleted; False if it is lost."""
        grant = self.find(lease.name, lease.nonce)
        if grant is not None and not grant.is_watched:
            grant.is_watched = True
            watch = grant.client.watches.add(grant.node.path)
            watch.then(partial(self._on_watch_end, grant))
        return grant is not None

    def _on_watch_end(self, grant: Grant, watch: Reply) -> None:
        grant.is_watched = False  # the next renewal adds another
        if isinstance(watch.error, NoNodeError):
            self.lose(grant, NODE_DELETED)
