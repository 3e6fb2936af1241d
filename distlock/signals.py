"""Signals that tell of every lock this process takes, leaves, loses or breaks.

Each is sent with ``lease`` (a :class:`distlock.types.lease.Lease`) and ``using`` (the backend's
alias); the sender is the backend's class. Receivers run where the event is noticed: ``lock_lost``
mostly on a thread of distlock's own. An error in a receiver is logged, and has no other effect.
"""

from __future__ import annotations

import threading

from django.dispatch import Signal

from distlock.concurrency import fork

lock_acquired = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_broken = Signal()


@fork.in_child  # another thread of the parent may have been sending one
def _renew_mutexes() -> None:
    for signal in (lock_acquired, lock_released, lock_lost, lock_broken):
        # A signal handler may interrupt its thread in connect(), and take a lock.
        signal.lock = threading.RLock()  # type: ignore[assignment]


_renew_mutexes()
