"""Finds the items of a queue whose deliveries have gone, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from distlock.backends.store import MOST_KEYS, KeyRange
from distlock.concurrency.clock import clock
from distlock.recipes.queue_items import AGAIN, HELD, TAKEN, TakenKey
from distlock.recipes.recipe import Recipe

#: Seconds between two looks for what was abandoned, while other items are ready.
_LOOKS_EVERY = 0.25


class AbandonedItems:
    """What was taken from one queue by deliveries that have gone, and is to be delivered again.

    One look lists a few keys, and asks for the deliveries of these. The next one goes on from
    there, round and round: so many deliveries that go on do not hide what was abandoned.
    """

    def __init__(self, queue: Recipe) -> None:
        self._queue = queue
        self._after = ""
        self._looks_at = 0.0

    def listed(self) -> KeyRange | None:
        """Return what the next look lists; None if it is not due, unless nothing is ready."""
        return self._range() if clock() >= self._looks_at else None

    def look_again(self, *, at_once: bool) -> None:
        """Say when the next look is due."""
        self._looks_at = 0.0 if at_once else clock() + _LOOKS_EVERY

    def find(
        self, keys: Sequence[str] | None, exact: bool, deadline: float | None
    ) -> list[TakenKey]:
        """Return some items that were abandoned, in their order.

        This is one look, at ``keys`` if they were listed already. With ``exact`` it goes on until
        it finds one, if there is any.
        """
        rounds, any_gone = 0, False
        while True:
            after = self._after
            if keys is None:
                keys = self._list(deadline)
            if gone := list(self.among(keys, deadline)):
                # Those that others deliver before it are not looked at again in this round.
                place = list(keys).index(gone[0].key)
                self._after = keys[place - 1] if place else after
                return gone
            whole = len(keys) < MOST_KEYS
            rounds += whole
            self._after = "" if whole else keys[-1]
            if not exact or rounds > 1 or (whole and not after):
                return []
            keys, any_gone = None, any_gone or self._are_any_gone(deadline)
            if not any_gone:
                return []

    def among(self, keys: Sequence[str], deadline: float | None) -> Iterator[TakenKey]:
        """Yield those of the taken items whose deliveries have gone."""
        rest, queue = map(TakenKey.of, keys), self._queue
        while some := list(islice(rest, MOST_KEYS)):
            held = [one.held for one in some]
            missing = queue._store.missing(queue._directory, held, deadline)
            yield from (one for one in some if one.held in missing)

    def _range(self) -> KeyRange:
        return KeyRange(AGAIN, MOST_KEYS, self._after)

    def _list(self, deadline: float | None) -> Sequence[str]:
        queue = self._queue
        return queue._store.peek(queue._directory, {}, (), deadline, listed=self._range()).keys

    def _are_any_gone(self, deadline: float | None) -> bool:
        """Return whether there are fewer deliveries than items that were taken."""
        queue = self._queue
        counts = queue._store.peek(queue._directory, {}, [TAKEN, HELD], deadline).counts
        return counts[TAKEN] > counts[HELD]
