"""Waiting for what another process is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 30.0


def eventually(happened: Callable[[], bool]) -> bool:
    """Return whether something happens within a generous limit."""
    ends_at = time.monotonic() + LIMIT
    while not happened():
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.02)
    return True
