"""Signals for every lock that this process takes, leaves, loses or breaks.

Each is sent with ``lease`` (a :class:`distlock.types.lease.Lease`) and ``using`` (the backend's
alias); the sender is the backend's class. Receivers run where the event is noticed: ``lock_lost``
mostly on a thread of distlock's own. An error in a receiver is logged, and has no other effect.
"""

from __future__ import annotations

import threading
from typing import Any

from django.dispatch import Signal

from distlock.concurrency.fork import PerProcess

#: A signal handler may interrupt its thread in connect(), and take a lock.
_mutex = PerProcess(threading.RLock)


class _LockSignal(Signal):
    """A signal that another thread of the parent may have been sending at a fork."""

    @property
    def lock(self) -> Any:
        return _mutex()

    @lock.setter
    def lock(self, own: Any) -> None:
        """Keep none of its own."""


lock_acquired = _LockSignal()
lock_released = _LockSignal()
lock_lost = _LockSignal()
lock_broken = _LockSignal()
