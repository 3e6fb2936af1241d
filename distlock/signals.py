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


#: An owner was granted a lock; entering it again sends nothing. It is sent in the thread
#: or task that acquired it.
lock_acquired = _LockSignal()
#: An owner has left a lock as often as it had entered it. It is sent in the thread or task
#: that released it.
lock_released = _LockSignal()
#: A lock was lost: its lease has ended, or somebody broke it. It is sent in the process that held
#: it, mostly on a thread of distlock's own.
lock_lost = _LockSignal()
#: Somebody broke the hold of another owner. It is sent in the process that broke it.
lock_broken = _LockSignal()
