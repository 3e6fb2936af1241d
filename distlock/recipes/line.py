"""Those who wait for something in a directory: one of all watches it, the others stand in line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from distlock.backends.store import Snapshot
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock, left
from distlock.concurrency.steps import Either, Sleep, Steps, Wait
from distlock.exceptions import LockUnavailable
from distlock.recipes.parts import EnteredLocks
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.recipes.semaphore import Semaphore
from distlock.types.arguments import checked_flag, waiting_limit
from distlock.types.owners import current_actor

#: Seconds between two looks of one who waits, though nothing has woken it: hints may be lost.
_LONGEST_WAIT = 5.0
#: Seconds between two attempts to ask a backend that does not answer one who waits.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: What one attempt by a deadline comes to, None if it has to wait; and what it has seen. It is told
#: whether to go on when others were faster, or to come to nothing then.
Attempt: TypeAlias = Callable[[float | None, bool], Steps[tuple[Any, Snapshot]]]


class Line:
    """Lets a recipe wait for a change that one of those who wait can make use of.

    The first in line has the seat of a semaphore, and watches the directory. When it has got what
    it waits for it leaves the seat to the next one. So a change wakes one, however many wait. Those
    for whom others were too fast stand in line, too: or each would be in the way of all.
    """

    def __init__(
        self,
        recipe: Recipe,
        side: str,
        *,
        goes_on: Callable[[LockUnavailable], bool] = lambda error: True,
        give_up: Callable[[Any], object] = lambda result: None,
    ) -> None:
        """``side`` names the line.

        ``goes_on(error)`` says whether another attempt may be made after one that was not answered.
        ``give_up(result)`` undoes what an attempt has come to, if the caller does not get it.
        """
        self._recipe = recipe
        self._goes_on = goes_on
        self._give_up = give_up
        name = f"{recipe.kind}:{side}:{recipe.name}"
        self._seat = Semaphore(name, 1, using=recipe.using)

    def eventually(
        self, attempt: Attempt, blocking: bool = True, timeout: float | None = None
    ) -> Steps[Any]:
        """Return what an attempt comes to that is not None, or None if there is none in time.

        The arguments are those of ``queue.Queue.get``. An outage that is shorter than a lease, or
        than the time limit, is waited out.
        """
        wait, _ = waiting_limit(checked_flag("blocking", blocking), timeout)
        deadline, lasts = deadline_of(timeout), self._recipe._backend.settings.lease
        result, seen = yield from attempt(deadline, not wait)
        gives_up, pauses = clock() + lasts, backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while result is None and wait and left(deadline, 1) > 0:
            try:
                result, seen = yield from self._in_line(attempt, seen, deadline)
                gives_up = clock() + lasts
            except LockUnavailable as error:
                over = clock() >= (gives_up if deadline is None else deadline)
                if over or not self._goes_on(error):
                    raise
                yield Sleep(left(deadline, next(pauses)))
        return result

    def _in_line(
        self, attempt: Attempt, seen: Snapshot, deadline: float | None
    ) -> Steps[tuple[Any, Snapshot]]:
        """Wait behind others for a time; as the first one, for what an attempt can make use of."""
        settings = self._recipe._backend.settings
        pause = settings.interval(settings.lease)
        seat, entered, result = self._seat, EnteredLocks(), None
        entered.add(seat, current_actor().owner)
        try:
            try:
                # Who has the seat may have been stopped: look after some time in any case.
                terms = True, left(deadline, pause)
                try:
                    first = yield Either(
                        partial(seat.acquire, *terms), partial(seat.aacquire, *terms)
                    )
                except LockUnavailable as error:
                    error.maybe_applied = False  # the attempt was not made
                    raise
                result, seen = yield from attempt(deadline, first)
                while True:  # an interrupt at the end of a `while` with a condition would pass by
                    if result is not None or not first or left(deadline, 1) <= 0:
                        break
                    hint = self._recipe._hint(seen, None)
                    try:
                        yield Wait(hint, clock() + left(deadline, min(pause, _LONGEST_WAIT)))
                    finally:
                        hint.abandon()
                    result, seen = yield from attempt(deadline, True)
            except GeneratorExit:  # nothing can be waited for any more
                entered.leave_soon()
                raise
            except BaseException:
                yield from entered.leaving()
                raise
            yield from entered.leaving()
        except BaseException:
            if result is not None:
                self._give_up(result)
            raise
        return result, seen
