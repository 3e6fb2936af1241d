"""The lock backend for ZooKeeper."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from kazoo.exceptions import NoNodeError

from distlock.backends.base import BaseBackend, Capabilities
from distlock.backends.zookeeper.breaking import YOUNG, break_hold
from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.evidence import REPORTED_AFTER
from distlock.backends.zookeeper.grants import BROKEN, SESSION_OVER, Grant, Grants
from distlock.backends.zookeeper.instances import register
from distlock.backends.zookeeper.node import Node
from distlock.backends.zookeeper.options import DEFAULTS, Options
from distlock.backends.zookeeper.paging import page
from distlock.backends.zookeeper.patience import Patience
from distlock.backends.zookeeper.place import Place
from distlock.backends.zookeeper.requests import Delete, GetData, SetData, Sync
from distlock.backends.zookeeper.survey import Survey, mark_of
from distlock.clock import clock, left
from distlock.types.lease import Claim, Lease, LockInfo, SweepResult
from distlock.types.query import LockQuery, Page
from distlock.watchdog import watchdog

#: Waits longer than this many seconds are not counted among the time that a lock is held.
_LONG_WAIT = 1.0


class ZooKeeperBackend(BaseBackend):
    """Locks that are held for as long as a session with ZooKeeper lives.

    Whoever wants a lock has a node in line below the node of the lock: ephemeral, so that it goes
    with its session, and numbered by ZooKeeper. The lowest number holds; everyone else watches the
    node just before its own. See "Locks" in ZooKeeper's "Recipes and Solutions". The fencing token
    is the ``czxid`` of the holder's node: the number of the transaction that created it.
    """

    default_options: ClassVar[Mapping[str, Any]] = DEFAULTS
    uses_location: ClassVar[bool] = True
    capabilities = Capabilities(
        lease_lengths=False, outlives_process=False, waiters=True, fair=True
    )

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        for key in ("LEASE", "RENEW"):
            if key in params:
                self.settings.refuse(
                    f"{key} has no meaning here: a lock is held for as long as the session lives;"
                    " set OPTIONS['session_timeout'] instead"
                )
        self.options = Options(self.settings)
        self._set_lease(self.options.session_timeout)
        self._reset()
        register(self)

    def _reset(self) -> None:
        self._making = threading.Lock()
        self._client: Client | None = None
        self._grants = Grants(self._on_loss)

    def after_fork(self) -> None:
        """Hold nothing and be connected to nothing, in the child: all that is the parent's."""
        if self._client is not None:
            self._client.abandon()
        self._reset()

    # Taking and leaving

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        return self._wait(claim, deadline, wait=False)

    def acquire(self, claim: Claim, deadline: float | None) -> Lease | None:
        return self._wait(claim, deadline, wait=True)

    async def atry_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        return await self._await(claim, deadline, wait=False)

    async def aacquire(self, claim: Claim, deadline: float | None) -> Lease | None:
        return await self._await(claim, deadline, wait=True)

    def _wait(self, claim: Claim, deadline: float | None, *, wait: bool) -> Lease | None:
        place = self._place(claim, wait=wait)
        try:
            place.begin()
            return self._taken(Patience(place, deadline).wait())
        except BaseException:
            self._quit(place)
            raise

    async def _await(self, claim: Claim, deadline: float | None, *, wait: bool) -> Lease | None:
        place = self._place(claim, wait=wait)
        try:
            place.begin()
            return self._taken(await Patience(place, deadline).await_())
        except BaseException:
            self._quit(place)
            raise

    def _place(self, claim: Claim, *, wait: bool) -> Place:
        if mine := self._grants.take_owners(claim.name, claim.owner):
            mine.drop()
        earlier = self._grants.just_left(claim.name)
        return Place(self._connected(), claim, wait=wait, earlier=earlier, on_grant=self._admit)

    def _admit(self, place: Place, node: Node) -> Lease:
        claim = place.claim
        duration = self.options.lease_of(node.session.timeout)
        if duration < claim.duration:
            claim = replace(claim, duration=duration)
        unproven = node.session.timeout - self.options.lease_of(node.session.timeout)
        counted_from = place.client.counted_from(place.asked_at)
        lease = claim.granted(node.czxid, min(place.asked_at, counted_from + unproven))
        self._grants.add(Grant(lease, place.client, node, place.has_waited))
        if place.has_waited and clock() - node.created_after > _LONG_WAIT:
            place.client.send(SetData(place.parent, mark_of(node.czxid), -1))
        return lease

    def _taken(self, lease: Lease | None) -> Lease | None:
        if lease is not None:
            self._grants.note_taken(lease)
        return lease

    def _quit(self, place: Place) -> None:
        """Leave the line, or the lock if it was had at the last moment."""
        if lease := place.give_up():
            self.discard_local(lease)

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        if leases and self._client is not None:
            self._prove_alive(self._client, deadline)
        found = {lease.nonce: self._grants.find(lease.name, lease.nonce) for lease in leases}
        for grant in found.values():
            if grant is not None:
                self._grants.watch(grant)
        return {nonce: grant is not None for nonce, grant in found.items()}

    def _prove_alive(self, client: Client, deadline: float | None) -> None:
        """Make sure that the session lasts for a lease from now on, by the leader's count.

        A sync goes to the leader, who alone decides when a session is over. That it is not over yet
        is enough if the leader has heard of it not long before; after a pause, it is asked again
        when it must have heard of the first time.
        """
        begun_at = clock()
        while True:
            sent_at = clock()
            (synced,) = client.ask([Sync(self.options.root)], deadline)
            client.checked(synced)
            timeout = client.session.timeout if client.session else 0.0
            unproven = timeout - self.options.lease_of(timeout)
            if client.counted_from(sent_at) + unproven >= begun_at:
                return
            pause = timeout * REPORTED_AFTER
            if left(deadline, pause) < pause:
                raise client.unavailable("does not prove in time that the session lasts")
            time.sleep(pause)

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        grant = self._grants.take(lease.name, lease.nonce)
        if grant is None:
            return False
        self._grants.note_left(grant)
        age = clock() - grant.node.created_after
        if age < YOUNG and not grant.has_waited and grant.client.connected:
            grant.drop()
            return True
        grant.unwatch()
        return self._delete(grant, deadline)

    def _delete(self, grant: Grant, deadline: float | None) -> bool:
        try:
            (deleted,) = grant.client.ask([Delete(grant.node.path, -1)], deadline)
        except BaseException:
            grant.drop()
            raise
        if isinstance(deleted.error, NoNodeError):
            # Where the answer to a first request was lost, that one will have deleted it.
            return deleted.repeated and not grant.node.session.over
        grant.client.checked(deleted)
        return True

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """See BaseBackend.reserve_for(). The node stays, and goes with this process."""
        if not self.verify(lease, deadline):
            return False
        grant = self._grants.take(lease.name, lease.nonce)
        if grant is not None:
            watchdog.add(seconds, grant.drop)
        return grant is not None

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        self._grants.take(claim.name, claim.nonce)
        if self._client is None:
            return  # closed: the session has taken its nodes along
        survey = self._survey(deadline)
        if nodes := survey.nodes_of(claim.name, claim.nonce):
            survey.client.ask([Delete(path, -1) for path in nodes], deadline)

    def discard_local(self, lease: Lease) -> None:
        if grant := self._grants.take(lease.name, lease.nonce):
            grant.drop()

    # Looking

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

    def known_lost(self, lease: Lease) -> str | None:
        """See BaseBackend.known_lost()."""
        return SESSION_OVER if self._grants.is_lost(lease.nonce) else None

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        return self._survey(deadline).lock(name)

    def list(self, prefix: str = "", deadline: float | None = None) -> Iterable[LockInfo]:
        return [*self._survey(deadline).held(prefix)]

    def page(self, query: LockQuery, deadline: float | None = None) -> Page:
        """See BaseBackend.page(). Of very many locks, only those on the page are looked at."""
        return page(self._survey(deadline), query)

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        lease = break_hold(self._survey(deadline), name, token, self.settings.lease)
        if lease is not None and (grant := self._grants.find(name, lease.nonce)):
            self._grants.lose(grant, BROKEN)
        return lease

    def sweep(self) -> SweepResult:
        """Remove the nodes of locks that nobody holds or waits for.

        Nothing expires here: the servers end sessions, and remove their nodes.
        """
        return SweepResult(removed=self._survey(None).clear())

    def close(self) -> None:
        """End the session, and every hold with it."""
        with self._making:
            client, self._client = self._client, None
        self._grants.lose_all("the connection to ZooKeeper was closed")
        if client is not None:
            client.close()

    # Being connected

    def _connected(self) -> Client:
        """Return the client of this process, a new one if there is none that is of use."""
        client = self._client
        if client is not None and not client.dead:
            return client
        with self._making:
            if self._client is None or self._client.dead:
                self._client = Client(self.options, self._on_begin, self._on_over, self._on_tick)
                self._client.start()
            return self._client

    def _survey(self, deadline: float | None) -> Survey:
        return Survey(self._connected(), self.alias, deadline)

    def _on_begin(self, session: Session) -> None:
        self._set_lease(session.timeout)

    def _on_over(self, session: Session) -> None:
        self._grants.lose_all(SESSION_OVER, session)

    def _on_tick(self) -> None:
        self._grants.drop_untaken()

    def _on_loss(self, lease: Lease, reason: str) -> None:
        if self.listener is not None:
            self.listener.lease_lost(lease, reason)

    def _set_lease(self, session_timeout: float) -> None:
        self.settings.lease = self.options.lease_of(session_timeout)
        # Often enough for each renewal to be the proof of the next one; see _prove_alive().
        self.settings.renew = self.settings.lease / 4
