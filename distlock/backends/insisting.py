"""Leaves a lock for somebody who waits no more, however long the backend cannot be asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from distlock.clock import clock, left
from distlock.exceptions import LockUnavailable
from distlock.lease import Claim

logger = logging.getLogger("distlock")

#: Seconds between two attempts.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


def insist(claim: Claim, leave: Callable[[float], object]) -> None:
    """Leave what a claim may have been granted; try for as long as that could last.

    ``leave`` is given the local time by which it must be done, and may raise LockUnavailable.
    """
    until = clock() + claim.reserved
    pause = _FIRST_PAUSE
    while clock() < until:
        try:
            leave(until)
            return
        except LockUnavailable:
            time.sleep(left(until, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
        except Exception:
            logger.exception("could not leave what was granted of %r", claim.name)
            return
