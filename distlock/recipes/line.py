"""Those who wait for something in a directory: one of all watches it, the others stand in line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from distlock.backends.store import Snapshot
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock, left
from distlock.concurrency.steps import Either, Sleep, Steps
from distlock.exceptions import LockUnavailable
from distlock.recipes.parts import EnteredLocks
from distlock.recipes.recipe import Recipe, deadline_of
from distlock.recipes.semaphore import Semaphore
from distlock.types.arguments import checked_flag, waiting_limit
from distlock.types.owners import current_actor

#: Seconds between two attempts to ask a backend that does not answer one who waits.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: What one attempt by a deadline comes to, None if it has to wait; and what it has seen. It is told
#: whether to go on when others were faster, or to come to nothing then.
Attempt: TypeAlias = Callable[[float | None, bool], Steps[tuple[Any, Snapshot]]]


def wait_in_line(
    recipe: Recipe, side: str, attempt: Attempt, blocking: bool, timeout: float | None
) -> Steps[Any]:
    """Return what an attempt comes to that is not None, or None if there is none in time.

    The first in line has the seat of a semaphore, and watches the directory. When it has got what
    it waits for it leaves the seat to the next one. So a change wakes one, however many wait. Those
    for whom others were too fast stand in line, too: or each would be in the way of all.

    ``side`` names the line; the other arguments are those of ``queue.Queue.get``. An outage that is
    shorter than a lease, or than the time limit, is waited out; but what may have been done is not
    tried again.
    """
    wait, _ = waiting_limit(checked_flag("blocking", blocking), timeout)
    deadline, lasts = deadline_of(timeout), recipe._backend.settings.lease
    result, _ = yield from attempt(deadline, not wait)
    gives_up, pauses = clock() + lasts, backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while result is None and wait and left(deadline, 1) > 0:
        try:
            result = yield from _in_line(recipe, side, attempt, deadline)
            gives_up = clock() + lasts
        except LockUnavailable as error:
            over = clock() >= (gives_up if deadline is None else deadline)
            if over or error.maybe_applied:
                raise
            yield Sleep(left(deadline, next(pauses)))
    return result


def _in_line(recipe: Recipe, side: str, attempt: Attempt, deadline: float | None) -> Steps[Any]:
    """Wait behind others for a time; as the first one, for what an attempt can make use of."""
    seat = Semaphore(f"{recipe.kind}:{side}:{recipe.name}", 1, using=recipe.using)
    settings, entered = recipe._backend.settings, EnteredLocks()
    entered.add(seat, current_actor().owner)
    try:
        # Who has the seat may have been stopped: look after some time in any case.
        terms = True, left(deadline, settings.interval(settings.lease))
        try:
            first = yield Either(partial(seat.acquire, *terms), partial(seat.aacquire, *terms))
        except LockUnavailable as error:
            error.maybe_applied = False  # the attempt was not made
            raise
        while True:  # an interrupt at the end of a `while` with a condition would pass by
            result, seen = yield from attempt(deadline, first)
            if result is not None or not first or left(deadline, 1) <= 0:
                break
            yield from recipe._wait_for_change(seen, deadline)
    except GeneratorExit:  # nothing can be waited for any more
        entered.leave_soon()
        raise
    except BaseException:
        yield from entered.leaving()
        raise
    yield from entered.leaving()
    return result
