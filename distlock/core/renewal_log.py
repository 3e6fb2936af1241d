"""Logs the renewals that fail at a rate that people can bear."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from distlock.clock import clock

logger = logging.getLogger("distlock")

#: Seconds between the first two lines of an outage, then twice as long each time, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@dataclass(slots=True)
class _Outage:
    failures: int = 0
    pause: float = _FIRST_PAUSE
    next_line: float = 0.0
    last: float = 0.0


class RenewalLog:
    """A line when renewals of a backend begin to fail, ever rarer ones while they do, one at last.

    Renewals are tried again several times a second where leases are short.
    """

    def __init__(self) -> None:
        self._outages: dict[str, _Outage] = {}

    def failed(self, alias: str, error: Exception) -> None:
        """Note a renewal that failed."""
        now = clock()
        outage = self._outages.get(alias)
        if outage is None or now - outage.last > 2 * _LONGEST_PAUSE:
            # Nothing was renewed in between: what was to be renewed had been lost or left.
            outage = self._outages[alias] = _Outage()
        outage.failures += 1
        outage.last = now
        if now < outage.next_line:
            return
        outage.next_line = now + outage.pause
        outage.pause = min(2 * outage.pause, _LONGEST_PAUSE)
        often = f" {outage.failures} times" if outage.failures > 1 else ""
        logger.warning("renewal on %r failed%s, will try again: %s", alias, often, error)

    def worked(self, alias: str) -> None:
        """Note a renewal that had an answer."""
        if outage := self._outages.pop(alias, None):
            logger.warning("renewal on %r works again, failures: %d", alias, outage.failures)
