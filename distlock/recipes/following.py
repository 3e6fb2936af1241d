"""Following what changes in the directory of a recipe: look by look, in a loop, or by callbacks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet, ref

from django.utils.asyncio import async_unsafe

from distlock.backends.store import Record, Snapshot
from distlock.concurrency import fork
from distlock.concurrency.clock import backoff, clock, left
from distlock.concurrency.pending import Pending
from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Steps, Wait, arun, run
from distlock.concurrency.threads import call_and_log, start_for_callbacks, thread_logger
from distlock.exceptions import LockUnavailable, NotPermitted
from distlock.recipes.recipe import FIRST_PAUSE, LONGEST_PAUSE, Recipe
from distlock.types.owners import gevent_patched
from distlock.types.values import checked_callback

T = TypeVar("T")

#: Seconds until a watch that has met an unexpected error goes on, at first and at last.
_AFTER_ERROR = 1.0, 60.0


class Follower(Iterator[T], AsyncIterator[T]):
    """One who follows a recipe, and iterates over what comes, in a thread or in a task.

    As a generator, it has ended after an error, and serves one thread or task at a time.
    """

    #: the keys of the records to look at; none for all of them. The first ones are watched.
    keys: Sequence[str] = ()
    watched = 1

    def __init__(
        self, recipe: Recipe, deadline: float | None = None, seen: Snapshot | None = None
    ) -> None:
        """``seen``: what has been seen already; None lets it look at once."""
        self.recipe = recipe
        self._deadline = deadline
        #: when it has looked last, by the local clock; and whether a thread of ours goes on to
        self.asked_at, self.is_watch = -math.inf, False
        #: answered when it is to end before the deadline
        self.stopped: Pending[None] = Pending()
        #: what was seen last; None lets it look again at once
        self._seen = seen
        self._coming: deque[T] = deque()
        self._each, self._aeach = self._following(), self._afollowing()

    @async_unsafe("following would block the event loop; use `async for` with the async twin.")
    def __next__(self) -> T:
        refuse_reentry()
        return next(self._each)

    async def __anext__(self) -> T:
        refuse_reentry()
        return await anext(self._aeach)

    def _following(self) -> Iterator[T]:
        while (found := run(self.next())) is not None:
            yield found

    async def _afollowing(self) -> AsyncIterator[T]:
        while (found := await arun(self.next())) is not None:
            yield found

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
        return self._looked(self._seen, self.keys)

    def _looked(self, seen: Snapshot | None, keys: Sequence[str] = ()) -> Steps[Snapshot | None]:
        """Look at records: at once, or when the first of them has changed since they were ``seen``.

        Without keys these are all, and any change counts. It looks now and then, too, and goes on
        through outages. None at the end.
        """
        recipe, at_once, pauses = self.recipe, seen is None, backoff(FIRST_PAUSE, LONGEST_PAUSE)
        watched = keys[: self.watched]
        if seen is not None:
            yield from recipe._wait_for_change(seen, self._deadline, watched or None, self.stopped)
        while at_once or (not self.stopped.over and left(self._deadline, 1.0) > 0):
            self.asked_at = clock()
            try:
                return (yield recipe._read(self._deadline, keys=keys or None))  # type: ignore[no-any-return]
            except NotPermitted:
                raise
            except LockUnavailable:
                at_once = False
            yield Wait(self.stopped, clock() + next(pauses))
        return None


class LastSeen:
    """The state of one record in this process; any thread replaces its parts as a whole."""

    def __init__(self) -> None:
        #: the record of the highest revision
        self.last: Record | None = None
        #: what the backend has shown, None for no record, and when it was asked, by the local clock
        self.shown: tuple[Record | None, float] = None, -math.inf
        #: returns one who follows it for a watch
        self.watch: Callable[[], Follower[Any] | None] = lambda: None

    def note(self, record: Record | None, asked_at: float) -> None:
        """Remember what the backend has shown to one who asked at ``asked_at``."""
        if record is not None and (self.last is None or self.last.revision < record.revision):
            self.last = record
        if asked_at >= self.shown[1]:
            self.shown = record, asked_at

    def without_asking(self, max_age: float, watch_lasts: float) -> tuple[Record | None] | None:
        """Return what need not be asked for, in a tuple; None if it has to be.

        It was shown at most ``max_age`` seconds ago, while a watch runs ``watch_lasts``.
        """
        (record, asked_at), follower = self.shown, self.watch()
        if follower is not None and not follower.stopped.over:
            max_age = max(max_age, watch_lasts)
        # This process may have set a later one, or have seen it on another server.
        is_last = self.last is None or (record and record.revision >= self.last.revision)
        return (record,) if is_last and clock() - asked_at < max_age else None


class Watch(AbstractContextManager["Watch"]):
    """Calls a function with what comes to one who follows, on a thread of its own.

    It ends when it is closed, or collected as garbage. In the child of a fork it goes on, and
    begins again.
    """

    def __init__(
        self,
        follow: Callable[[], Follower[T]],
        callback: Callable[[T], object],
        *,
        goes_on: bool = True,
    ) -> None:
        """``follow`` returns one who follows; TypeError unless ``callback`` is a function.

        ``goes_on``: whether it does in the child of a fork.
        """
        self._follow, self._callback, self._follower = follow, callback, follow()
        checked_callback("callback", callback, required=True)
        _ = self._follower.recipe._store  # raises NotSupported if it keeps no records
        self._start()
        if goes_on:
            _watches.add(self)

    def _start(self) -> None:
        self._follower.is_watch = True
        # The callback may know this object, and must not keep it alive through the thread.
        start_for_callbacks(_call_back, "distlock-watch", ref(self), self._follower)

    def go_on_in_child(self) -> None:
        """Begin again in the child of a fork, on a thread of its own."""
        if not self._follower.stopped.over:
            earlier, self._follower = self._follower, self._follow()
            earlier.stopped.resolve(None)  # this may have been interrupted, and comes once more
            self._start()

    def close(self) -> None:
        """Call no more; a call that has begun goes on. Doing it twice does no harm."""
        self._follower.stopped.resolve(None)

    def __del__(self) -> None:
        with suppress(AttributeError):  # an interrupt may have come before there was one
            self.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()


#: those of this process that go on in a child
_watches: WeakSet[Watch] = WeakSet()


@fork.in_child
def _go_on_in_child() -> None:
    """Go on with all watches: a server may import everything before it forks."""
    if not gevent_patched():  # which makes its loop again only after this: no greenlet could begin
        for watch in list(_watches):
            watch.go_on_in_child()


def _call_back(known: ref[Watch], follower: Follower[Any]) -> None:
    for pause in backoff(*_AFTER_ERROR):
        try:
            while (found := run(follower.next())) is not None:
                _tell(known(), found)
            return
        except Exception:  # what is wrong may be mended
            thread_logger.exception("%r could not be watched; it is tried again", follower.recipe)
        if follower.stopped.wait(clock() + pause):
            return


def _tell(watch: Watch | None, found: Any) -> None:
    if watch is not None and not watch._follower.stopped.over:
        failed = "a callback for changes of %r failed"
        call_and_log(partial(watch._callback, found), failed, watch._follower.recipe)
