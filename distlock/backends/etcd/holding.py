"""What becomes of a hold: renewed, left, left before its time, broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from distlock.backends.etcd.client import Client
from distlock.backends.etcd.errors import NOT_FOUND, EtcdError
from distlock.backends.etcd.kv import (
    MOST_OPERATIONS,
    Json,
    bound,
    created,
    delete,
    get,
    modified,
    put,
    txn,
)
from distlock.backends.etcd.leases import HeldKey, Leases, whole_seconds
from distlock.backends.etcd.lock_keys import LockKey, LockKeys
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named

#: A renewal is tried again so often if the leader has changed meanwhile.
_TRIES = 3


class Holding:
    """The holds of a process; also those that another process has taken, and handed over."""

    def __init__(self, client: Client, leases: Leases) -> None:
        self._client = client
        self._leases = leases

    # Renewing

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        """See BaseBackend.renew().

        The lease is kept alive, and then the key is written. A keepalive alone proves nothing: a
        leader that was deposed and has not noticed answers it, too. A write is linearizable.
        """
        return self._client.ask_twice(partial(self._renew, leases), deadline)

    def _renew(self, leases: Sequence[Lease], deadline: float) -> Mapping[str, bool]:
        answers: dict[str, bool] = {}
        kept: dict[str, HeldKey] = {}
        wanted = {lease.nonce: lease for lease in leases}
        for nonce, hold in self._find(leases, deadline).items():
            if hold is None:
                answers[nonce] = False
            elif _fits(hold, wanted[nonce].duration):
                kept[nonce] = hold
            elif (is_held := self._rebind(hold, wanted[nonce], deadline)) is not None:
                answers[nonce] = is_held
        for _ in range(_TRIES):
            if not kept:
                break
            some = self._keep_alive(kept, wanted, deadline)
            answers |= some
            kept = {nonce: hold for nonce, hold in kept.items() if nonce not in some}
        for nonce, is_held in answers.items():
            if not is_held:
                self._leases.holds.pop(nonce, None)
        return answers

    def _keep_alive(
        self, holds: Mapping[str, HeldKey], wanted: Mapping[str, Lease], deadline: float | None
    ) -> dict[str, bool]:
        """Let leases run anew; return what is known for certain, by nonce."""
        alive = self._client.keep_alive([hold.lease.id for hold in holds.values()], deadline)
        answers: dict[str, bool] = {}
        nonces = [*holds]
        for start in range(0, len(nonces), MOST_OPERATIONS):
            some = nonces[start : start + MOST_OPERATIONS]
            for nonce in some:
                hold, seconds = holds[nonce], wanted[nonce].duration
                hold.data = hold.data.renewed_for(seconds, hold.lease.ttl)
            ended = {nonce for nonce in some if not alive.ttls.get(holds[nonce].lease.id)}
            reply = self._client.txn(
                [],
                [_renewed(holds[nonce], writes=nonce not in ended) for nonce in some],
                deadline=deadline,
            )
            for place, nonce in enumerate(some):
                hold, answer = holds[nonce], reply.inner(place)
                if not answer.succeeded:
                    there = LockKey.first(answer)
                    if there is None or there.created != hold.created:
                        answers[nonce] = False
                    else:
                        hold.update_from(there)
                elif nonce not in ended:
                    hold.modified = reply.revision
                    if alive.proven_by(reply):
                        hold.lease = hold.lease.renewed(alive.sent_at)
                        answers[nonce] = True
        return answers

    def _rebind(self, hold: HeldKey, lease: Lease, deadline: float | None) -> bool | None:
        """Bind the key to a lease of another length; False if the hold is lost.

        None if it has to be tried again, because the key was written by an earlier request that had
        no answer. One that comes late must not bind the key to a lease that nobody keeps alive.
        """
        ttl = whole_seconds(lease.duration)
        # A new lease, which runs from now on: the caller counts from when this was called.
        new = self._client.grant(ttl, deadline)
        data = hold.data.renewed_for(lease.duration, new.ttl)
        reply = self._client.txn(
            [created(hold.key, hold.created), modified(hold.key, hold.modified)],
            [put(hold.key, data.to_value(), new.id)],
            [get(hold.key)],
            deadline,
        )
        if not reply.succeeded:
            there = next(iter(reply.found()), None)
            if there is None or there.created != hold.created:
                self._leases.end(new.id, deadline)
                return False
            hold.modified = there.modified
            if there.lease != new.id:
                self._leases.end(new.id, deadline)
                return None
        else:
            hold.modified = reply.revision
        old, hold.lease, hold.ttl, hold.data = hold.lease, new, ttl, data
        self._leases.end(old.id, deadline)
        return True

    # Leaving

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.release()."""
        if is_named(lease.owner):
            return self._release_named(lease, deadline)
        own = delete(self._keys(lease.name).holds_of(lease.nonce), prefix=True, prev_kv=True)
        reply = self._client.txn([], [own], deadline=deadline)
        deleted = reply.deleted()
        self._give_back(lease.nonce, deleted[0].lease if deleted else 0, deadline)
        # If the answer to a first request was lost, that request has deleted it.
        return bool(deleted) or reply.repeated

    def _release_named(self, lease: Lease, deadline: float | None) -> bool:
        """Free a lock, and leave the token behind, until the lease ends.

        Another process that had the lock under this name can tell so that it was not broken.
        """
        hold = self._find([lease], deadline)[lease.nonce]
        if hold is None:
            return False
        self._leases.holds.pop(lease.nonce, None)
        last = self._keys(lease.name).last_token
        try:
            reply = self._client.txn(
                [created(hold.key, hold.created)],
                [delete(hold.key), put(last, hold.data.left_by(lease).to_value(), hold.lease.id)],
                deadline=deadline,
            )
        except EtcdError as error:
            if error.code != NOT_FOUND:
                raise
            return False  # the lease has ended, and the key with it
        for one in {*self._leases.named(lease.nonce)} - {hold.lease.id}:
            self._leases.end(one, deadline)
        self._leases.settle(lease.nonce)
        return reply.succeeded or reply.repeated

    def _give_back(self, nonce: str, lease_id: int, deadline: float | None) -> None:
        """Take back the lease of a key that was deleted; its id is 0 if it was not there."""
        hold = self._leases.holds.pop(nonce, None)
        if hold is not None and hold.reusable and hold.lease.id == lease_id:
            self._leases.put(hold.lease, hold.ttl)
            return
        ends = {lease_id, *self._leases.named(nonce)}
        if hold is not None:
            ends.add(hold.lease.id)
        for one in ends:
            self._leases.end(one, deadline)
        self._leases.settle(nonce)

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """See BaseBackend.reserve_for()."""
        keys = self._keys(lease.name)
        (entry,) = self._read([keys.holds_of(lease.nonce)], deadline)
        if entry is None:  # it may have been done before
            (entry,) = self._read([keys.reservations_of(lease.nonce)], deadline)
        if entry is None:
            return False
        ttl = whole_seconds(seconds)
        new = self._client.grant(ttl, deadline)
        key = f"{keys.reservations_of(lease.nonce)}{new.id:x}"
        data = entry.data
        if data.token is None:
            data = data.reserved_for(lease, seconds, new.ttl)
        else:
            data = data.renewed_for(seconds, new.ttl)
        reply = self._client.txn(
            [created(entry.key, entry.created)],
            [put(key, data.to_value(), new.id), delete(entry.key)],
            [get(key)],
            deadline,
        )
        if not reply.succeeded and not reply.found():
            self._leases.end(new.id, deadline)
            return False
        self._give_back(lease.nonce, entry.lease, deadline)
        return True

    # Breaking

    def force_release(self, name: str, token: int, deadline: float | None) -> Lease | None:
        """See BaseBackend.force_release()."""
        (entry,) = self._read([self._keys(name).holders], deadline)
        if entry is None or entry.token != token:
            return None
        reply = self._client.txn(
            [created(entry.key, entry.created)], [delete(entry.key)], deadline=deadline
        )
        if not reply.succeeded and not reply.repeated:
            return None
        self._leases.end(entry.lease, deadline)
        data = entry.data
        claim = Claim(name, data.owner, data.lasts, data.description, entry.nonce)
        return Lease(claim, token, 0.0)

    # Looking

    def _find(
        self, leases: Sequence[Lease], deadline: float | None
    ) -> Mapping[str, HeldKey | None]:
        """Return the holds of leases by nonce; None for what is gone.

        What another process has taken has to be read.
        """
        holds = {lease.nonce: self._leases.holds.get(lease.nonce) for lease in leases}
        unknown = [lease for lease in leases if holds[lease.nonce] is None]
        keys = [self._keys(lease.name).holds_of(lease.nonce) for lease in unknown]
        for lease, entry in zip(unknown, self._read(keys, deadline), strict=True):
            if entry is not None:
                holds[lease.nonce] = hold = HeldKey.found(entry)
                self._leases.add(lease.nonce, hold)
        return holds

    def _keys(self, name: str) -> LockKeys:
        return LockKeys(self._client.options.prefix, name)

    def _read(self, keys: Sequence[str], deadline: float | None) -> list[LockKey | None]:
        """Return the first key that begins so, for each of some beginnings."""
        found: list[LockKey | None] = []
        for start in range(0, len(keys), MOST_OPERATIONS):
            some = keys[start : start + MOST_OPERATIONS]
            reading = [get(key, prefix=True, limit=1) for key in some]
            reply = self._client.txn([], reading, deadline=deadline)
            found += [LockKey.first(reply, place) for place in range(len(some))]
        return found


def _renewed(hold: HeldKey, *, writes: bool) -> Json:
    """Return what finds out whether a hold is there, and writes when it was renewed.

    Another thread may be binding the key to another lease, or have done so without an answer. This
    must not bind it to the earlier one again, which is ended then.
    """
    compare = [created(hold.key, hold.created), bound(hold.key, hold.lease.id)]
    writing = [put(hold.key, hold.data.to_value(), hold.lease.id)] if writes else []
    return txn(compare, writing, [get(hold.key)])


def _fits(hold: HeldKey, seconds: float) -> bool:
    """Return whether a lease of the length that the hold has does for so many seconds.

    A much longer one would keep the lock for nobody if the process dies, see ``at_least``.
    """
    wanted = whole_seconds(seconds)
    return wanted <= hold.lease.ttl and hold.ttl <= 2 * wanted
