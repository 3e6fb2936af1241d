"""Waiting where the engine has no queue, but all who wait are on one machine.

Whoever is in the turnstile before a lock looks at its row, and all others look at the turnstile,
which costs next to nothing. So one who leaves the lock and wants it again finds another before it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator

from django.db import connections

from distlock.backends.database.turnstile import Turnstile, path_of
from distlock.clock import clock, left
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named

#: Whoever is in the turnstile looks so often that it adds no more than this part to its wait.
_EAGERNESS = 0.02
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
#: Seconds between two looks at the turnstile.
_PAUSE_OUTSIDE = 0.004
#: Seconds between two looks at the row from outside: who is in the turnstile may have been stopped.
_PERIOD_OUTSIDE = 0.5


class Line:
    """Those who wait for the locks of one database, on this machine."""

    def __init__(
        self,
        database: str,
        take: Callable[[Claim, float | None], Lease | None],
        atake: Callable[[Claim, float | None], Awaitable[Lease | None]],
    ) -> None:
        """``take`` and ``atake`` take a lock if that is possible at once; see BaseBackend."""
        self._database = database
        self._take = take
        self._atake = atake

    def acquire(self, claim: Claim, deadline: float | None) -> Lease | None:
        """See BaseBackend.acquire()."""
        with self._turnstile(claim) as turnstile:
            for look, pause in _steps(turnstile, claim, deadline):
                if look and (lease := self._take(claim, deadline)):
                    return lease
                time.sleep(pause)
        return None

    async def aacquire(self, claim: Claim, deadline: float | None) -> Lease | None:
        """See acquire()."""
        with self._turnstile(claim) as turnstile:
            for look, pause in _steps(turnstile, claim, deadline):
                if look and (lease := await self._atake(claim, deadline)):
                    return lease
                await asyncio.sleep(pause)
        return None

    def _turnstile(self, claim: Claim) -> Turnstile:
        return Turnstile(path_of(connections[self._database].settings_dict), claim.name)


def _steps(
    turnstile: Turnstile, claim: Claim, deadline: float | None
) -> Iterator[tuple[bool, float]]:
    """Yield whether to look at the row, and how long to pause then, until the deadline."""
    entered_at: float | None = None
    # A named owner may be in already, from elsewhere, and need not wait for anybody.
    look_at = 0.0 if is_named(claim.owner) else clock() + _PERIOD_OUTSIDE
    while True:
        rest, now = left(deadline, math.inf), clock()
        if turnstile.enter():
            entered_at = now if entered_at is None else entered_at
            pause = min(max((now - entered_at) * _EAGERNESS, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            look = True
        else:
            pause = _PAUSE_OUTSIDE
            look = now >= look_at or rest <= 0
        if look:
            look_at = now + _PERIOD_OUTSIDE
        yield look, min(rest, pause * random.uniform(0.5, 1.0))
        if rest <= 0:
            return
