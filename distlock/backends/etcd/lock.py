"""The lock backend for etcd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from django.core.checks import CheckMessage, Warning

from distlock.backends.base import Capabilities, LossReason, PendingLease
from distlock.backends.etcd.client import EtcdClient
from distlock.backends.etcd.contender import EtcdContender
from distlock.backends.etcd.leases import SHORTEST, Leases, whole_seconds
from distlock.backends.etcd.lock_keys import EtcdKeys, LockReader
from distlock.backends.etcd.messages import (
    LeaseNotFound,
    created,
    delete,
    get,
    put,
)
from distlock.backends.etcd.options import DEFAULTS, EtcdOptions
from distlock.backends.etcd.store import EtcdStore
from distlock.backends.reading import BackendWithNames
from distlock.types.lease import Claim, Lease, SweepResult
from distlock.types.owners import is_named, reserved_owner


class EtcdBackend(BackendWithNames):
    """Locks as keys of an etcd cluster, each bound to a lease of the cluster.

    The holder has a key, and everyone who waits has one; see :class:`EtcdContender`. The fencing
    token is the revision of the store that has created the holder's key.
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
        self.options = EtcdOptions(self.settings)
        self.client = EtcdClient(self.options)
        self._store = self._make_store(EtcdStore, self.client)
        self._leases = Leases(self.client)

    @property
    def store(self) -> EtcdStore:
        """See BaseBackend.store."""
        return self._store

    # Taking and leaving

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        return self._contender(claim, deadline).try_once(deadline)

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        return self._contender(claim, deadline).steps()

    def _contender(self, claim: Claim, deadline: float | None) -> EtcdContender:
        undo = partial(self.cleanup.add, claim)
        return EtcdContender(self.client, self._leases, claim, deadline, self.calls, undo)

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        return self._leases.renew(leases, deadline)

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        if is_named(lease.owner):
            return self._release_named(lease, deadline)
        own = delete(self._keys(lease.name).holds_of(lease.nonce), prefix=True, prev_kv=True)
        reply = self.client.do([own], deadline)
        deleted = reply.deleted()
        self._leases.give_back(lease.nonce, deleted[0].lease if deleted else 0, deadline)
        # If the answer to a first request was lost, that request has deleted it.
        return bool(deleted) or reply.repeated

    def _release_named(self, lease: Lease, deadline: float | None) -> bool:
        """Free a lock, and leave the token behind, until the lease ends.

        Another process that had the lock under this name can tell so that it was not broken.
        """
        hold = self._leases.find([lease], deadline)[lease.nonce]
        if hold is None:
            return False
        self._leases.holds.pop(lease.nonce, None)
        last, left = self._keys(lease.name).last_token, replace(hold.data, token=lease.token)
        try:
            reply = self.client.txn(
                [created(hold.key, hold.created)],
                [delete(hold.key), put(last, left.to_value(), hold.lease.id)],
                deadline=deadline,
            )
        except LeaseNotFound:
            return False  # the lease has ended, and the key with it
        for one in {*self._leases.to_end(lease.nonce)} - {hold.lease.id}:
            self._leases.end(one, deadline)
        self._leases.forget_requests(lease.nonce)
        return reply.succeeded or reply.repeated

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """See BaseBackend.reserve_for(). The time is rounded up to whole seconds, at least two."""
        keys = self._keys(lease.name)
        reservations = keys.reservations_of(lease.nonce)
        held, reserved = self._reader(deadline).first(keys.holds_of(lease.nonce), reservations)
        entry = held or reserved  # it may have been done before
        if entry is None:
            return False
        new = self.client.grant(whole_seconds(seconds), deadline)
        key = f"{reservations}{new.id:x}"
        data = entry.data.renewed_for(seconds, new.ttl)
        if data.token is None:  # it is not reserved yet
            nobody = reserved_owner(data.owner, lease.nonce)
            data = replace(data, owner=nobody, renews=False, token=lease.token)
        reply = self.client.txn(
            [created(entry.key, entry.created)],
            [put(key, data.to_value(), new.id), delete(entry.key)],
            [get(key)],
            deadline,
        )
        if not reply.succeeded and not reply.found():
            self._leases.end(new.id, deadline)
            return False
        self._leases.give_back(lease.nonce, entry.lease, deadline)
        return True

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        keys, nonce = self._keys(claim.name), claim.nonce
        self._leases.holds.pop(nonce, None)
        self._leases.to_end(nonce)  # before their keys are gone: from here on none is used again
        reply = self.client.do(
            [
                delete(keys.holds_of(nonce), prefix=True, prev_kv=True),
                delete(keys.place_of(nonce), prev_kv=True),
            ],
            deadline,
        )
        # A late request can put a key no more if the lease that it names has ended.
        bound = {kv.lease for kv in (*reply.deleted(0), *reply.deleted(1))}
        for lease_id in bound.union(self._leases.to_end(nonce)) - {0}:
            self.client.revoke(lease_id, deadline)

    def discard_local(self, lease: Lease) -> None:
        self._leases.holds.pop(lease.nonce, None)

    # Looking; BackendWithNames does the rest

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        own = get(self._keys(lease.name).holds_of(lease.nonce), prefix=True, limit=1)
        return bool(self.client.do([own], deadline).found())

    def stored(self, name: str, deadline: float | None = None) -> Mapping[str, str]:
        return self._reader(deadline).stored(name)

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        (entry,) = self._reader(deadline).first(self._keys(name).holders)
        if entry is None or entry.token != token:
            return None
        reply = self.client.txn(
            [created(entry.key, entry.created)], [delete(entry.key)], deadline=deadline
        )
        if not reply.succeeded and not reply.repeated:
            return None
        if reply.succeeded:  # else its holder may have left it, and another hold has the lease
            self._leases.end(entry.lease, deadline)
        data = entry.data
        claim = Claim(name, data.owner, data.lasts, data.description, entry.nonce)
        lease = Lease(claim, token, 0.0)
        self.tell_lost(lease, LossReason.BROKEN)
        return lease

    def sweep(self) -> SweepResult:
        """Clear the records; the cluster itself removes the keys of leases that have ended."""
        return self.store.sweep()

    def close(self) -> None:
        """Close the connections. What is held goes on: no lease depends on a connection."""
        self.client.close()

    def checks(self) -> Iterator[CheckMessage]:
        endpoints = self.options.endpoints
        far = [one for one in endpoints if one.scheme == "http" and not one.is_local]
        if self.options.user is not None and far:
            yield Warning(
                f"The password for etcd goes over the network in the clear, to {far[0]}.",
                hint="Use https in LOCATION.",
                obj=f"DISTLOCK[{self.alias!r}]",
                id="distlock.W008",
            )

    def _keys(self, name: str) -> EtcdKeys:
        return EtcdKeys(self.options.prefix, name)

    def _reader(self, deadline: float | None) -> LockReader:
        return LockReader(self.client, deadline)
