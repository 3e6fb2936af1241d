"""The lock backend for ZooKeeper."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Delete, GetData, Sync

from distlock.backends.base import Capabilities, PendingLease, all_backends
from distlock.backends.reading import BackendWithNames
from distlock.backends.zookeeper.client import NODE_DELETED, SESSION_OVER, Grants, ZooKeeperClient
from distlock.backends.zookeeper.contender import ZooKeeperContender
from distlock.backends.zookeeper.options import DEFAULTS, ZooKeeperOptions
from distlock.backends.zookeeper.store import ZooKeeperStore
from distlock.backends.zookeeper.tree import UNBREAKABLE, TreeReader
from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Either, Step, arun, or_undo, run
from distlock.concurrency.threads import call_after
from distlock.types.lease import Claim, Lease, SweepResult


class ZooKeeperBackend(BackendWithNames):
    """Locks that are held for as long as a session with ZooKeeper lives.

    Each contender for a lock has a node below the node of the lock: ephemeral, so that it goes
    with its session, and numbered by ZooKeeper. The lowest number holds; everyone else watches the
    node just before the own one; see :class:`ZooKeeperContender`. The fencing token is the
    ``czxid`` of the holder's node: the number of the transaction that created it.
    """

    default_options: ClassVar[Mapping[str, Any]] = DEFAULTS
    uses_location: ClassVar[bool] = True
    capabilities = Capabilities(
        lease_lengths=False, shows_expired=False, outlives_process=False, waiters=True, fair=True
    )

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        for key in ("LEASE", "RENEW"):
            if key in params:
                self.settings.refuse(
                    f"{key} has no meaning here: a lock is held for as long as the session lives;"
                    " set OPTIONS['session_timeout'] instead"
                )
        self.options = ZooKeeperOptions(self.settings)
        self._set_lease(self.options.session_timeout)
        self._client: ZooKeeperClient | None = None
        self._store = self._make_store(ZooKeeperStore, self.options, lambda: self.client)
        self._connecting = threading.Lock()
        self._grants = Grants(self.tell_lost)

    @property
    def store(self) -> ZooKeeperStore:
        """See BaseBackend.store. Of two of them, one would not know the other's sessions."""
        return self._store

    # Taking and leaving

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        return run(self._contend(claim, deadline, wait=False))

    def attempt(self, claim: Claim, deadline: float | None) -> Step:
        """See BaseBackend.attempt(). A task needs no other thread for it."""
        return Either(
            partial(self.try_acquire, claim, deadline),
            lambda: arun(self._contend(claim, deadline, wait=False)),
        )

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        return self._contend(claim, deadline, wait=True)

    def _contend(self, claim: Claim, deadline: float | None, *, wait: bool) -> PendingLease:
        self._grants.drop_of_owner(claim.name, claim.owner)
        contender = ZooKeeperContender(self.client, self._grants, claim, deadline, wait=wait)
        return (yield from or_undo(contender.steps(), lambda _: contender.cancel()))

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        if leases and self._client is not None:
            self._client.prove_alive(deadline)
        return {lease.nonce: self._grants.watch(lease) for lease in leases}

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        grant = self._grants.remove(lease.name, lease.nonce)
        if grant is None:
            return False
        if clock() - grant.node.created_after < UNBREAKABLE and grant.client.connected:
            grant.drop()
            return True
        deleted = None
        try:
            (deleted,) = grant.client.ask([Delete(grant.node.path, -1)], deadline)
        finally:
            if deleted is None:  # its session would keep it for as long as the process runs
                grant.drop()
        if isinstance(deleted.error, NoNodeError):
            # If the answer to a first request was lost, that request has deleted it.
            return deleted.repeated and not grant.node.session.over
        grant.client.checked(deleted)
        return True

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """See BaseBackend.reserve_for(). The node stays, but no longer than this process."""
        if not self.verify(lease, deadline):
            return False
        grant = self._grants.find(lease.name, lease.nonce)
        if grant is None:
            return False
        # First the timer: if an interrupt comes between the two, this is done once more.
        timer = call_after(seconds, grant.drop)
        if self._grants.remove(lease.name, lease.nonce) is None:
            timer.cancel()
            return False
        return True

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        self._grants.remove(claim.name, claim.nonce)
        if self._client is None:
            return  # closed: the session has taken its nodes along
        self._reader(deadline).remove(claim.name, claim.nonce)

    def kept_until(self, claim: Claim) -> float:
        """See BaseBackend.kept_until(). A node lasts as long as the session, which may go on."""
        return math.inf

    def discard_local(self, lease: Lease) -> None:
        self._grants.drop(lease)

    # Looking; BackendWithNames does the rest

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        grant = self._grants.find(lease.name, lease.nonce)
        if grant is None:
            return False
        path = grant.node.path
        _, read = grant.client.ask([Sync(path), GetData(path, None)], deadline)
        if isinstance(read.error, NoNodeError):
            return False
        _, stat = grant.client.checked(read)
        return bool(stat.czxid == lease.token and stat.ephemeralOwner == grant.node.session.id)

    def loss_reason(self, lease: Lease) -> str | None:
        return self._grants.loss_reason(lease.nonce)

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        lease = self._reader(deadline).break_hold(name, token, self.settings.lease)
        if lease is not None and (grant := self._grants.find(name, lease.nonce)):
            self._grants.lose(grant, NODE_DELETED)
        return lease

    def sweep(self) -> SweepResult:
        """Remove the nodes of locks without contenders, and directories without records.

        Nothing expires here: the servers end sessions, and remove their nodes.
        """
        return SweepResult(removed=self._reader(None).clear() + self.store.sweep().removed)

    def close(self) -> None:
        """End the session, and every hold with it."""
        with self._connecting:
            client, self._client = self._client, None
        self._grants.lose_all("the connection to ZooKeeper was closed")
        if client is not None:
            client.close()

    # The connection

    @property
    def client(self) -> ZooKeeperClient:
        """The client of this process; a new one, which begins to connect, if there is none."""
        client = self._client
        if client is not None and not client.dead:
            return client
        with self._connecting:
            if self._client is None or self._client.dead:
                self._client = ZooKeeperClient(
                    self.options,
                    on_begin=lambda session: self._set_lease(session.timeout),
                    on_over=partial(self._grants.lose_all, SESSION_OVER),
                    on_ping=self._grants.drop_untaken,
                )
            return self._client

    def _reader(self, deadline: float | None) -> TreeReader:
        return TreeReader(self.client, self.alias, deadline)

    def _set_lease(self, session_timeout: float) -> None:
        lease = self.options.lease_of(session_timeout)
        # Often enough for each renewal to be the proof of the next one; see prove_alive().
        self.settings = replace(self.settings, lease=lease, renew=lease / 4)


@fork.at_exit
def _close_all() -> None:
    if fork.children_run():
        return  # the sessions end by themselves, after this process
    for backend in list(all_backends):
        if isinstance(backend, ZooKeeperBackend):
            backend.close()
