"""What this process has been granted, and what it learns of the nodes that stand for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.leavings import remove
from distlock.backends.zookeeper.node import Node
from distlock.backends.zookeeper.watches import News, Watch
from distlock.clock import clock
from distlock.types.lease import Lease, Owner

SESSION_OVER = "its ZooKeeper session ended"
#: Seconds in which nobody else is likely to have come for a lock, and how many locks that is
#: remembered of.
_MOMENT = 0.05
_MOST_REMEMBERED = 100

BROKEN = "its node in ZooKeeper was deleted: it was broken"


@dataclass(slots=True, eq=False)
class Grant:
    """A lease, and the node that stands for it."""

    lease: Lease
    client: Client
    node: Node
    has_waited: bool  # whether someone was ahead at first
    watch: Watch | None = None

    def drop(self) -> None:
        """Remove the node without waiting for it."""
        self.unwatch()
        remove(self.client, self.node.session, self.node.path)

    def unwatch(self) -> None:
        """Expect no more news: the node is about to go, and the server's watch with it."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.end()


class Grants:
    """The current grants of a process, at most one for each lock.

    ``on_loss`` is told of those that end otherwise than by being taken from here.
    """

    def __init__(self, on_loss: Callable[[Lease, str], None]) -> None:
        self._on_loss = on_loss
        self._mutex = threading.Lock()
        self._by_name: dict[str, Grant] = {}
        self._lost: set[str] = set()  # nonces of those whose holder may not have heard yet
        self._untaken: dict[str, Grant] = {}  # by nonce
        self._left: dict[str, tuple[float, Node]] = {}

    def add(self, grant: Grant) -> None:
        """Note a grant, before anyone has been told of it."""
        with self._mutex:
            self._by_name[grant.lease.name] = grant
            self._untaken[grant.lease.nonce] = grant

    def note_taken(self, lease: Lease) -> None:
        """Note that whoever waited for this has it now, and will leave it or have it renewed."""
        self._untaken.pop(lease.nonce, None)

    def drop_untaken(self) -> None:
        """Leave what nobody has taken in time: an event loop may have been stopped for good."""
        now = clock()
        for grant in list(self._untaken.values()):
            if now >= grant.lease.deadline and self.take(grant.lease.name, grant.lease.nonce):
                grant.drop()

    def find(self, name: str, nonce: str) -> Grant | None:
        """Return the grant that answers the claim with this nonce."""
        grant = self._by_name.get(name)
        return grant if grant is not None and grant.lease.nonce == nonce else None

    def take(self, name: str, nonce: str) -> Grant | None:
        """Remove the grant that answers the claim with this nonce; None if it is not there."""
        with self._mutex:
            self._lost.discard(nonce)
            self._untaken.pop(nonce, None)
            grant = self.find(name, nonce)
            if grant is not None:
                del self._by_name[name]
            return grant

    def note_left(self, grant: Grant) -> None:
        """Remember for a moment that this grant was left by its own holder."""
        with self._mutex:
            self._left[grant.lease.name] = clock(), grant.node
            while len(self._left) > _MOST_REMEMBERED:
                del self._left[next(iter(self._left))]

    def just_left(self, name: str) -> Node | None:
        """Return the node that held the lock here until a moment ago."""
        left_at, node = self._left.pop(name, (0.0, None))
        return node if clock() - left_at < _MOMENT else None

    def take_owners(self, name: str, owner: Owner) -> Grant | None:
        """Remove the grant of a lock if it is this owner's."""
        grant = self._by_name.get(name)
        if grant is None or grant.lease.owner != owner:
            return None
        return self.take(name, grant.lease.nonce)

    def is_lost(self, nonce: str) -> bool:
        return nonce in self._lost

    def lose(self, grant: Grant, reason: str) -> None:
        """Note that a grant has ended, and tell; once."""
        with self._mutex:
            if self._by_name.get(grant.lease.name) is not grant:
                return
            del self._by_name[grant.lease.name]
            self._lost.add(grant.lease.nonce)
        self._on_loss(grant.lease, reason)

    def lose_all(self, reason: str, session: Session | None = None) -> None:
        """Note that all grants, or those of one session, have ended."""
        for grant in list(self._by_name.values()):
            if session is None or grant.node.session is session:
                self.lose(grant, reason)

    def watch(self, grant: Grant) -> None:
        """Be told, from now on, when someone else deletes the node."""
        if grant.watch is None:
            grant.watch = Watch(grant.node.path, partial(self._on_news, grant))
            grant.client.watches.begin(grant.watch)

    def _on_news(self, grant: Grant, news: News) -> None:
        grant.watch = None  # the next renewal begins another
        if news is News.GONE:
            self.lose(grant, BROKEN)
