"""Operations on a queue by hand: looking at its items, its dead letters, its bound, a purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Full
from typing import Any

from distlock.backends.store import MOST_KEYS, KeyRange, Peek
from distlock.concurrency.clock import clock, left
from distlock.concurrency.steps import Steps
from distlock.exceptions import LockUnavailable
from distlock.locking.base_lock import twins
from distlock.recipes.queue_items import (
    AGAIN,
    DEAD,
    LAST,
    MOST_AT_ONCE,
    READY,
    TAIL,
    TAKEN,
    DeliveryInfo,
    QueueItem,
    TakenKey,
    checked_letters,
    checked_size,
    key_of,
    number_of,
)
from distlock.recipes.queue_records import QueueRecords
from distlock.recipes.recipe import deadline_of
from distlock.types.values import (
    batches,
    checked_count,
    checked_flag,
    checked_int,
    checked_seconds,
    checked_text,
    checked_token,
)

#: The prefixes of the keys of items, by state. Of those that were taken, an item is "delivered" if
#: its delivery goes on; if that has gone it is in the other state.
STATES = {"ready": (READY, AGAIN), "delivered": (AGAIN, LAST), "dead": (DEAD, LAST)}
#: Keys that are listed at once for a search or a purge. ZooKeeper sends all keys for each list.
_MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Some ``items`` of a queue, in the order that was asked for.

    ``looked_at`` items were read for it. ``after`` is the number of the last of these, from which
    the next page goes on; None if no item follows.
    """

    items: tuple[QueueItem, ...]
    looked_at: int
    after: int | None


@dataclass(frozen=True, slots=True)
class ItemInfo:
    """An ``item``, its ``state``, and its ``delivery`` if it has one, else None.

    The state is "ready", "delivered", "dead", or "delayed": put back for later.
    """

    item: QueueItem
    state: str
    delivery: DeliveryInfo | None


class OperatedQueue(QueueRecords):
    """A queue whose items can be looked at, put back and removed."""

    #: puts items, in the place of dead letters with these keys; see Queue
    _placing: Callable[[Sequence[Any], Sequence[str], bool, float | None], Steps[list[int]]]

    # Looking

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

        - ``state``: one of these.
        - ``most``: how many.
        - ``after``: begin behind this number, as the page before says; None: begin at the end.
        - ``reverse``: from the newest to the oldest.
        - ``matching``: only those with this text in the body or the reason. Case is ignored.
        - ``timeout``: seconds to search; then the page has the items found so far, and where to go
          on.

        A page costs a few requests for any number of items; a search reads each of them.
        An item that moves meanwhile can be missing from all pages. Raises ValueError for another
        state, and LockUnavailable if the backend does not answer.
        """
        start = None if after is None else checked_int("after", after)
        listing = partial(self._list, state, checked_flag("reverse", reverse))
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
        until = None if timeout is None else clock() + checked_seconds("timeout", timeout)
        text, most = checked_text("matching", matching), checked_count("most", most)
        limit = _MOST_LISTED if text else min(most + 1, _MOST_LISTED)
        having = QueueItem.having(text)
        step = self._store.most_filtered if having else MOST_KEYS
        found, looked_at, last, ended = list[QueueItem](), 0, start, False
        while not ended:
            keys, start = yield self._ask(partial(listing, limit, start))
            ended = start is None
            for some in batches(keys, step):
                if looked_at and until is not None and clock() >= until:
                    return ItemPage(tuple(found), looked_at, last)
                records = yield self._ask(partial(self._items_with, some, having))
                for key in some:
                    if len(found) == most:
                        return ItemPage(tuple(found), looked_at, last)
                    looked_at, last = looked_at + 1, number_of(key)
                    if key in records and (item := QueueItem.of(records[key])).matches(text):
                        found.append(item)
        return ItemPage(tuple(found), looked_at, None)

    def _list(
        self, state: str, reverse: bool, limit: int, start: int | None, deadline: float | None
    ) -> tuple[list[str], int | None]:
        """Return the next keys from a number on, in order, and where to go on; None at the end."""
        found, reach = list[str](), list[int]()

        def place(key: str) -> int:
            return -number_of(key) if reverse else number_of(key)

        for prefix in STATES[state]:
            # A number and what may follow it come before the same number and "0".
            after = "" if start is None else key_of(prefix, start) + "0" * (not reverse)
            keys = self._keys(KeyRange(prefix, limit, after, reverse), deadline)
            if len(keys) == limit:
                reach.append(place(keys[-1]))
            if prefix.startswith(TAKEN):
                gone = {one.key for one in self._abandoned.among(keys, deadline)}
                keys = [one for one in keys if (one in gone) != (state == "delivered")]
            found += keys
        if reach:  # where one list ends, the others go on
            found = [one for one in found if place(one) <= min(reach)]
        return sorted(found, key=place), abs(min(reach)) if reach else None

    def _finding(self, id: int) -> Steps[ItemInfo | None]:
        """Return an item with its state and its delivery; None if it is done, or never was.

        ``id`` is its number. Raises LockUnavailable if the backend does not answer.
        """
        store, directory = self._store, self._directory
        kinds = {READY: "ready", DEAD: "dead", AGAIN: "ready", LAST: "dead"}
        number = checked_int("id", id)
        peek = Peek(dict.fromkeys((key_of(kind, number) for kind in kinds), 1))

        def look(deadline: float | None) -> ItemInfo | None:
            for key, record in store.peek(directory, peek, deadline).records.items():
                item = QueueItem.of(record)
                state = next(state for kind, state in kinds.items() if key.startswith(kind))
                taken = key.startswith(TAKEN)
                held = store.get(directory, TakenKey.of(key).held, deadline) if taken else None
                if held is None:
                    return ItemInfo(item, state, None)
                delivery = DeliveryInfo.of(held)
                return ItemInfo(item, "delayed" if delivery.delayed else "delivered", delivery)
            return None

        return (yield self._ask(look))  # type: ignore[no-any-return]

    # Operating

    def _resizing(self, maxsize: int, *, reason: str = "", who: str = "") -> Steps[None]:
        """Change ``maxsize`` for all: how many items there may be, 0 for no bound.

        It is the value of ``Config("queue:NAME")`` from now on. If it is set there, producers
        notice it after a second. Items beyond a lower bound stay.

        It is written to the audit log, with ``reason`` and ``who``, by default the system's user.
        Raises LockUnavailable if the backend does not answer.
        """
        yield from self._config.setting(checked_size(maxsize), None, reason, who)
        bound = f"{maxsize} items at most" if maxsize else "any number of items"
        self._record("resize", f"Takes {bound} now.", reason, who)
        yield self._change(self._touch, keys=[TAIL])

    def _listing_dead(self, most: int = 100) -> Steps[tuple[QueueItem, ...]]:
        """Return the dead letters, in the order of their numbers; ``most`` of them.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._paging("dead", most)).items

    def _retrying(
        self,
        letter: QueueItem,
        blocking: bool = True,
        timeout: float | None = None,
        *,
        reason: str = "",
        who: str = "",
    ) -> Steps[bool]:
        """Put a dead ``letter`` at the end of the queue as a new item; False if it is gone.

        See put() for the arguments and the errors, resize() for ``reason`` and ``who``.
        """
        if not isinstance(letter, QueueItem):
            raise TypeError(f"letter must be a QueueItem from dead(), not {letter!r}")
        done = yield from self._put_letters_back([letter], blocking, timeout)
        if done:
            self._record("retry", f"Put back: item {letter.id}.", reason, who)
        return bool(done)

    def _put_letters_back(
        self, letters: Sequence[QueueItem], blocking: bool, timeout: float | None
    ) -> Steps[int]:
        """Put up to 12 dead letters back, all in one change or none; return how many."""
        keys = yield self._ask(partial(self._keys_of_letters, [one.id for one in letters]))
        bodies = [one.body for one in letters]
        return len((yield from self._placing(bodies, keys, blocking, timeout)))

    def _retrying_many(
        self,
        letters: Sequence[QueueItem],
        *,
        timeout: float | None = None,
        reason: str = "",
        who: str = "",
    ) -> Steps[int]:
        """Put dead letters at the end of the queue as new items, 12 at a time; return how many.

        These are fewer than ``letters`` if some have gone, or if it ends before: when ``timeout``
        seconds are over, the queue has no room, or the backend does not answer. It does not wait.
        ``reason``, ``who``: see resize().

        Raises ``queue.Full`` or LockUnavailable if none was put back before that.
        """
        several = checked_letters(letters)
        text = f"Put back: {{}} of {len(several)} dead letters."
        recording = self._recording("retry", text, reason, who)
        return self._in_parts(several, self._put_some_back, MOST_AT_ONCE, timeout, recording)

    def _put_some_back(self, changed: list[int], some: Sequence[QueueItem]) -> Steps[None]:
        done = 0
        with suppress(Full):
            done = yield from self._put_letters_back(some, False, None)
        changed.append(done)
        if not done:  # there is no room for all, or one has gone
            for letter in some:
                changed.append((yield from self._put_letters_back([letter], False, None)))

    def _discarding(
        self,
        letters: Sequence[QueueItem],
        *,
        timeout: float | None = None,
        reason: str = "",
        who: str = "",
    ) -> Steps[int]:
        """Remove dead letters forever, 100 at a time; return how many were still there.

        It may end before, see retry_many(). ``reason``, ``who``: see resize().
        """
        several = checked_letters(letters)
        text = f"Discarded: {{}} of {len(several)} dead letters."
        recording = self._recording("discard", text, reason, who)
        return self._in_parts(several, self._discard_some, MOST_KEYS, timeout, recording)

    def _discard_some(self, changed: list[int], some: Sequence[QueueItem]) -> Steps[None]:
        keys = yield self._ask(partial(self._keys_of_letters, [one.id for one in some]))
        changed.append((yield self._ask(partial(self._remove, keys))))

    def _in_parts(
        self,
        letters: Sequence[QueueItem],
        change: Callable[[list[int], Sequence[QueueItem]], Steps[None]],
        at_once: int,
        timeout: float | None,
        recording: AbstractContextManager[list[int]],
    ) -> Steps[int]:
        """Change dead letters, a few at a time; return how many were changed, and record that."""
        until = deadline_of(timeout)
        with recording as changed:
            for some in batches(letters, at_once):
                if not left(until, 1):
                    break
                try:
                    yield from change(changed, some)
                except (Full, LockUnavailable):
                    if not sum(changed):
                        raise
                    break
        return sum(changed)

    def _purging(self, *, dead: bool = False, reason: str = "", who: str = "") -> Steps[int]:
        """Remove the items that are ready, or (``dead``) the dead letters; return how many.

        Items that are put meanwhile stay. ``reason``, ``who``: see resize().
        """
        what = "dead letters" if dead else "items that are ready"
        with self._recording("purge", f"Removed: {{}} {what}.", reason, who) as removed:
            yield from self._removing(dead, removed)
        return sum(removed)

    def _removing(self, dead: bool, removed: list[int]) -> Steps[None]:
        tail = yield self._ask(partial(self._store.get, self._directory, TAIL))
        last = tail.value["number"] if tail else 0
        # Each of its changes may take as long as one: there may be thousands of them.
        for kind in (DEAD, LAST) if dead else (READY, AGAIN):
            after, listed = "", partial(KeyRange, kind, _MOST_LISTED)
            while keys := (yield self._ask(partial(self._keys, listed(after)))):
                after, keys = keys[-1], [one for one in keys if number_of(one) <= last]
                for some in batches(keys, MOST_KEYS):
                    removed.append((yield self._ask(partial(self._purge, some))))

    def _releasing(self, id: int, token: int, *, reason: str = "", who: str = "") -> Steps[bool]:
        """Take the delivery of an item from its consumer, by its token; False if it is over.

        The item is ready at once, and its consumer cannot acknowledge it any more. ``id`` is the
        number of the item, ``token`` that of the delivery. ``reason``, ``who``: see resize().
        """
        release = partial(self._release, checked_int("id", id), checked_token(token))
        found: DeliveryInfo | None = yield self._ask(release)
        if found is not None:
            text = f"Taken back: item {id}, token {token}, consumer {found.owner}."
            self._record("release", text, reason, who)
        return found is not None

    page, apage = twins("page", _paging)
    find, afind = twins("find", _finding)
    resize, aresize = twins("resize", _resizing)
    dead, adead = twins("dead", _listing_dead)
    retry, aretry = twins("retry", _retrying)
    retry_many, aretry_many = twins("retry_many", _retrying_many)
    discard, adiscard = twins("discard", _discarding)
    purge, apurge = twins("purge", _purging)
    force_release, aforce_release = twins("force_release", _releasing)
