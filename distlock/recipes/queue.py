"""Queues and mailboxes: each item that was put is delivered, until somebody says that it is done.

What the records of a queue say is told in queue_items.py, and how they are changed in
queue_records.py. Who waits is one consumer, and one producer, of all: the others stand in line.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial
from queue import Empty, Full
from typing import Any

from distlock.backends.recipe_records import Plan
from distlock.backends.store import Absent, Exists, Put, Snapshot
from distlock.concurrency.steps import Call, Steps
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.core.manager import undo
from distlock.exceptions import LockUnavailable
from distlock.recipes.delivery import Delivery
from distlock.recipes.line import Line
from distlock.recipes.log import Config
from distlock.recipes.membership import Membership, joining_all
from distlock.recipes.queue_items import (
    DEAD,
    HELD,
    ITEM,
    READY,
    TAIL,
    TAKEN,
    DeadLetter,
    DeliveryInfo,
    Item,
    QueueInfo,
    key_of,
    records_of,
)
from distlock.recipes.queue_records import ALL, MOST_AT_ONCE, QueueRecords, checked_size
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_seconds
from distlock.types.lease import Kind


class Queue(Recipe):
    """A queue that all processes share, and that outlives them: ``Queue("letters")``.

    ::

        letters = Queue("letters", maxsize=10)
        letters.put({"to": "anna"})
        with letters.get() as delivery:
            send(delivery.body)

    First in, first out, by the order in which items were committed. What was taken is delivered
    again, at its old place, unless it is acknowledged: when the ``with`` block fails, or when its
    process was killed and the lease has ended. So it may be delivered more than once. Each method
    has an async twin: ``aput()``, ``aget()`` …
    """

    kind = Kind.QUEUE
    _one_at_a_time = False

    def __init__(
        self,
        name: str,
        maxsize: int = 0,
        *,
        lease: float | None = None,
        max_deliveries: int = 5,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe a queue; nothing is asked yet.

        - ``name``, ``using``: as of a Lock.
        - ``maxsize``: how many items there may be, those being delivered included; 0 for no bound.
          Once resize() has said a number, that holds for all.
        - ``lease``: seconds after which an item is delivered again if the process that took it is
          gone; None for that of the backend. While the process runs, it is renewed.
        - ``max_deliveries``: an item that was taken so often, and not acknowledged, is put aside.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self._maxsize = checked_size(maxsize)
        self._lease = None if lease is None else checked_seconds("lease", lease)
        self._max_deliveries = checked_count("max_deliveries", max_deliveries)
        self._config = Config(f"queue:{name}", using=using)
        self._producers = Line(self, "put", goes_on=_was_not_made)
        self._consumers = Line(self, "get", give_up=_give_up)
        self._records = QueueRecords(
            lambda: locks[using].store,
            self._directory,
            self._config,
            self._maxsize,
            self._max_deliveries,
            one_at_a_time=self._one_at_a_time,
        )

    # Producing

    def _putting(
        self, body: Any, blocking: bool = True, timeout: float | None = None
    ) -> Steps[int]:
        """Put an item at the end; return its number, which grows from item to item.

        As ``queue.Queue.put``: if the queue is full this waits for room, for ``timeout`` seconds at
        the most (None and -1: for ever), or not at all with ``blocking=False``. The body is
        anything that JSON can say, in 64 KiB at the most.

        Raises ``queue.Full``; TypeError or ValueError for a body that cannot be kept;
        LockUnavailable if the backend cannot be asked. With ``maybe_applied`` in it the item may be
        in the queue: it was not put again.
        """
        return (yield from self._putting_many([body], blocking, timeout))[0]

    def _putting_many(
        self, bodies: Sequence[Any], blocking: bool = True, timeout: float | None = None
    ) -> Steps[list[int]]:
        """Put up to 20 items, one after the other, all in one change or none; see put()."""
        if not 1 <= len(bodies) <= MOST_AT_ONCE:
            raise ValueError(f"bodies must be 1 to {MOST_AT_ONCE} items, got {len(bodies)}")
        items = [Item(body, 0, time.time_ns() // 1000) for body in bodies]
        for item in items:
            item.check()
        return (yield from self._placing(items, blocking, timeout))

    def _placing(
        self,
        items: Sequence[Item],
        blocking: bool,
        timeout: float | None,
        letter: str | None = None,
    ) -> Steps[list[int]]:
        put = partial(self._put, items, letter)
        numbers = yield from self._producers.eventually(put, blocking, timeout)
        if numbers is None:
            raise Full(f"queue {self.name!r} on {self.using!r} is full")
        return numbers  # type: ignore[no-any-return]

    # Consuming

    def _getting(self, blocking: bool = True, timeout: float | None = None) -> Steps[Delivery]:
        """Take the first item; if there is none, wait for one. See put() for the arguments.

        It has to be acknowledged: by ``with``, or by ``Delivery.ack()``.

        Raises ``queue.Empty``; LockUnavailable if the backend cannot be asked; NotSupported if it
        has no leases of the length ``lease``.
        """
        return (yield from self._getting_many(1, blocking, timeout))[0]

    def _getting_many(
        self, most: int, blocking: bool = True, timeout: float | None = None
    ) -> Steps[list[Delivery]]:
        """Take one item at least and ``most`` at the most, 20 in all, in one change; see get().

        Each is a delivery of its own. Those that are not worked on yet keep others waiting.
        """
        take = partial(self._take, min(checked_count("most", most), MOST_AT_ONCE))
        taken = yield from self._consumers.eventually(take, blocking, timeout)
        if taken is None:
            raise Empty(f"queue {self.name!r} on {self.using!r} is empty")
        return taken  # type: ignore[no-any-return]

    def _acking_many(self, deliveries: Sequence[Delivery]) -> Steps[None]:
        """Acknowledge up to 20 deliveries of this queue in one change.

        Raises as Delivery.ack() does. With LockLost those that were not lost are acknowledged;
        after LockUnavailable it can be done again.
        """
        if not 1 <= len(deliveries) <= MOST_AT_ONCE:
            raise ValueError(f"deliveries must be 1 to {MOST_AT_ONCE}, got {len(deliveries)}")
        yield from Delivery.acking_all(deliveries)

    # Looking

    def _looking(self) -> Steps[QueueInfo]:
        """Return what is in the queue now, and who works on it; a moment later it may differ."""
        seen: Snapshot = yield self._read()
        deliveries = [*map(DeliveryInfo.of, records_of(seen, HELD))]
        delayed = sum(one.delayed for one in deliveries)
        ready, tail = records_of(seen, READY), seen.records.get(TAIL)
        size, taken = seen.counts[ITEM], seen.counts[TAKEN]
        return QueueInfo(
            self.name,
            self.using,
            size,
            tail.value.get("maxsize", self._maxsize) if tail else self._maxsize,
            # What was abandoned is ready, though it has not been put back yet.
            size - min(taken, len(deliveries)),
            len(deliveries) - delayed,
            delayed,
            seen.counts[DEAD],
            Item.of(ready[0]).put_at if ready else None,
            tuple(deliveries),
        )

    def _counting(self) -> Steps[int]:
        """Return how many items are not acknowledged; see also info()."""
        return (yield from self._looking()).size

    def _finding_empty(self) -> Steps[bool]:
        """Return whether nothing is in the queue, and nothing is being delivered."""
        return (yield from self._looking()).size == 0

    def _finding_full(self) -> Steps[bool]:
        """Return whether put() would have to wait now."""
        info = yield from self._looking()
        return 0 < info.maxsize <= info.size

    def _joining(self, timeout: float | None = None) -> Steps[bool]:
        """Wait until all items are acknowledged, or put aside; False if the time is over."""

        def look(seen: Snapshot) -> bool | None:
            return seen.counts[ITEM] == 0 or None

        return (yield from self._until(look, deadline_of(timeout))) is not None

    def _read(self, deadline: float | None = None, *, keys: Collection[str] | None = None) -> Call:
        """Return the step that looks at what the queue has; see Recipe._read()."""
        if keys is not None:
            return super()._read(deadline, keys=keys)
        first = {TAIL: 1, READY: 1, HELD: ALL}
        return self._ask(partial(self._records.peek, first, [ITEM, TAKEN, DEAD]), deadline)

    # Operating

    def _resizing(self, maxsize: int) -> Steps[None]:
        """Change for all how many items there may be, 0 for no bound, while the queue is used.

        It is the value of ``Config("queue:NAME")`` from now on. Who sets it there finds that
        producers notice it after a second. Items beyond a lower bound stay.
        """
        version = yield from self._config.setting(checked_size(maxsize))

        def decide(seen: Snapshot) -> Plan:
            record = seen.records.get(TAIL)
            value = record.value if record else {"number": 0}
            if value.get("version", 0) >= version:
                return Plan()
            new = Put(TAIL, {**value, "maxsize": maxsize, "version": version})
            return Plan([new], [Exists(TAIL, record.revision) if record else Absent(TAIL)])

        yield self._change(decide, keys=[TAIL])

    def _listing_dead(self, most: int = 100) -> Steps[tuple[DeadLetter, ...]]:
        """Return what was put aside, in the order of their numbers; ``most`` of them."""
        first = {DEAD: checked_count("most", most)}
        seen: Snapshot = yield self._ask(partial(self._records.peek, first, ()))
        return tuple(DeadLetter.of(record) for record in seen.records.values())

    def _retrying(
        self, letter: DeadLetter, blocking: bool = True, timeout: float | None = None
    ) -> Steps[bool]:
        """Put a dead letter at the end of the queue as a new item; False if it is gone.

        See put() for the arguments and the errors.
        """
        item = Item(letter.body, 0, time.time_ns() // 1000)
        key = key_of(DEAD, letter.id)
        return bool((yield from self._placing([item], blocking, timeout, key)))

    def _purging(self, *, dead: bool = False) -> Steps[int]:
        """Remove the items that are ready, or the dead letters; return how many these were."""
        return (yield self._ask(partial(self._records.purge, DEAD if dead else READY)))  # type: ignore[no-any-return]

    def _releasing(self, id: int, token: int) -> Steps[bool]:
        """Take the delivery of an item from its consumer, by its token; False if it is over.

        The item is ready at once, and its consumer cannot acknowledge it any more.
        """

        return (yield self._ask(partial(self._records.release, id, token)))  # type: ignore[no-any-return]

    # One attempt to put

    def _put(
        self, items: Sequence[Item], letter: str | None, deadline: float | None, patient: bool
    ) -> Steps[tuple[list[int] | None, Snapshot]]:
        put = partial(self._records.put, items, letter, patient)
        return (yield self._ask(put, deadline))  # type: ignore[no-any-return]

    # One attempt to take

    def _take(
        self, most: int, deadline: float | None, patient: bool
    ) -> Steps[tuple[list[Delivery] | None, Snapshot]]:
        plan = partial(self._records.plan, most)
        look = partial(self._records.look_for_items, most)
        members = [Membership(self, plan, length=self._lease) for _ in range(most)]
        try:
            done = yield from joining_all(members, deadline, read=look, once=not patient)
            items, seen = done.result
            deliveries = [
                Delivery(self, member, number, item, self._max_deliveries)
                for _, member, (number, item) in zip(done.leases, members, items, strict=False)
            ]
            return deliveries or None, seen
        except BaseException as error:  # an interrupt; the items may have been taken
            undo(error, _leave_soon, members)
            raise

    put, aput = twins("put", _putting)
    put_many, aput_many = twins("put_many", _putting_many)
    get, aget = twins("get", _getting)
    get_many, aget_many = twins("get_many", _getting_many)
    ack_many, aack_many = twins("ack_many", _acking_many)
    qsize, aqsize = twins("qsize", _counting)
    empty, aempty = twins("empty", _finding_empty)
    full, afull = twins("full", _finding_full)
    info, ainfo = twins("info", _looking)
    join, ajoin = twins("join", _joining)
    resize, aresize = twins("resize", _resizing)
    dead, adead = twins("dead", _listing_dead)
    retry, aretry = twins("retry", _retrying)
    purge, apurge = twins("purge", _purging)
    force_release, aforce_release = twins("force_release", _releasing)


class Mailbox(Queue):
    """A queue for one receiver at a time: ``Mailbox("anna")``, ten letters unless told otherwise.

    A letter is delivered only when the one before it is acknowledged, or put aside. So they are
    worked on in their order, also when one is delivered again.
    """

    _one_at_a_time = True

    def __init__(
        self,
        name: str,
        maxsize: int = 10,
        *,
        lease: float | None = None,
        max_deliveries: int = 5,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe a mailbox; see Queue."""
        super().__init__(name, maxsize, lease=lease, max_deliveries=max_deliveries, using=using)

    def _getting_many(
        self, most: int, blocking: bool = True, timeout: float | None = None
    ) -> Steps[list[Delivery]]:
        return (yield from super()._getting_many(min(most, 1), blocking, timeout))


def _was_not_made(error: LockUnavailable) -> bool:
    """Return whether a put may be made after an error; else it might be made twice."""
    return not error.maybe_applied


def _give_up(deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        delivery.give_up()


def _leave_soon(members: Sequence[Membership]) -> None:
    for member in members:
        member.leave_soon()
