"""The lock backend for etcd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from django.core.checks import CheckMessage, Warning

from distlock.backends.base import BaseBackend, Capabilities, PendingLease
from distlock.backends.etcd.client import Client
from distlock.backends.etcd.contender import Contender
from distlock.backends.etcd.holding import Holding
from distlock.backends.etcd.kv import delete, get
from distlock.backends.etcd.leases import SHORTEST, Leases
from distlock.backends.etcd.lock_keys import LockKeys
from distlock.backends.etcd.options import DEFAULTS, Options
from distlock.backends.etcd.reader import LockReader
from distlock.backends.etcd.store import EtcdStore
from distlock.concurrency import fork
from distlock.types.lease import Claim, Lease, LockInfo, SweepResult
from distlock.types.query import LockQuery, Page

BROKEN = "it was broken"


class EtcdBackend(BaseBackend):
    """Locks as keys of an etcd cluster, each bound to a lease of the cluster.

    The holder has a key, and everyone who waits has one; see :class:`Contender`. The fencing token
    is the revision of the store that has created the holder's key.
    """

    default_options: ClassVar[Mapping[str, Any]] = DEFAULTS
    uses_location: ClassVar[bool] = True
    capabilities = Capabilities(
        named_owners=True,
        waiters=True,
        fair=True,
        late_requests=True,
        extends=True,
        shortest_lease=SHORTEST,
        shows_expired=False,
    )

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if self.settings.lease < SHORTEST:
            self.settings.refuse(
                f"LEASE must be at least {SHORTEST} seconds here, not {self.settings.lease:g}"
            )
        self.options = Options(self.settings)
        self.client = Client(self.options)
        self._store = EtcdStore(self.client)
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Hold nothing: the leases are the parent's."""
        self._leases = Leases(self.client)
        self._holding = Holding(self.client, self._leases)

    @property
    def store(self) -> EtcdStore:
        """See BaseBackend.store."""
        return self._store

    # Taking and leaving

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        return Contender(self.client, self._leases, claim).try_once(deadline)

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        contender = Contender(self.client, self._leases, claim, deadline)
        return contender.steps(self.calls, self.cleanup)

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        return self._holding.renew(leases, deadline)

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        return self._holding.release(lease, deadline)

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """See BaseBackend.reserve_for(). The time is rounded up to whole seconds, at least two."""
        return self._holding.reserve_for(lease, seconds, deadline)

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        keys, nonce = LockKeys(self.options.prefix, claim.name), claim.nonce
        self._leases.holds.pop(nonce, None)
        reply = self.client.txn(
            [],
            [
                delete(keys.holds_of(nonce), prefix=True, prev_kv=True),
                delete(keys.place_of(nonce), prev_kv=True),
            ],
            deadline=deadline,
        )
        # A late request can put a key no more if the lease that it names has ended.
        named = {kv.lease for kv in (*reply.deleted(0), *reply.deleted(1))}
        for lease_id in named.union(self._leases.named(nonce)) - {0}:
            self.client.revoke(lease_id, deadline)

    def discard_local(self, lease: Lease) -> None:
        self._leases.holds.pop(lease.nonce, None)

    # Looking

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        keys = LockKeys(self.options.prefix, lease.name)
        own = get(keys.holds_of(lease.nonce), prefix=True, limit=1)
        return bool(self.client.txn([], [own], deadline=deadline).found())

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        return self._reader(deadline).lock(name)

    def stored(self, name: str, deadline: float | None = None) -> Mapping[str, str]:
        return self._reader(deadline).stored(name)

    def list(self, prefix: str = "", deadline: float | None = None) -> Iterable[LockInfo]:
        return self._reader(deadline).held(prefix)

    def page(self, query: LockQuery, deadline: float | None = None) -> Page:
        """See BaseBackend.page(). Of very many locks, only those on the page are looked at."""
        return self._reader(deadline).page(query)

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        lease = self._holding.force_release(name, token, deadline)
        if lease is not None and self.listener is not None:
            self.listener.lease_lost(lease, BROKEN)
        return lease

    def sweep(self) -> SweepResult:
        """Clear the records; the cluster itself removes the keys of leases that have ended."""
        return self.store.sweep()

    def close(self) -> None:
        """Close the connections. What is held goes on: no lease depends on a connection."""
        self.client.close()

    def checks(self) -> Iterator[CheckMessage]:
        open_ones = [one for one in self.options.endpoints if one.scheme == "http"]
        far = [one for one in open_ones if not one.is_local]
        if self.options.user is not None and far:
            yield Warning(
                f"The password for etcd goes over the network in the clear, to {far[0]}.",
                hint="Use https in LOCATION.",
                obj=f"DISTLOCK[{self.alias!r}]",
                id="distlock.W008",
            )

    def _reader(self, deadline: float | None) -> LockReader:
        return LockReader(self.client, self.alias, deadline)
