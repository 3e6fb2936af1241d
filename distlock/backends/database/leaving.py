"""Leaves a lock once more, after the transaction in which it was left has been rolled back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from distlock.clock import clock, left
from distlock.exceptions import LockUnavailable
from distlock.lease import Claim

logger = logging.getLogger("distlock")


def leave_again(claim: Claim, leave: Callable[[float], object]) -> None:
    """Call ``leave`` with a deadline until the backend answers; no longer than the lease lasts."""
    until = clock() + claim.duration
    while clock() < until:
        try:
            leave(until)
            return
        except LockUnavailable:  # an outer transaction may still be open
            time.sleep(left(until, 0.1))
        except Exception:
            logger.exception("could not leave %r again", claim.name)
            return
