"""The leases of this process: those of its holds, which it renews, and those kept for the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from distlock.backends.etcd.client import EtcdClient, EtcdLease, new_lease_id
from distlock.backends.etcd.lock_keys import EtcdKey, EtcdKeys, KeyData, LockReader
from distlock.backends.etcd.messages import (
    MOST_OPERATIONS,
    Json,
    bound,
    created,
    get,
    modified,
    put,
    txn,
)
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import despite
from distlock.exceptions import LockError
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named
from distlock.types.values import batches

#: Seconds. etcd makes shorter leases longer: it ends none before a new leader can be elected.
SHORTEST = 2
#: A lease is used for another hold if no more than this part of that is over. The process counts
#: its hold from when the lease was granted.
_FRESH = 1 / 4
#: Seconds. Leases that nobody uses end by themselves; longer ones are ended.
_LONGEST_UNUSED = 300
#: Leases of one length that are kept for the next hold.
_MOST_UNUSED = 16
#: A renewal is tried again so often if the leader has changed meanwhile.
_TRIES = 3
#: Holds that are remembered before those are looked for that have ended without a word.
_MANY = 256


@dataclass(slots=True, eq=False)
class EtcdGrant:
    """A hold of this process: its key, and the lease that the key is bound to."""

    key: str
    created: int
    #: the revision that has written the key last, as far as this process knows
    modified: int
    lease: EtcdLease
    #: the length that was asked for; the cluster may have granted more
    ttl: int
    data: KeyData
    #: No request that names the lease can be carried out any more after the hold is left. Else the
    #: lease must be ended: a late request would hold the lock again, for nobody.
    reusable: bool = True

    @classmethod
    def found(cls, entry: EtcdKey) -> EtcdGrant:
        """Return a hold that another process has taken, as it was read."""
        data = entry.data
        lease = EtcdLease(entry.lease, data.ttl, float("-inf"))
        return cls(entry.key, entry.created, entry.modified, lease, data.ttl, data, reusable=False)

    def update_from(self, entry: EtcdKey) -> None:
        """Note which lease the key is bound to by now, as it was read."""
        there = EtcdGrant.found(entry)
        self.modified, self.lease, self.ttl = there.modified, there.lease, there.ttl
        self.data, self.reusable = there.data, False

    @property
    def ends(self) -> float:
        """When it has ended, unless it was renewed."""
        return self.lease.sent_at + max(self.lease.ttl, self.data.lasts)


@dataclass(slots=True, eq=False)
class _Named:
    """The leases that requests of one claim have named, by what is to come of them."""

    #: when no request of the claim can be on its way any more
    until: float
    #: Each is of the thread that removes it from here: to use it for another hold, or to end it.
    open: list[int] = field(default_factory=list)
    #: Those to end. None is used again: a request to end it may be carried out late.
    ending: list[int] = field(default_factory=list)


def whole_seconds(seconds: float) -> int:
    """Return the length of a lease that lasts for at least ``seconds``."""
    return max(-int(-seconds // 1), SHORTEST)


class Leases:
    """The leases of a process, and its holds. They are noted in atomic steps, without a mutex.

    A lock that is taken and freed again and again needs no new lease each time, which the cluster
    would have to write down. A lease has one hold at a time, so that losing it, or ending it, means
    nothing for other holds.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client, self._renewing = client, client.for_renewals()
        #: leases that nobody uses at present, by length
        self._unused: dict[int, list[EtcdLease]] = {}
        #: the holds that were granted here, by nonce
        self.holds: dict[str, EtcdGrant] = {}
        #: the leases that were named in requests of a claim, by nonce
        self._named: dict[str, _Named] = {}
        self._many = _MANY

    # Leases

    def get(
        self,
        claim: Claim,
        ttl: int,
        duration: float,
        deadline: float | None,
        *,
        is_new: bool = False,
    ) -> EtcdLease:
        """Return a lease of so many whole seconds for ``duration`` seconds of a claim.

        ``is_new``: not one that was kept.
        """
        self._drop_ended()
        until = clock() + claim.reserved + ttl
        names = self._named.setdefault(claim.nonce, _Named(until))
        names.until = max(names.until, until)
        named = names.open
        unused = [] if is_new else self._unused.get(ttl, [])
        while unused:
            with suppress(IndexError):  # another thread was first
                lease = unused.pop()
                if clock() - lease.sent_at < duration * _FRESH:
                    named.append(lease.id)
                    return lease
        lease_id = new_lease_id()
        named.append(lease_id)
        return self._client.grant(ttl, deadline, lease_id)

    def put(
        self,
        lease: EtcdLease,
        ttl: int,
        deadline: float | None = None,
        *,
        reusable: bool = True,
    ) -> None:
        """Take back a lease of ``ttl`` seconds that no longer has a key."""
        unused = self._unused.setdefault(ttl, [])
        if not reusable or ttl > _LONGEST_UNUSED:
            self.end(lease.id, deadline)
        elif clock() - lease.sent_at < ttl * _FRESH and len(unused) < _MOST_UNUSED:
            unused.append(lease)

    def end(
        self, lease_id: int, deadline: float | None = None, client: EtcdClient | None = None
    ) -> None:
        """End a lease if the cluster can be asked; else it ends by itself.

        ``client`` asks it, in place of the usual one.
        """
        if lease_id:
            with despite(LockError):
                (client or self._client).revoke(lease_id, deadline)

    def give_back(self, nonce: str, lease_id: int, deadline: float | None) -> None:
        """Take back the lease of a key that was deleted; its id is 0 if it was not there."""
        hold = self.holds.pop(nonce, None)
        if hold is not None and hold.reusable and hold.lease.id == lease_id:
            self.put(hold.lease, hold.ttl, deadline)
            return
        ends = {lease_id, *self.to_end(nonce)}
        if hold is not None:
            ends.add(hold.lease.id)
        for one in ends:
            self.end(one, deadline)
        self.forget_requests(nonce)

    def to_end(self, nonce: str) -> list[int]:
        """Return the leases that requests of a claim may name; the caller is to end them.

        They are the same again if that fails, and it is tried once more.
        """
        names = self._named.get(nonce)
        if names is None:
            return []
        for one in [*names.open]:
            if self.release_name(nonce, one):
                names.ending.append(one)
        return [*names.ending]

    def release_name(self, nonce: str, lease_id: int) -> bool:
        """Note that no request of a claim that names this lease is on its way any more.

        False if another thread ends it: then it must not be used again.
        """
        names = self._named.get(nonce)
        if names is not None:
            with suppress(ValueError):  # another thread was first
                names.open.remove(lease_id)
                return True
        return False

    def forget_requests(self, nonce: str) -> None:
        """Note that no request of a claim is on its way any more."""
        self._named.pop(nonce, None)

    # Holds

    def granted(self, claim: Claim, hold: EtcdGrant) -> None:
        """Note the hold that a claim was granted, unless it may go on without this process.

        The place of a queued Celery task is taken again, and freed, by other processes. They do so
        under the same nonce, so what is known here would stand for another key.
        """
        if claim.renews or not is_named(claim.owner):
            self.add(claim.nonce, hold)

    def add(self, nonce: str, hold: EtcdGrant) -> None:
        """Note a hold, until it is removed, or has ended without a word."""
        self._drop_ended()
        self.holds[nonce] = hold

    def _drop_ended(self) -> None:
        if len(self.holds) + len(self._named) > self._many:
            now = clock()
            for known, one in self.holds.copy().items():
                if one.ends < now:
                    self.holds.pop(known, None)
            for known, names in self._named.copy().items():
                if names.until < now:
                    self._named.pop(known, None)
            self._many = 2 * (len(self.holds) + len(self._named)) + _MANY

    def find(
        self, leases: Sequence[Lease], deadline: float | None, client: EtcdClient | None = None
    ) -> Mapping[str, EtcdGrant | None]:
        """Return the holds of leases by nonce; None for what is gone.

        Leases of another process have to be read, by ``client`` in place of the usual one.
        """
        holds = {lease.nonce: self.holds.get(lease.nonce) for lease in leases}
        prefix = self._client.options.prefix
        unknown = [lease for lease in leases if holds[lease.nonce] is None]
        keys = [EtcdKeys(prefix, lease.name).holds_of(lease.nonce) for lease in unknown]
        found = LockReader(client or self._client, deadline).first(*keys)
        for lease, entry in zip(unknown, found, strict=True):
            if entry is not None:
                holds[lease.nonce] = hold = EtcdGrant.found(entry)
                self.add(lease.nonce, hold)
        return holds

    # Renewing

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        """See BaseBackend.renew().

        The lease is kept alive, and then the key is written. A keepalive alone proves nothing: a
        leader that was deposed and has not noticed answers it, too. A write is linearizable.
        """
        return self._renewing.ask_twice(partial(self._renew, leases), deadline)

    def _renew(self, leases: Sequence[Lease], deadline: float) -> Mapping[str, bool]:
        answers: dict[str, bool] = {}
        kept: dict[str, EtcdGrant] = {}
        wanted = {lease.nonce: lease for lease in leases}
        for nonce, hold in self.find(leases, deadline, self._renewing).items():
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
                self.holds.pop(nonce, None)
        return answers

    def _keep_alive(
        self, holds: Mapping[str, EtcdGrant], wanted: Mapping[str, Lease], deadline: float | None
    ) -> dict[str, bool]:
        """Renew leases; return what is known for certain, by nonce."""
        alive = self._renewing.keep_alive([hold.lease.id for hold in holds.values()], deadline)
        answers: dict[str, bool] = {}
        for some in batches(holds, MOST_OPERATIONS):
            for nonce in some:
                hold, seconds = holds[nonce], wanted[nonce].duration
                hold.data = hold.data.renewed_for(seconds, hold.lease.ttl)
            ended = {nonce for nonce in some if not alive.ttls.get(holds[nonce].lease.id)}
            written = [_renewed(holds[nonce], writes=nonce not in ended) for nonce in some]
            reply = self._renewing.do(written, deadline)
            for place, nonce in enumerate(some):
                hold, answer = holds[nonce], reply.inner(place)
                if not answer.succeeded:
                    there = EtcdKey.first(answer)
                    if there is None or there.created != hold.created:
                        answers[nonce] = False
                    else:
                        hold.update_from(there)
                elif nonce not in ended:
                    hold.modified = reply.revision
                    if alive.proven_by(reply):
                        hold.lease = replace(hold.lease, sent_at=alive.sent_at)
                        answers[nonce] = True
        return answers

    def _rebind(self, hold: EtcdGrant, lease: Lease, deadline: float | None) -> bool | None:
        """Bind the key to a lease of another length; False if the hold is lost.

        None if it has to be tried again, because the key was written by an earlier request that had
        no answer. One that comes late must not bind the key to a lease that nobody keeps alive.
        """
        ttl = whole_seconds(lease.duration)
        # A new lease, which runs from now on: the caller counts from when this was called.
        new = self._renewing.grant(ttl, deadline)
        data = hold.data.renewed_for(lease.duration, new.ttl)
        reply = self._renewing.txn(
            [created(hold.key, hold.created), modified(hold.key, hold.modified)],
            [put(hold.key, data.to_value(), new.id)],
            [get(hold.key)],
            deadline,
        )
        if not reply.succeeded:
            there = next(iter(reply.found()), None)
            if there is None or there.created != hold.created:
                self.end(new.id, deadline, self._renewing)
                return False
            hold.modified = there.modified
            if there.lease != new.id:
                self.end(new.id, deadline, self._renewing)
                return None
        else:
            hold.modified = reply.revision
        old, hold.lease, hold.ttl, hold.data = hold.lease, new, ttl, data
        self.end(old.id, deadline, self._renewing)
        return True


def _renewed(hold: EtcdGrant, *, writes: bool) -> Json:
    """Return what finds out whether a hold is there, and writes when it was renewed.

    Another thread may be binding the key to another lease, or have done so without an answer. This
    must not bind it to the earlier one again, which is ended then.
    """
    compare = [created(hold.key, hold.created), bound(hold.key, hold.lease.id)]
    writing = [put(hold.key, hold.data.to_value(), hold.lease.id)] if writes else []
    return txn(compare, writing, [get(hold.key)])


def _fits(hold: EtcdGrant, seconds: float) -> bool:
    """Return whether a lease with the length of the hold's is right for ``seconds``.

    A much longer one would keep the lock taken too long if the process dies, see ``at_least``.
    """
    wanted = whole_seconds(seconds)
    return wanted <= hold.lease.ttl and hold.ttl <= 2 * wanted
