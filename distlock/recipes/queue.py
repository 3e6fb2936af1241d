"""Queues and mailboxes: each item that was put is delivered, until it is acknowledged.

See queue_records.py for the records of a queue and their changes. One consumer, and one producer,
of all waits there: the others stand in line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from json import JSONEncoder
from queue import Empty, Full
from typing import Any, TypeAlias

from django.db import transaction
from django.utils.asyncio import async_unsafe

from distlock.backends.store import Overtaken, Snapshot
from distlock.concurrency.clock import backoff, clock, left
from distlock.concurrency.steps import Nested, Sleep, Steps, or_undo
from distlock.exceptions import LockUnavailable, NotPermitted
from distlock.locking.base_lock import twins
from distlock.locking.parts import EnteredLocks
from distlock.locking.shared import Semaphore
from distlock.recipes import queue_items as items
from distlock.recipes.delivery import Delivery
from distlock.recipes.membership import Membership, joining_all
from distlock.recipes.queue_operations import OperatedQueue
from distlock.recipes.recipe import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    deadline_of,
    encoded_by,
)
from distlock.records.recipe_records import Decide
from distlock.types.lease import LONGEST_LEASE, Claim, new_nonce
from distlock.types.owners import current_actor
from distlock.types.values import checked_count, checked_flag, waiting_limit

#: The result of one attempt by a deadline, None if it has to wait; and the snapshot. Its argument
#: says whether to go on when others were faster, or to return None then.
Attempt: TypeAlias = Callable[[float | None, bool], Steps[tuple[Any, Snapshot]]]

#: Reads what a plan depends on, by a deadline.
Look: TypeAlias = Callable[[float | None], Snapshot]


class Place(Semaphore):
    """The place of one thread or task in a line; the first one has the one seat.

    It is for one wait. Those behind the first one are woken now and then to look for themselves,
    the nearest ones most often, because the first one may have been stopped or killed. They keep
    their places meanwhile.
    """

    def __init__(self, name: str, using: str) -> None:
        """Describe a place in the line of this name; nothing is asked yet."""
        super().__init__(name, 1, using=using)
        self._options = replace(self._options, keeps_place=True)
        self.claim_nonce = new_nonce()

    def waiting(self, deadline: float | None) -> Steps[bool]:
        """Return True as the first one; False when it is time to look, or the time is over."""
        terms = True, None if deadline is None else left(deadline, LONGEST_LEASE)
        return (yield Nested(partial(self.acquire, *terms), partial(self.aacquire, *terms)))  # type: ignore[no-any-return]

    def giving_up(self, deadline: float | None) -> Steps[None]:
        """Leave the line, now or in the background, as one who does not have the seat."""
        backend = self._backend
        try:
            yield backend.asking(partial(backend.leave_queue, self._claim), deadline)
        except LockUnavailable:  # no thread was free; the result of the attempt counts all the same
            self.give_up_soon()

    def give_up_soon(self) -> None:
        """Leave the line in the background, as one who does not have the seat; may be repeated."""
        self._backend.cleanup.add(self._claim)

    @property
    def _claim(self) -> Claim:
        lease = self._backend.settings.lease
        owner, kind = current_actor().owner, self._kind
        return Claim(self.name, owner, lease, nonce=self.claim_nonce, renews=True, kind=kind)


class Queue(OperatedQueue):
    """A queue that all processes share, and that outlives them: ``Queue("letters")``.

    ::

        letters = Queue("letters", maxsize=10)
        letters.put({"to": "anna"})
        with letters.get() as delivery:
            send(delivery.body)

    First in, first out, by the order in which items were committed. An item that was taken is
    delivered again, at its old place, unless it is acknowledged: when the ``with`` block fails, or
    when its process was killed and the lease has ended. So it may be delivered more than once. Each
    method has an async twin: ``aput()``, ``aget()`` …
    """

    # Producing

    def _put(self, body: Any, blocking: bool = True, timeout: float | None = None) -> Steps[int]:
        """Put an item at the end; return its number, which grows from item to item.

        As ``queue.Queue.put``: if the queue is full this waits for room, for at most ``timeout``
        seconds (None and -1: forever), or not at all with ``blocking=False``. ``body`` is anything
        that JSON, or the ``encoder``, can say, in 64 KiB at most. It is not part of an open
        transaction: see put_on_commit().

        Raises ``queue.Full``; TypeError or ValueError for a body that cannot be kept;
        LockUnavailable if the backend does not answer. With ``maybe_applied`` in it the item may be
        in the queue: it was not put again.
        """
        return (yield from self._put_many([body], blocking, timeout))[0]

    def _put_many(
        self, bodies: Sequence[Any], blocking: bool = True, timeout: float | None = None
    ) -> Steps[list[int]]:
        """Put up to 12 items, one after the other, all in one change or none; return their numbers.

        ``bodies`` are theirs; the rest is as for put().
        """
        items.check_number("bodies", bodies)
        bodies = [encoded_by(self._encoder, "body", body) for body in bodies]
        for body in bodies:
            items.check_body(body)
        return (yield from self._placing(bodies, (), blocking, timeout))

    @async_unsafe("put_on_commit() needs a transaction, and tasks have none; use aput().")
    def put_on_commit(
        self,
        body: Any,
        blocking: bool = True,
        timeout: float | None = None,
        *,
        using: str | None = None,
    ) -> None:
        """Put an item when the open transaction has committed; at once, if none is open.

        - ``body``: as of put().

        After a rollback nothing is put; nor if the process dies between the commit and the put.
        Errors of put() about a body are raised here, and changes of it from now on do not count.

        - ``blocking``, ``timeout``: as for put(), counted from the commit on.
        - ``using``: the alias of the transaction's database, None for the default.

        Other errors of put(), ``queue.Full`` and LockUnavailable, come out of the block of the
        transaction, which is committed then.
        """
        body = encoded_by(self._encoder or JSONEncoder, "body", body)
        items.check_body(body)
        waiting_limit(checked_flag("blocking", blocking), timeout)
        transaction.on_commit(partial(self.put, body, blocking, timeout), using=using)

    def _placing(
        self, bodies: Sequence[Any], letters: Sequence[str], blocking: bool, timeout: float | None
    ) -> Steps[list[int]]:
        def attempt(deadline: float | None, patient: bool) -> Steps[tuple[Any, Snapshot]]:
            put = partial(self._put_items, bodies, letters, patient)
            return (yield self._ask(put, deadline))  # type: ignore[no-any-return]

        numbers = yield from self._wait_in_line("put", attempt, blocking, timeout)
        if numbers is None:
            raise Full(f"queue {self.name!r} on {self.using!r} is full")
        return numbers  # type: ignore[no-any-return]

    # Consuming

    def _get(self, blocking: bool = True, timeout: float | None = None) -> Steps[Delivery]:
        """Take the first item; if there is none, wait for one. See put() for the arguments.

        It has to be acknowledged: by ``with``, or by ``Delivery.ack()``.

        Raises ``queue.Empty``; LockUnavailable if the backend does not answer; NotSupported if it
        has no leases of the length ``lease``.
        """
        return (yield from self._taking(1, True, blocking, timeout))[0]

    def _get_many(
        self, most: int, blocking: bool = True, timeout: float | None = None
    ) -> Steps[list[Delivery]]:
        """Take one item at least and ``most`` at most, 12 in all, in one change; see get().

        Each is a delivery of its own, whose attempt counts once it is entered by ``with``, or
        Delivery.begin() is called: so those that are not worked on yet come to no harm if another
        one kills the process. They keep others waiting. A mailbox gives one.
        """
        most = min(checked_count("most", most), 1 if self._one_at_a_time else items.MOST_AT_ONCE)
        return (yield from self._taking(most, False, blocking, timeout))

    def _taking(
        self, most: int, begins: bool, blocking: bool, timeout: float | None
    ) -> Steps[list[Delivery]]:
        taken = list[Delivery]()
        plan, look = partial(self._plan, most, begins), partial(self._look_for_items, most)

        def join(plan: Decide, look: Look, until: float | None, once: bool) -> Steps[Snapshot]:
            members = [Membership(self, plan, length=self._lease) for _ in range(most)]
            done = yield from joining_all(members, until, read=look, once=once)
            found, seen = done.result
            for lease, member, item in zip(done.leases, members, found, strict=False):
                taken.append(Delivery(self, member, item, lease.nonce, begun=begins))
            return seen  # type: ignore[no-any-return]

        def take(deadline: float | None, patient: bool) -> Steps[tuple[object, Snapshot]]:
            seen = Snapshot(self._directory, 0, {})
            if most == 1 and begins and self._may_take_unread:
                yield from join(self._plan_unread, lambda _: seen, deadline, True)
                if taken and not taken[0].attempt:  # it cannot be read
                    yield from taken.pop()._putting_aside()
            if not taken:
                try:
                    seen = yield from join(plan, look, deadline, not patient)
                except Overtaken:  # others have taken all that this one has found
                    return None, seen
            self._flows = bool(taken)
            return taken or None, seen

        def give_up(error: BaseException) -> None:
            for delivery in taken:  # nobody has seen them
                delivery.give_up()

        yield from or_undo(self._wait_in_line("get", take, blocking, timeout), give_up)
        if not taken:
            raise Empty(f"queue {self.name!r} on {self.using!r} is empty")
        return taken

    def _ack_many(self, deliveries: Sequence[Delivery]) -> Steps[None]:
        """Acknowledge up to 12 ``deliveries`` of this queue in one change.

        Raises as Delivery.ack() does. With LockLost those that were not lost are acknowledged.
        Raises TypeError or ValueError if they are not deliveries of this queue.
        """
        items.check_number("deliveries", deliveries)
        for one in deliveries:
            if not isinstance(one, Delivery):
                raise TypeError(f"deliveries must be what get() has returned, not {one!r}")
        if {(one._queue.name, one._queue.using) for one in deliveries} != {(self.name, self.using)}:
            raise ValueError(f"deliveries must be of {self!r}, got {deliveries!r}")
        yield from Delivery.acking_all([*deliveries])

    # Looking

    def _looking(self) -> Steps[items.QueueInfo]:
        """Return the present items and consumers; a moment later they may differ.

        Raises LockUnavailable if the backend does not answer.
        """
        seen: Snapshot = yield self._read()
        bound = yield from self._config.getting(self._maxsize, stale=False)
        return self._describe(seen, items.checked_size(bound.value))

    def _counting(self) -> Steps[int]:
        """Return how many items are not acknowledged.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._looking()).size

    def _finding_empty(self) -> Steps[bool]:
        """Return whether nothing is in the queue, and nothing is being delivered.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._looking()).size == 0

    def _finding_full(self) -> Steps[bool]:
        """Return whether put() would have to wait now.

        Raises LockUnavailable if the backend does not answer.
        """
        info = yield from self._looking()
        return 0 < info.maxsize <= info.size

    def _joining(self, timeout: float | None = None) -> Steps[bool]:
        """Wait until all items are acknowledged, or put aside; False after ``timeout`` seconds.

        None waits forever. Raises LockUnavailable if the backend does not answer until then, or for
        the length of a lease.
        """

        def look(now: Snapshot) -> bool | None:
            return None if self._describe(now, 0).size else True

        return (yield from self._until(look, deadline_of(timeout))) is not None

    # Waiting

    def _wait_in_line(
        self, side: str, attempt: Attempt, blocking: bool, timeout: float | None
    ) -> Steps[Any]:
        """Return what an attempt comes to that is not None, or None if there is none in time.

        The first in line has the seat of a semaphore, and watches the directory. When it has got
        what it waits for it leaves the seat to the next one. So a change wakes one, however many
        wait. Those for whom others were too fast stand in line, too: or each would be in the way of
        all.

        ``side`` names the line; the other arguments are those of ``queue.Queue.get``. An outage
        that is shorter than a lease, or than the time limit, is waited out; but what may have been
        done is not tried again.
        """
        wait, _ = waiting_limit(checked_flag("blocking", blocking), timeout)
        deadline = deadline_of(timeout)
        result, _ = yield from attempt(deadline, not wait)
        if result is not None or not wait:
            return result
        lasts, gives_up = self._backend.settings.lease, deadline
        pauses = backoff(FIRST_PAUSE, LONGEST_PAUSE)

        def answered(until: float | None, patient: bool) -> Steps[tuple[Any, Snapshot]]:
            nonlocal gives_up
            answer = yield from attempt(until, patient)
            gives_up = deadline  # the next outage has all of its time
            return answer

        if left(deadline, 1) <= 0:
            # This is the last time: others must not be too fast for it.
            return (yield from attempt(deadline, True))[0]

        while result is None and left(deadline, 1) > 0:
            try:
                result = yield from self._in_line(side, answered, deadline)
            except LockUnavailable as error:
                gives_up = gives_up or clock() + lasts
                refused = isinstance(error, NotPermitted)
                if refused or error.maybe_applied or clock() >= gives_up:
                    raise
                yield Sleep(left(deadline, next(pauses)))
        return result

    def _in_line(self, side: str, attempt: Attempt, deadline: float | None) -> Steps[Any]:
        """Wait behind others; as the first one, for what an attempt can make use of."""
        place = Place(f"{self.kind}:{side}:{self.name}", using=self.using)
        entered = EnteredLocks()
        entered.add(place, current_actor().owner)
        first = False

        def wait() -> Steps[Any]:
            nonlocal first
            result = None
            while result is None:
                if not first:
                    # The one before it may have been stopped: it makes an attempt now and then.
                    try:
                        first = yield from place.waiting(deadline)
                    except LockUnavailable as error:
                        error.maybe_applied = False  # the attempt was not made
                        raise
                # The last time, too, others must not be too fast for it.
                result, seen = yield from attempt(deadline, first or left(deadline, 1) <= 0)
                if left(deadline, 1) <= 0:
                    break
                if first and result is None:
                    yield from self._wait_for_change(seen, deadline)
            if not first:
                yield from place.giving_up(deadline)
            yield from entered.leaving()
            return result

        def give_up(error: BaseException) -> None:
            if not first:
                place.give_up_soon()

        return (yield from entered.or_leave(or_undo(wait(), give_up)))

    put, aput = twins("put", _put)
    put_many, aput_many = twins("put_many", _put_many)
    get, aget = twins("get", _get)
    get_many, aget_many = twins("get_many", _get_many)
    ack_many, aack_many = twins("ack_many", _ack_many)
    qsize, aqsize = twins("qsize", _counting)
    empty, aempty = twins("empty", _finding_empty)
    full, afull = twins("full", _finding_full)
    info, ainfo = twins("info", _looking)
    join, ajoin = twins("join", _joining)


class Mailbox(Queue):
    """A queue for one receiver at a time: ``Mailbox("anna")``, ten letters by default.

    A letter is delivered only when the one before it is acknowledged, or put aside. So they are
    worked on in their order, also when one is delivered again.
    """

    _default_maxsize = 10
    _one_at_a_time = True
