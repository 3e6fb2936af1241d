"""Looks at the items of a queue, page by page from either end, and finds one by its number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from distlock.backends.store import MOST_KEYS, KeyRange, Record
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Steps
from distlock.recipes.queue_items import (
    AGAIN,
    DEAD,
    LAST,
    READY,
    TAKEN,
    DeliveryInfo,
    QueueItem,
    TakenKey,
    key_of,
    number_of,
)
from distlock.recipes.queue_records import QueueRecords
from distlock.recipes.recipe import twins
from distlock.recipes.semaphore import checked_count
from distlock.types.arguments import checked_flag, checked_int, checked_seconds, checked_text

#: What the keys of items in a state begin with. Of those that were taken, an item is "delivered" if
#: its delivery goes on; if that has gone it is in the other state.
STATES = {"ready": (READY, AGAIN), "delivered": (AGAIN, LAST), "dead": (DEAD, LAST)}
#: Keys that are listed at once for a search. ZooKeeper sends all keys for each list.
_MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Some items of a queue, in the order that was asked for.

    ``looked_at`` items were read for it. ``after`` is the number of the last of these, from which
    the next page goes on; None if no item follows.
    """

    items: tuple[QueueItem, ...]
    looked_at: int
    after: int | None


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """An item, its ``state`` (ready, delivered, delayed or dead), and its delivery if it has one.

    One that is delayed was put back for later.
    """

    item: QueueItem
    state: str
    delivery: DeliveryInfo | None


class Pager:
    """Reads items of one state by their numbers, upwards or downwards, from one number on."""

    def __init__(self, queue: QueueRecords, state: str, after: int | None, reverse: bool) -> None:
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
        self._queue = queue
        self._state = state
        self._reverse = reverse
        #: the number from which the next list of keys goes on
        self._after = after

    def collecting(self, most: int, matching: str, timeout: float | None) -> Steps[ItemPage]:
        """Return a page; see PagedQueue.page()."""
        until = None if timeout is None else clock() + timeout
        found, looked_at, last = list[QueueItem](), 0, self._after
        limit = _MOST_LISTED if matching else min(most + 1, _MOST_LISTED)
        ended = False
        while not ended:
            keys, ended = yield self._queue._ask(partial(self._list, limit))
            for start in range(0, len(keys), MOST_KEYS):
                if looked_at and until is not None and clock() >= until:
                    return ItemPage(tuple(found), looked_at, last)
                some = keys[start : start + MOST_KEYS]
                for record in (yield self._queue._ask(partial(self._look, some))):
                    if len(found) == most:
                        return ItemPage(tuple(found), looked_at, last)
                    item = QueueItem.of(record)
                    looked_at, last = looked_at + 1, item.id
                    if item.matches(matching):
                        found.append(item)
        return ItemPage(tuple(found), looked_at, None)

    def _list(self, limit: int, deadline: float | None) -> tuple[list[str], bool]:
        """Return the next keys in the order of their numbers, and whether these are the last."""
        queue, start, reverse = self._queue, self._after, self._reverse
        found, reach = list[str](), list[int]()

        def place(key: str) -> int:
            return -number_of(key) if reverse else number_of(key)

        for prefix in STATES[self._state]:
            # A number and what may follow it come before the same number and "0".
            after = "" if start is None else key_of(prefix, start) + "0" * (not reverse)
            listed = KeyRange(prefix, limit, after, reverse)
            keys = queue._store.peek(queue._directory, {}, (), deadline, listed=listed).keys
            if len(keys) == limit:
                reach.append(place(keys[-1]))
            if prefix.startswith(TAKEN):
                gone = {one.key for one in queue._abandoned.among(keys, deadline)}
                keys = [one for one in keys if (one in gone) != (self._state == "delivered")]
            found += keys
        if reach:  # where one list ends, the others go on
            found = [one for one in found if place(one) <= min(reach)]
            self._after = abs(min(reach))
        return sorted(found, key=place), not reach

    def _look(self, keys: Sequence[str], deadline: float | None) -> list[Record]:
        records = self._queue._store.look(self._queue._directory, keys, deadline).records
        return [records[key] for key in keys if key in records]


class PagedQueue(QueueRecords):
    """A queue whose items can be looked at."""

    def _paging(
        self,
        state: str,
        most: int = 100,
        *,
        after: int | None = None,
        reverse: bool = False,
        matching: str = "",
        timeout: float | None = None,
    ) -> Steps[ItemPage]:
        """Return some items that are "ready", "delivered" (or delayed) or "dead", by their numbers.

        - ``most``: how many.
        - ``after``: begin behind this number, as the page before says; None: begin at the end.
        - ``reverse``: from the newest to the oldest.
        - ``matching``: only those with this text in the body or the reason. Case is ignored.
        - ``timeout``: seconds to search; then the page has what was found, and says where to go on.

        A page costs a few questions, however many items there are; a search reads each of them.
        An item that moves meanwhile may be in no page. Raises ValueError for another state, and
        LockUnavailable if the backend cannot be asked.
        """
        start = None if after is None else checked_int("after", after)
        pager = Pager(self, state, start, checked_flag("reverse", reverse))
        seconds = None if timeout is None else checked_seconds("timeout", timeout)
        text = checked_text("matching", matching)
        return (yield from pager.collecting(checked_count("most", most), text, seconds))

    def _finding(self, id: int) -> Steps[ItemInfo | None]:
        """Return an item with its state and its delivery; None if it is done, or never was."""
        return (yield from _find(self, checked_int("id", id)))

    page, apage = twins("page", _paging)
    find, afind = twins("find", _finding)


def _find(queue: QueueRecords, number: int) -> Steps[ItemInfo | None]:
    """Return what is known of an item; see PagedQueue.find()."""
    store, directory = queue._store, queue._directory
    kinds = {READY: "ready", DEAD: "dead", AGAIN: "ready", LAST: "dead"}
    first = dict.fromkeys((key_of(kind, number) for kind in kinds), 1)

    def look(deadline: float | None) -> ItemInfo | None:
        for key, record in store.peek(directory, first, (), deadline).records.items():
            item = QueueItem.of(record)
            state = next(state for kind, state in kinds.items() if key.startswith(kind))
            if not key.startswith(TAKEN):
                return ItemInfo(item, state, None)
            held = store.get(directory, TakenKey.of(key).held, deadline)
            if held is None:
                return ItemInfo(item, state, None)
            delivery = DeliveryInfo.of(held)
            return ItemInfo(item, "delayed" if delivery.delayed else "delivered", delivery)
        return None

    return (yield queue._ask(look))  # type: ignore[no-any-return]
