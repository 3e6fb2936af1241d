"""Tells of losses, on few threads however many locks are lost at once."""

from __future__ import annotations

import threading
from collections import deque

from distlock.core.events import send_loss
from distlock.core.held import HeldLease
from distlock.threads import start_for_callbacks

#: Callbacks are other people's code and may take their time; so many may do so at once.
_MOST_NOTIFIERS = 32


class LossNotifier:
    """Losses to tell. Each is told at once unless that many others are being told."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._untold: deque[tuple[HeldLease, str]] = deque()
        self._tellers = 0

    def add(self, hold: HeldLease, reason: str) -> None:
        """Tell of a loss without making the caller wait."""
        with self._mutex:
            self._untold.append((hold, reason))
            if self._tellers == _MOST_NOTIFIERS:
                return
            self._tellers += 1
        try:
            start_for_callbacks(self._tell_all, "distlock-lost")
        except RuntimeError:  # no more threads can be had: the caller has to wait after all
            self._tell_all()

    def _tell_all(self) -> None:
        while True:
            with self._mutex:
                if not self._untold:
                    self._tellers -= 1
                    return
                hold, reason = self._untold.popleft()
            send_loss(hold, reason)
