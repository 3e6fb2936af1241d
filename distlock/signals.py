"""Signals that tell of every lock this process takes, leaves, loses or breaks.

Each is sent with ``lease`` (a :class:`distlock.types.lease.Lease`) and ``using`` (the backend's
alias); the sender is the backend's class. Receivers run where the event is noticed: ``lock_lost``
mostly on a thread of distlock's own. An error in a receiver is logged and disturbs nobody.
"""

from __future__ import annotations

import os
import threading

from django.dispatch import Signal

lock_acquired = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_broken = Signal()


def _after_fork() -> None:
    # Another thread of the parent may have been sending one.
    for signal in (lock_acquired, lock_released, lock_lost, lock_broken):
        signal.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
