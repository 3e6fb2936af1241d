"""One delivery of an item of a queue: it is acknowledged, put back, or lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

from django.utils.asyncio import async_unsafe

from distlock.backends.store import Change, Delete, Exists, Put, SessionEnded
from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Steps, despite, or_undo, run
from distlock.concurrency.threads import thread_logger
from distlock.exceptions import LockLost, LockNotHeld
from distlock.locking.base_lock import twins
from distlock.recipes.membership import Membership
from distlock.recipes.queue_items import MOST_REASON, QueueItem, reason_of, taken_key
from distlock.recipes.queue_records import QueueRecords
from distlock.recipes.recipe import Block
from distlock.records.recipe_records import Plan
from distlock.records.seats import held_key, value_of
from distlock.types.lease import Kind, Lease, log_fields
from distlock.types.values import checked_seconds, checked_text


class Delivery(Block):
    """An item that was taken from a queue, until it is acknowledged, put back, or lost.

    With ``with`` it is acknowledged at the end of the block, and put back if that fails. Its lease
    is renewed for as long as this object is kept. It may be passed on to another thread or task.

    An attempt counts when work on the item begins: get() has begun it, of get_many() ``with``,
    atomic() or begin() does.
    """

    def __init__(
        self, queue: QueueRecords, member: Membership, item: QueueItem, nonce: str, *, begun: bool
    ) -> None:
        """See Queue.get(). ``nonce`` is that of the delivery's lease."""
        self._queue = queue
        self._member = member
        self._item = item
        self._nonce = nonce
        self._begun = begun
        self._settled = ""
        last = begun and item.attempts >= queue.max_deliveries
        #: the keys that the item may have: two, if it is not known whether its attempt was begun
        self._keys = [taken_key(item.id, nonce, last=last)]
        #: the number of the item
        self.id = item.id
        self.body = item.body
        #: 1 for the first attempt on the item, 2 for the second one …
        self.attempt = item.attempts + (not begun)

    def __repr__(self) -> str:
        state = self._settled or ("held" if self.held else "lost")
        return f"<Delivery {self.id} of {self._queue!r}, attempt {self.attempt}: {state}>"

    # Knowing

    @property
    def held(self) -> bool:
        """Whether the item is this process's to work on, by what it knows."""
        return not self._settled and self._member.held

    @property
    def token(self) -> int:
        """The fencing token: it grows with every delivery. Raises as check() does."""
        return self.check().token

    def check(self) -> Lease:
        """Raise LockLost if the item may be delivered again, LockNotHeld if this is settled.

        Returns the lease of the delivery. Asks no backend.
        """
        if self._settled:
            raise LockNotHeld(f"{self!r} is over")
        return self._member.check()

    # Working

    def _entering(self) -> Steps[None]:
        """Count the attempt: work on the item begins now. Doing it again does nothing.

        It has to be done for a delivery of get_many() that is not worked on by ``with``, or an item
        that kills each of its consumers is delivered forever. nack() counts in any case.

        Raises LockLost if the delivery was lost; LockNotHeld if it is over; LockUnavailable if the
        backend does not answer.
        """
        lease = self.check()
        if self._begun:
            return
        (old,), item = self._keys[:1], replace(self._item, attempts=self.attempt)
        new = taken_key(self.id, self._nonce, last=self.attempt >= self._queue.max_deliveries)
        changes: list[Change] = [Put(new, item.value)]
        if new != old:
            self._keys = [old, new]
            changes.append(Delete(old))
        queue, same = self._queue, [Exists(held_key(lease.nonce))]
        begin = partial(queue._store.apply, queue._directory, changes, same)
        self._item = item
        if (yield queue._ask(begin)) is None:
            raise self._lost()
        self._keys, self._begun = [new], True

    begin, abegin = twins("begin", _entering)

    # Settling

    @property
    def _done(self) -> Plan:
        """The changes when the work is done."""
        return Plan([*map(Delete, self._keys)])

    def _acking(self) -> Steps[None]:
        """Remove the item from the queue: the work is done.

        Raises LockLost if the delivery was lost, so that the item is delivered again; LockNotHeld
        if it was acknowledged or put back before; LockUnavailable if the backend does not answer:
        the request is sent later if the lease lasts, else the item is delivered again.
        """
        self.check()
        done = yield from self._member.leaving(self._done)
        self._finish("acknowledged", done)

    def _nacking(self, delay: float = 0, reason: str = "") -> Steps[None]:
        """Put the item back to its place; after the last attempt, to the dead letters.

        It is an attempt, also of an item whose work was not begun.

        - ``delay``: seconds for which it is not delivered. In ZooKeeper it ends with this process.
        - ``reason``: for people; the last one is kept.

        Raises as ack() does.
        """
        seconds = 0.0 if delay == 0 else checked_seconds("delay", delay)
        said = checked_text("reason", reason)[:MOST_REASON] or self._item.reason
        self.check()
        item = replace(self._item, attempts=self.attempt, reason=said)
        leave = partial(self._put_back, item, seconds)
        self._finish("put back", (yield from self._member.leaving(leave=leave)))

    ack, aack = twins("ack", _acking, leaves=True)
    nack, anack = twins("nack", _nacking, leaves=True)

    @async_unsafe("atomic() would block the event loop; use `await sync_to_async(function)()`.")
    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Acknowledge the item in a transaction, which commits the caller's work with it.

        It begins and ends with the ``with`` block: all of it is committed, or nothing, and then the
        item is delivered again. ``using`` is the database, which must be that of the queue; it is
        the default. The isolation level should be "read committed", where there is a choice: with
        another one the database may refuse to commit when others have used the queue meanwhile.

        An error of a hook of ``on_commit()`` comes out of the block; all is committed then. Raises
        LockLost, with everything rolled back, if the delivery was lost before the commit;
        LockError if a transaction is open already; NotSupported where the queue is in no database.
        """
        refuse_reentry()
        run(self._entering())
        lease = self.check()
        committed: Sequence[bool] = ()
        keys = [held_key(lease.nonce), *self._keys]

        def before() -> None:
            self.check()
            self._member.pause_renewal()  # it is not lost when it has been removed

        removing = self._queue._store.removing(
            self._queue._directory, keys, lease, using, before=before, lost=self._lost
        )
        try:
            with removing as committed:
                yield self
        except Exception:  # an interrupted one is lost with its lease, and delivered again
            if not committed:
                self._member.resume_renewal()
            raise
        finally:
            if committed:
                self._settled = "acknowledged"
                self._queue._backend.records.forget(lease)
        if not committed:  # Django's set_rollback() ends it without an error
            run(self._nacking(reason="its transaction was rolled back"))

    @staticmethod
    def acking_all(deliveries: Sequence[Delivery]) -> Steps[None]:
        """See Queue.ack_many()."""
        leases, queue = list[Lease](), deliveries[0]._queue
        for one in deliveries:
            with despite(LockLost):  # the others are acknowledged all the same
                leases.append(one.check())
        changes = [change for one in deliveries for change in one._done.changes]

        def ack() -> Steps[None]:
            for one in deliveries:
                one._member.pause_renewal()
            leave = partial(queue._backend.records.leave, leases, Plan(changes))
            if len(leases) == len(deliveries) and (yield queue._ask(leave)) is not None:
                for one in deliveries:
                    one._settled = "acknowledged"
            for one in deliveries:
                with despite(LockLost):  # the others need not be delivered again
                    yield from one._leaving()

        # Unless it is renewed, nobody would see that it is garbage.
        def ack_soon(error: BaseException) -> None:
            for one in deliveries:
                if not one._settled:
                    one._member.leave_soon(one._done)

        yield from or_undo(ack(), ack_soon)
        for one in deliveries:
            if not one._settled:
                raise one._lost()

    def _leaving(self) -> Steps[None]:
        if not self._settled:
            yield from self._acking()

    def _failing(self, error: BaseException) -> Steps[None]:
        if self._settled:
            return
        if isinstance(error, Exception):  # no interrupt
            self._log(error)
        yield from self._nacking(reason=reason_of(error))

    def _log(self, error: Exception) -> None:
        """Log an error of the work with all of its traceback; the item keeps the last lines."""
        queue, lease = self._queue, self._member.lease
        who = (lease.token, lease.owner) if lease else ()
        fields = log_fields(queue.using, queue.name, Kind.QUEUE, *who)
        text = "the work on item %d of %r failed in attempt %d of %d"
        values = self.id, queue, self.attempt, queue.max_deliveries
        thread_logger.error(text, *values, exc_info=error, extra=fields)

    def give_up(self) -> None:
        """Put the item back soon: nobody has seen it. The caller does not wait."""
        unseen = replace(self._item, attempts=self._item.attempts - self._begun)
        self._member.leave_soon(Plan(self._moving(unseen.put_back(self._queue.max_deliveries))))

    # Inside

    def _putting_aside(self) -> Steps[bool]:
        """Put the item to the dead letters: it cannot be read."""
        aside = self._item.put_back(max_deliveries=0)
        return (yield from self._member.leaving(Plan(self._moving(aside))))

    def _finish(self, how: str, done: bool) -> None:
        if not done:
            raise self._lost()
        self._settled = how

    def _lost(self) -> LockLost:
        return LockLost(f"{self!r} was lost: the item is, or will be, delivered again")

    def _put_back(
        self, item: QueueItem, seconds: float, lease: Lease, deadline: float | None
    ) -> Any:
        queue, most = self._queue, self._queue.max_deliveries
        leave = partial(queue._backend.records.leave, [lease], deadline=deadline)
        if seconds and item.attempts < most:
            session, nonce = queue._store.open_session(seconds, deadline), os.urandom(16).hex()
            said = {**value_of(lease.claim), "data": {"item": self.id, "delayed": True}}
            marker = Put(held_key(nonce), said, session.id)
            delayed = Put(taken_key(self.id, nonce, last=False), item.value)
            with suppress(SessionEnded):  # the delay was over before this
                return leave(Plan([*self._moving(delayed), marker]))
        return leave(Plan(self._moving(item.put_back(most))))

    def _moving(self, put: Put) -> list[Change]:
        return [*map(Delete, self._keys), put]
