"""One claim that contends for its lock: the protocol, and the wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from distlock.backends.background import BlockingCalls, answer_due
from distlock.backends.base import PendingLease
from distlock.backends.etcd.client import EtcdClient, EtcdLease
from distlock.backends.etcd.leases import EtcdGrant, Leases, whole_seconds
from distlock.backends.etcd.lock_keys import EtcdKey, EtcdKeys, KeyData, QueuePosition
from distlock.backends.etcd.messages import (
    EtcdError,
    EtcdReply,
    Json,
    LeaseNotFound,
    created,
    delete,
    get,
    put,
)
from distlock.backends.etcd.watches import KeyWatch
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Call, Sleep, Steps, Wait, or_undo
from distlock.concurrency.workers import NotDone
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Lease

T = TypeVar("T")

#: Seconds after which a waiter that is gone loses its place, and those behind it go on. It is as
#: long as a waiter goes on without an answer, because it may have lost its place by then.
_PLACE = 10
#: A waiter looks this often in that time, and renews its lease.
_LOOKS = 3
#: Seconds between two attempts to ask a cluster that does not answer.
_PAUSE = 0.2
#: So often a hold of the same owner's name is followed that changes hands meanwhile.
_TRIES = 5


class EtcdContender:
    """One claim that contends for its lock. The protocol, after etcd's ``concurrency.Mutex``:

    1. One transaction: if nobody holds the lock and nobody waits, put the holder's key with a lease
       of its own. The token is the revision that has created this key. If a hold of the same
       owner's name is there, replace it.
    2. Else put a key into the queue, with another lease, which is short: it is to end soon after
       its process, however long the lock's own lease is.
    3. The first in the queue watches the holder's key; everyone else the place just before its own,
       and already the key that its claim would hold the lock with. When one is gone, look who is
       ahead now. Look also now and then, because hints get lost.
    4. The first contender, if it sees no holder, puts the holder's key and deletes its place in one
      transaction, on the condition that all this is still so.
    5. A contender that gives up deletes its place; a possible grant is cancelled.

    So each grant is made by a transaction on the condition that nobody has the lock.
    """

    def __init__(
        self,
        client: EtcdClient,
        leases: Leases,
        claim: Claim,
        deadline: float | None,
        calls: BlockingCalls,
        undo: Callable[[], object],
    ) -> None:
        """``calls`` makes blocking calls as steps; ``undo`` cancels the claim in the background."""
        self._calls = calls
        self._undo = undo
        self._client = client
        self._leases = leases
        self._claim = claim
        self._deadline = deadline
        self._keys = EtcdKeys(client.options.prefix, claim.name)
        self._place_key = self._keys.place_of(claim.nonce)
        self._place: EtcdLease | None = None
        self._place_revision = 0
        #: whether a request of this claim may be carried out later
        self._unsure = False
        self._answered_at = clock()
        self._next_look = 0.0
        self._watches: list[KeyWatch] = []

    # One attempt; these methods block

    def try_once(self, deadline: float | None = None) -> Lease | None:
        """Take the lock if nobody has it or waits, or from the same owner's name; step 1."""
        holders, waiters = self._keys.holders, self._keys.waiters
        nobody = [created(holders, 0, prefix=True), created(waiters, 0, prefix=True)]
        granted = self._grant(nobody, [], deadline)
        if isinstance(granted, Lease):
            return granted
        for _ in range(_TRIES):
            replaced = granted.holder
            if replaced is None or not self._can_adopt(replaced):
                if self._place is None and not self._unsure:
                    self._leases.forget_requests(self._claim.nonce)
                return None
            granted = self._grant(
                [created(replaced.key, replaced.created)], [delete(replaced.key)], deadline
            )
            if isinstance(granted, Lease):
                self._leases.end(replaced.lease, deadline)
                return granted
        raise LockUnavailable(f"lock {self._claim.name!r}: its hold changes hands too fast")

    def _can_adopt(self, holder: EtcdKey) -> bool:
        """Return whether it is a hold of the same owner's name, or of this very claim."""
        if holder.data.token is not None:
            return False  # its holder has left it
        return holder.nonce == self._claim.nonce or holder.data.is_of(self._claim)

    def _grant(
        self, compare: Sequence[Json], success: Sequence[Json], deadline: float | None
    ) -> Lease | QueuePosition:
        """Put the holder's key if ``compare`` is true; else return who has the lock or is ahead."""
        return self._with_lease(partial(self._grant_once, compare, success, deadline))

    def _with_lease(self, request: Callable[[bool], T]) -> T:
        """Make a request with a lease that was kept, or a new one: it is given whether a new one.

        Those that were kept may have been ended by somebody, all at once.
        """
        try:
            return request(False)
        except LeaseNotFound as error:
            if error.maybe_applied:
                raise
        return request(True)

    def _grant_once(
        self,
        compare: Sequence[Json],
        success: Sequence[Json],
        deadline: float | None,
        is_new: bool,
    ) -> Lease | QueuePosition:
        claim, leases = self._claim, self._leases
        ttl = whole_seconds(claim.reserved)
        lease = leases.get(claim, ttl, claim.duration, deadline, is_new=is_new)
        key = f"{self._keys.holds_of(claim.nonce)}{lease.id:x}"
        data = KeyData.of(claim, lease.ttl)
        operations = [put(key, data.to_value(), lease.id), *success]
        if self._place is not None:
            operations.append(delete(self._place_key))
        reply = self._client.txn(compare, operations, self._looks(), deadline)
        self._unsure |= reply.repeated
        revision = reply.revision
        if not reply.succeeded:
            position = self._position(reply)
            if position.holder is None or position.holder.key != key:
                if reply.repeated:
                    leases.put(lease, ttl, deadline, reusable=False)
                elif leases.release_name(claim.nonce, lease.id):  # else cancel() ends it
                    leases.put(lease, ttl, deadline)
                return position
            revision = position.holder.created  # an earlier request has put it, without an answer
        reusable = not self._unsure and leases.release_name(claim.nonce, lease.id)
        leases.granted(claim, EtcdGrant(key, revision, revision, lease, ttl, data, reusable))
        if self._place is None and not self._unsure:
            leases.forget_requests(claim.nonce)
        return claim.granted(revision, lease.sent_at)

    # Waiting; these methods block

    def _join(self, deadline: float | None = None) -> QueuePosition:
        """Get a place in the queue; step 2."""
        return self._with_lease(partial(self._join_once, deadline))

    def _join_once(self, deadline: float | None, is_new: bool) -> QueuePosition:
        place = self._leases.get(self._claim, _PLACE, _PLACE, deadline, is_new=is_new)
        self._place, self._place_revision = place, 0
        data = KeyData.of(self._claim, place.ttl)
        reply = self._client.txn(
            [created(self._place_key, 0)],
            [put(self._place_key, data.to_value(), place.id), *self._looks()],
            [get(self._place_key)],
            deadline,
        )
        self._unsure |= reply.repeated
        self._place_revision = reply.revision
        self._next_look = clock() + place.ttl / _LOOKS
        if reply.succeeded:
            return self._position(reply, 1)
        if (found := EtcdKey.first(reply)) is not None:
            # An earlier request has put it, whose answer was lost, perhaps with another lease.
            self._place_revision = found.created
            self._place = EtcdLease(found.lease, place.ttl, place.sent_at)
        return self._look(deadline)

    def _look(self, deadline: float | None = None) -> QueuePosition:
        """See who holds the lock, and who is just before the own place; step 3."""
        return self._position(self._client.do(self._looks(), deadline))

    def _looks(self) -> list[Json]:
        """Return what reads the own position; of one that has no place, only the holder."""
        before = get(
            self._keys.waiters,
            prefix=True,
            limit=2,
            max_create_revision=self._place_revision,  # 0: it is about to be the last one
            sort_order="DESCEND",
            sort_target="CREATE",
        )
        holder = get(self._keys.holders, prefix=True, limit=1)
        return [holder] if self._place is None else [holder, before]

    def _position(self, reply: EtcdReply, start: int = 0) -> QueuePosition:
        """Return what the operations from ``start`` on have read, see _looks()."""
        places = [] if self._place is None else [*map(EtcdKey.of, reply.found(start + 1))]
        own = next((place for place in places if place.key == self._place_key), None)
        ahead = next((place for place in places if place.key != self._place_key), None)
        position = QueuePosition(reply.revision, EtcdKey.first(reply, start), own, ahead)
        self._claim.refused_by = position.holder.holder if position.holder else None
        return position

    def _keep_place(self, deadline: float | None = None) -> QueuePosition:
        assert self._place is not None, "it has joined"
        self._client.keep_alive([self._place.id], deadline)
        self._next_look = clock() + self._place.ttl / _LOOKS
        return self._look(deadline)

    def _promote(self, deadline: float | None = None) -> Lease | QueuePosition:
        """Take the lock if nobody holds it or is ahead, and the own place is there; step 4."""
        return self._grant(self._is_next(), [], deadline)

    def _leave(self, deadline: float | None = None) -> bool:
        """Give the place up, step 5, unless the lock can be taken now; return whether it can."""
        reply = self._client.txn(self._is_next(), [], [delete(self._place_key)], deadline)
        return reply.succeeded

    def _is_next(self) -> list[Json]:
        return [
            created(self._keys.holders, 0, prefix=True),
            created(self._keys.waiters, self._place_revision - 1, "GREATER", prefix=True),
            created(self._place_key, self._place_revision),
        ]

    # The steps of a wait

    def steps(self) -> PendingLease:
        """Contend until there is a lease, or someone else has had the lock until the deadline.

        LockUnavailable if the cluster did not answer.
        """
        lease: Lease | None = yield self._call(self.try_once)
        if lease is not None or self._is_over():
            return lease
        try:
            lease = yield from or_undo(self._queue(), lambda _: self._undo())
        finally:
            self._unwatch()
        if not self._unsure:
            place = self._place
            if place is not None and self._leases.release_name(self._claim.nonce, place.id):
                self._leases.put(place, _PLACE)
            self._leases.forget_requests(self._claim.nonce)
        elif lease is None:
            self._undo()
        return lease

    def _queue(self) -> PendingLease:
        found: QueuePosition | Lease = yield from self._ask(self._join)
        while isinstance(found, QueuePosition):
            if found.own is None:  # it has ended, or was deleted
                found = yield from self._ask(self._join)
            elif found.is_next:
                found = yield from self._ask(self._promote)
            elif found.holder is not None and self._can_adopt(found.holder):
                lease = yield from self._ask(self.try_once)
                found = lease or (yield from self._ask(self._look))
            elif not self._is_over():
                found = yield from self._wait(found)
            elif (yield from self._next_at_the_end()):
                found = yield from self._ask(self._look)
            else:
                return None
        return found

    def _next_at_the_end(self) -> Steps[bool]:
        """Give the place up, unless the lock can be taken now; return whether it can.

        An earlier answer has shown that someone is ahead, so no answer is needed for that.
        """
        try:
            return (yield from self._ask(self._leave))
        except LockUnavailable:
            if clock() - self._answered_at >= self._client.options.timeout:
                raise
            self._unsure = True  # the place, and what comes of it, is taken back later
            return False

    def _wait(self, position: QueuePosition) -> Steps[QueuePosition]:
        """Wait for the one ahead; return the position then."""
        ahead = position.ahead or position.holder
        assert ahead is not None, "it is not next"
        changed: Pending[bool] = Pending()
        until, add = self._next_look, self._client.watches.add
        try:
            # etcd may report the end of a hold 100 ms late if its watch was begun just before. So
            # it begins while its claim still waits.
            hold = self._keys.holds_of(ahead.nonce)
            for key in [hold] if ahead.key.startswith(hold) else [hold, ahead.key]:
                resolve = partial(changed.resolve, True)
                watch = add(key, position.revision, resolve, prefix=True, deletes_only=True)
                self._watches.append(watch)
        except RuntimeError:  # no more threads can be started
            until = clock() + _PAUSE
        if self._deadline is not None:
            until = min(until, self._deadline)
        is_gone = yield Wait(changed, until)
        self._unwatch()
        if is_gone and ahead is position.holder:  # or perhaps gone: then _promote() tells
            return QueuePosition(position.revision, None, position.own, None)
        if self._is_over():
            return position
        is_due = clock() >= self._next_look
        return (yield from self._ask(self._keep_place if is_due else self._look))

    def _ask(self, call: Callable[[float | None], T]) -> Steps[T]:
        """Make a blocking call, again and again while there is no answer, as long as it is of use.

        After that the place in the queue may be lost.
        """
        while True:
            try:
                answer: T = yield self._call(call)
                self._answered_at = clock()
                return answer
            except LockUnavailable as error:
                self._unsure |= error.maybe_applied
                if isinstance(error, EtcdError) and not error.is_for_another:
                    raise
                if error.maybe_applied and isinstance(error.__cause__, NotDone):
                    raise  # a call that was abandoned cancels the claim at its end
                if self._is_over() or clock() - self._answered_at >= _PLACE:
                    raise
            yield Sleep(_PAUSE)

    def _call(self, call: Callable[[float | None], object]) -> Call:
        return Call(call, answer_due(self._deadline), self._undo, executor=self._calls)

    def _is_over(self) -> bool:
        return self._deadline is not None and clock() >= self._deadline

    def _unwatch(self) -> None:
        while self._watches:
            self._watches.pop().cancel()
