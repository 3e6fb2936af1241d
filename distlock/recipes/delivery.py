"""One delivery of an item of a queue: it is acknowledged, put back, or lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from django.utils.asyncio import async_unsafe

from distlock.backends.recipe_records import Plan
from distlock.backends.seats import held_key, value_of
from distlock.backends.store import Delete, Put, SessionEnded
from distlock.concurrency.steps import Steps, arun, run
from distlock.core.manager import undo
from distlock.core.section import add_leave_error
from distlock.exceptions import LockLost, LockNotHeld
from distlock.recipes.membership import Membership
from distlock.recipes.queue_items import MOST_REASON, TAKEN, Item, key_of
from distlock.recipes.recipe import Recipe
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_seconds, checked_text
from distlock.types.lease import Lease
from distlock.types.printable import escaped


class Delivery:
    """An item that was taken from a queue, until it is acknowledged, put back, or lost.

    With ``with`` it is acknowledged at the end of the block, and put back if that fails. Its lease
    is renewed for as long as this object is kept. It may be passed on to another thread or task.
    """

    def __init__(
        self, queue: Recipe, member: Membership, number: int, item: Item, max_deliveries: int
    ) -> None:
        """See Queue.get()."""
        self._queue = queue
        self._max_deliveries = max_deliveries
        self._member = member
        self._item = item
        self._settled = ""
        #: the number of the item
        self.id = number
        self.body = item.body
        #: 1 for the first delivery of the item, 2 for the second one …
        self.attempt = item.attempts

    def __repr__(self) -> str:
        state = self._settled or ("held" if self.held else "lost")
        return f"<Delivery {self.id} of {self._queue!r}, attempt {self.attempt}: {state}>"

    # Knowing

    @property
    def held(self) -> bool:
        """Whether the item is this process's to work on, by what it knows."""
        return self._member.held

    @property
    def token(self) -> int:
        """The fencing token: it grows with every delivery. Raises as check() does."""
        return self._checked().token

    def check(self) -> None:
        """Raise LockLost if the item may be delivered again, LockNotHeld if this is settled.

        Asks no backend.
        """
        self._checked()

    # Settling

    def _acking(self) -> Steps[None]:
        """Remove the item from the queue: the work is done.

        Raises LockLost if the delivery was lost, so that the item is delivered again; LockNotHeld
        if it was acknowledged or put back before; LockUnavailable if the backend cannot be told: it
        is told later if the lease lasts, else the item is delivered again.
        """
        self._checked()
        done = yield from self._member.leaving(Plan([Delete(key_of(TAKEN, self.id))]))
        self._settle("acknowledged", done)

    def _nacking(self, delay: float = 0, reason: str = "") -> Steps[None]:
        """Put the item back to its place; after the last attempt, to the dead letters.

        - ``delay``: seconds for which it is not delivered. In ZooKeeper it ends with this process.
        - ``reason``: for people; the last one is kept.

        Raises as ack() does.
        """
        seconds = 0.0 if delay == 0 else checked_seconds("delay", delay)
        said = checked_text("reason", reason)[:MOST_REASON] or self._item.reason
        self._checked()
        leave = partial(self._put_back, replace(self._item, reason=said), seconds)
        self._settle("put back", (yield from self._member.leaving(leave=leave)))

    ack, aack = twins("ack", _acking)
    nack, anack = twins("nack", _nacking)

    @async_unsafe(
        "Delivery.atomic() would block the event loop, as Django's transactions do; call the"
        " function that uses it by `await sync_to_async(function)()`."
    )
    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Acknowledge the item in a transaction, which commits the caller's work with it.

        It begins and ends with the ``with`` block: all of it is committed, or nothing, and then the
        item is delivered again. ``using`` is the database, which must be that of the queue; it is
        the default. The isolation level should be "read committed", where there is a choice: with
        another one the database may refuse to commit when others have used the queue meanwhile.

        Raises LockLost, with everything rolled back, if the delivery was lost before the commit;
        LockError if a transaction is open already; NotSupported where the queue is in no database.
        """
        lease, directory = self._checked(), self._queue._directory
        keys = [held_key(lease.nonce), key_of(TAKEN, self.id)]

        commits = False

        def before() -> None:
            nonlocal commits
            self._checked()
            commits = True
            self._member.renew(False)  # it is not lost when it has been removed

        try:
            with self._queue._store.removing(
                directory, keys, lease, using, before=before, lost=self._lost
            ):
                yield self
            if commits:
                self._settled = "acknowledged"
        except BaseException as error:
            undo(error, self._member.renew, True)
            raise
        if not commits:  # Django's set_rollback() ends it without an error
            run(self._nacking(reason="its transaction was rolled back"))
            return
        self._queue._backend.records.forget(lease)

    @classmethod
    def acking_all(cls, deliveries: Sequence[Delivery]) -> Steps[None]:
        """See Queue.ack_many()."""
        leases = [one._checked() for one in deliveries]
        changes = [Delete(key_of(TAKEN, one.id)) for one in deliveries]
        queue = deliveries[0]._queue

        def go_on() -> None:
            for one in deliveries:
                if not one._settled:
                    one._member.renew(True)

        try:
            for one in deliveries:
                one._member.renew(False)
            leave = partial(queue._backend.records.leave, leases, Plan(changes))
            done = (yield queue._ask(leave)) is not None
            for one in deliveries if done else ():
                one._settled = "acknowledged"
            go_on()
        except BaseException as error:  # unless it is renewed, nobody would see that it is garbage
            undo(error, go_on)
            raise
        if not done:  # one was lost: the others need not be delivered again
            lost = []
            for one in deliveries:
                try:
                    yield from one._acking()
                except LockLost as error:
                    lost.append(str(error))
            raise LockLost("; ".join(lost))

    def __enter__(self) -> Self:
        self._checked()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        run(self._leaving(exc))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, GeneratorExit):  # nothing can be awaited any more
            self.put_back_soon(self._item)
        else:
            await arun(self._leaving(exc))

    def _leaving(self, error: BaseException | None) -> Steps[None]:
        if self._settled:
            return
        if error is None:
            yield from self._acking()
            return
        try:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            yield from self._nacking(reason=escaped(said)[:MOST_REASON].strip())
        except Exception as other:
            add_leave_error(error, other)

    def give_up(self) -> None:
        """Put the item back soon: nobody has seen it. The caller does not wait."""
        self.put_back_soon(self._item.untaken())

    def put_back_soon(self, item: Item) -> None:
        """Put an item back as it is said to be, without making the caller wait."""
        self._member.leave_soon(Plan(item.put_back(self.id, self._max_deliveries)))

    # Inside

    def _checked(self) -> Lease:
        if self._settled:
            raise LockNotHeld(f"{self!r} is over")
        return self._member.check()

    def _settle(self, how: str, done: bool) -> None:
        if not done:
            raise self._lost()
        self._settled = how

    def _lost(self) -> LockLost:
        return LockLost(f"{self!r} was lost: the item is, or will be, delivered again")

    def _put_back(self, item: Item, seconds: float, lease: Lease, deadline: float | None) -> Any:
        queue = self._queue
        leave = partial(queue._backend.records.leave, [lease], deadline=deadline)
        most = self._max_deliveries
        if seconds and item.attempts < most:
            session = queue._store.open_session(seconds, deadline)
            said = {**value_of(lease.claim), "data": {"item": self.id, "delayed": True}}
            marker = Put(held_key(os.urandom(16).hex()), said, session.id)
            try:
                return leave(Plan([Put(key_of(TAKEN, self.id), item.value), marker]))
            except SessionEnded:  # the delay was over before this
                pass
        return leave(Plan(item.put_back(self.id, most)))
