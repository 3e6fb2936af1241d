"""The leases of this process: those of its holds, and those kept for the next hold."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from distlock.backends.etcd.client import Client, EtcdLease, new_lease_id
from distlock.backends.etcd.lock_keys import ContenderData, LockKey
from distlock.concurrency.clock import clock
from distlock.exceptions import LockError
from distlock.types.lease import Claim
from distlock.types.owners import is_named

#: Seconds. etcd makes shorter leases longer: it ends none before a leader can be elected anew.
SHORTEST = 2
#: A lease is used for another hold if no more than this part of that is over. The process counts
#: its hold from when the lease was granted.
_FRESH = 1 / 4
#: Seconds. Leases that nobody uses end by themselves; longer ones are ended.
_LONGEST_UNUSED = 300
#: Leases of one length that are kept for the next hold.
_MOST_UNUSED = 16
#: Holds that are remembered before those are looked for that have ended without a word.
_MANY = 256


@dataclass(slots=True, eq=False)
class HeldKey:
    """A hold of this process: its key, and the lease that the key is bound to."""

    key: str
    created: int
    #: the revision that has written the key last, as far as this process knows
    modified: int
    lease: EtcdLease
    #: the length that was asked for; the cluster may have granted more
    ttl: int
    data: ContenderData
    #: No request that names the lease can be carried out any more after the hold is left. Else the
    #: lease must be ended: a late request would hold the lock again, for nobody.
    reusable: bool = True

    @classmethod
    def found(cls, entry: LockKey) -> HeldKey:
        """Return a hold that another process has taken, as it was read."""
        data = entry.data
        lease = EtcdLease(entry.lease, data.ttl, float("-inf"))
        return cls(entry.key, entry.created, entry.modified, lease, data.ttl, data, reusable=False)

    def update_from(self, entry: LockKey) -> None:
        """Note which lease the key is bound to by now, as it was read."""
        there = HeldKey.found(entry)
        self.modified, self.lease, self.ttl = there.modified, there.lease, there.ttl
        self.data, self.reusable = there.data, False

    @property
    def ends(self) -> float:
        """When it has ended, unless it was renewed."""
        return self.lease.sent_at + max(self.lease.ttl, self.data.lasts)


def whole_seconds(seconds: float) -> int:
    """Return the length of a lease that lasts for so many seconds at least."""
    return max(-int(-seconds // 1), SHORTEST)


class Leases:
    """The leases of a process, and its holds. Its methods are atomic steps, without a mutex.

    A lock that is taken and freed again and again needs no new lease each time, which the cluster
    would have to write down. A lease has one hold at a time, so that losing it, or ending it, means
    nothing for other holds.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        #: leases that nobody uses at present, by length
        self._unused: dict[int, list[EtcdLease]] = {}
        #: the holds that were granted here, by nonce
        self.holds: dict[str, HeldKey] = {}
        #: the leases that were named in requests of a claim, by nonce; and until when that matters
        self._named: dict[str, tuple[list[int], float]] = {}
        self._many = _MANY

    # Leases

    def get(self, claim: Claim, ttl: int, duration: float, deadline: float | None) -> EtcdLease:
        """Return a lease of so many whole seconds for ``duration`` seconds of a claim."""
        self._drop_ended()
        named, _ = self._named.setdefault(claim.nonce, ([], clock() + claim.reserved + ttl))
        unused = self._unused.get(ttl, [])
        while unused:
            with suppress(IndexError):  # another thread was first
                lease = unused.pop()
                if clock() - lease.sent_at < duration * _FRESH:
                    named.append(lease.id)
                    return lease
        lease_id = new_lease_id()
        named.append(lease_id)
        return self._client.grant(ttl, deadline, lease_id)

    def put(self, lease: EtcdLease, ttl: int, *, reusable: bool = True) -> None:
        """Take back a lease of so many seconds that has no key any more."""
        unused = self._unused.setdefault(ttl, [])
        if not reusable or ttl > _LONGEST_UNUSED:
            self.end(lease.id)
        elif clock() - lease.sent_at < ttl * _FRESH and len(unused) < _MOST_UNUSED:
            unused.append(lease)

    def end(self, lease_id: int, deadline: float | None = None) -> None:
        """End a lease if the cluster can be asked; else it ends by itself."""
        if lease_id:
            with suppress(LockError):
                self._client.revoke(lease_id, deadline)

    def named(self, nonce: str) -> list[int]:
        """Return the leases that requests of a claim may have named and not left."""
        named, _ = self._named.get(nonce, ([], 0.0))
        return [*named]

    def unname(self, nonce: str, lease_id: int) -> None:
        """Note that no request of a claim that names this lease is on its way any more."""
        with suppress(ValueError):
            self._named.get(nonce, ([], 0.0))[0].remove(lease_id)

    def settle(self, nonce: str) -> None:
        """Note that no request of a claim is on its way any more."""
        self._named.pop(nonce, None)

    # Holds

    def granted(self, claim: Claim, hold: HeldKey) -> None:
        """Note the hold that a claim was granted, unless it may go on without this process.

        The place of a queued Celery task is taken anew, and freed, by other processes. They do so
        under the same nonce, so what is known here would stand for another key.
        """
        if claim.renews or not is_named(claim.owner):
            self.add(claim.nonce, hold)

    def add(self, nonce: str, hold: HeldKey) -> None:
        """Note a hold, until it is removed, or has ended without a word."""
        self._drop_ended()
        self.holds[nonce] = hold

    def _drop_ended(self) -> None:
        if len(self.holds) + len(self._named) > self._many:
            now = clock()
            for known, one in list(self.holds.items()):
                if one.ends < now:
                    self.holds.pop(known, None)
            for known, (_, until) in list(self._named.items()):
                if until < now:
                    self._named.pop(known, None)
            self._many = 2 * (len(self.holds) + len(self._named)) + _MANY
