"""Following what changes in the directory of a recipe: look by look, in a loop, or by callbacks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar
from weakref import ref

from distlock.backends.store import Snapshot
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Steps, Wait, arun, run
from distlock.concurrency.threads import start_for_callbacks
from distlock.exceptions import LockUnavailable
from distlock.recipes.recipe import Recipe
from distlock.types.arguments import checked_callback
from distlock.types.owners import gevent_patched

T = TypeVar("T")
R = TypeVar("R", bound=Recipe)

logger = logging.getLogger("distlock")

#: Seconds between two attempts to ask a backend that does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: Seconds until a watch that has met an unexpected error goes on, at first and at last.
_AFTER_ERROR = 1.0, 60.0


class Follower(ABC, Generic[R, T]):
    """One who follows a recipe: what it has seen, and what it has still to tell."""

    #: the key of the one record that it looks at and watches; None for all of them
    record: str | None = None

    def __init__(self, recipe: R, deadline: float | None = None) -> None:
        self.recipe = recipe
        self._deadline = deadline
        #: answered when it is to end before the deadline
        self.stopped: Pending[None] = Pending()
        #: what was seen last; None lets it look again at once
        self._seen: Snapshot | None = None
        self._coming: deque[T] = deque()

    def next(self) -> Steps[T | None]:
        """Return what comes next; None at the end."""
        while not self._coming:
            self._seen = yield from self._looking()
            if self._seen is None:
                return None
            self._coming.extend(self._news(self._seen))
        return self._coming.popleft()

    @abstractmethod
    def _news(self, snapshot: Snapshot) -> Iterable[T]:
        """Return what is new in a snapshot, since the one before."""

    def _looking(self) -> Steps[Snapshot | None]:
        """Return the next snapshot; None at the end."""
        keys = None if self.record is None else [self.record]
        return self._looked(self._seen, keys, self.record)

    def _looked(
        self,
        seen: Snapshot | None,
        keys: Sequence[str] | None = None,
        watched: str | None = None,
    ) -> Steps[Snapshot | None]:
        """Look at records: at once, or after a change of one since they were ``seen``.

        None stands for all records, and for any change. It looks now and then, too, and goes on
        through outages. None at the end.
        """
        over = seen is not None and self._is_late()
        if seen is not None:
            yield from self.recipe._wait_for_change(seen, self._deadline, watched, self.stopped)
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not (over or self.stopped.over):
            try:
                return (yield self.recipe._read(self._deadline, keys=keys))  # type: ignore[no-any-return]
            except LockUnavailable:
                over = self._is_late()
            yield Wait(self.stopped, clock() + next(pauses))
        return None

    def _is_late(self) -> bool:
        return self._deadline is not None and clock() >= self._deadline


def each(follower: Follower[Any, T]) -> Iterator[T]:
    """Yield what comes to one who follows."""
    while (found := run(follower.next())) is not None:
        yield found


async def aeach(follower: Follower[Any, T]) -> AsyncIterator[T]:
    """See each()."""
    while (found := await arun(follower.next())) is not None:
        yield found


class Watch:
    """Calls a function with what comes to one who follows, on a thread of its own.

    It ends when it is closed, or collected as garbage. In the child of a fork it goes on, and
    begins anew.
    """

    def __init__(
        self, follow: Callable[[], Follower[Any, T]], callback: Callable[[T], object]
    ) -> None:
        """``follow`` returns one who follows; TypeError unless ``callback`` is a function."""
        self._follow = follow
        self._callback: Callable[[Any], object] = callback
        self._follower = follow()
        if callback is None:
            raise TypeError("callback must be callable, not None")
        checked_callback("callback", callback)
        _ = self._follower.recipe._store  # raises NotSupported if it keeps no records
        self._start()
        fork.reset_in_child(self)

    def _start(self) -> None:
        # The callback may know this object, and must not keep it alive through the thread.
        start_for_callbacks(_call_back, "distlock-watch", ref(self), self._follower)

    def after_fork_in_child(self) -> None:
        """Go on, on a thread of the child: a server may import everything before it forks."""
        # gevent makes its loop anew only after this, and no greenlet could begin.
        if not self._follower.stopped.over and not gevent_patched():
            self._follower = self._follow()
            fork.after_hooks(self._start)

    def close(self) -> None:
        """Call no more; a call that has begun goes on. Doing it twice does no harm."""
        self._follower.stopped.resolve(None)

    __del__ = close

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _call_back(known: ref[Watch], follower: Follower[Any, Any]) -> None:
    for pause in backoff(*_AFTER_ERROR):
        try:
            for found in each(follower):
                _tell(known(), follower, found)
            return
        except Exception:  # what is wrong may be mended
            logger.exception("%r could not be watched; it is tried again", follower.recipe)
        follower.stopped.wait(clock() + pause)


def _tell(watch: Watch | None, follower: Follower[Any, Any], found: Any) -> None:
    try:
        if watch is not None and not follower.stopped.over:
            watch._callback(found)
    except BaseException:  # even sys.exit(): the next change must still be told
        logger.exception("a callback for changes of %r failed", follower.recipe)
