"""How long someone waits for a verdict: the caller's limit, and what the servers may take."""

from __future__ import annotations

from distlock.backends.zookeeper.place import Place
from distlock.clock import clock
from distlock.types.lease import Lease

#: Seconds that the servers have for their first answer, however short the caller's limit is: a lock
#: that is free must be had within any limit.
_LEAST = 0.5
#: Seconds between two looks whether that answer has come.
_LATE = 0.01
#: Seconds. Python can miss a Ctrl-C that comes in the moment in which it begins to sleep.
_LONGEST_SLEEP = 1.0


class Patience:
    """Waits for the verdict on one place, as a thread or as a task."""

    def __init__(self, place: Place, deadline: float | None) -> None:
        self._place = place
        self._deadline = float("inf") if deadline is None else deadline
        self._least = clock() + _LEAST
        options = place.client.options
        self._answer = options.timeout
        #: Seconds without a connection after which waiting makes no sense.
        self._silence = max(self._answer, options.session_timeout) if place.waits else self._answer

    def wait(self) -> Lease | None:
        """Block until the lock is had, or someone else has had it for long enough.

        Raises LockUnavailable if the servers were not there to tell.
        """
        while (pause := self._pause()) > 0:
            if self._place.verdict.wait(pause):
                return self._place.verdict.result()
        return self._end()

    async def await_(self) -> Lease | None:
        """See wait()."""
        while (pause := self._pause()) > 0:
            if await self._place.verdict.await_(pause):
                return self._place.verdict.result()
        return self._end()

    def _pause(self) -> float:
        """Return the seconds until there is something to decide; none if it is time."""
        now = clock()
        # Not longer, because the connection may break meanwhile; and beyond the caller's limit not
        # longer than it takes to hear that someone is ahead.
        longest = min(self._answer, _LONGEST_SLEEP) if now < self._deadline else _LATE
        until = [self._limit(), now + longest]
        if now < self._deadline:
            until.append(self._deadline)
        return min(until) - now

    def _limit(self) -> float:
        unsure_since = self._place.unsure_since
        if unsure_since is None:
            return self._deadline
        return min(max(self._deadline, self._least), unsure_since + self._silence)

    def _end(self) -> Lease | None:
        lease = self._place.give_up()
        if lease is not None or self._place.unsure_since is None:
            return lease
        client = self._place.client
        error = client.unavailable("does not answer" if client.connected else "")
        error.maybe_applied = self._place.is_sent
        raise error
