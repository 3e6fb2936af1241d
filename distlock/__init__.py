"""A lock for Django projects that lives in the database they already have."""

from __future__ import annotations

from distlock.conf import locks
from distlock.exceptions import (
    Cancelled,
    LockBusy,
    LockDeadlock,
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    NotPermitted,
    NotSupported,
    ReentrantCall,
    ReleasedInTransaction,
    StaleToken,
    UnfilledTemplate,
    ValueNotAgreed,
)
from distlock.locking.lock import Lock
from distlock.types.lease import Holder, Lease, LockInfo, Owner, State

__all__ = [
    "Cancelled",
    "Holder",
    "Lease",
    "Lock",
    "LockBusy",
    "LockDeadlock",
    "LockError",
    "LockInfo",
    "LockLost",
    "LockNotHeld",
    "LockTimeout",
    "LockUnavailable",
    "NotPermitted",
    "NotSupported",
    "Owner",
    "ReentrantCall",
    "ReleasedInTransaction",
    "StaleToken",
    "State",
    "UnfilledTemplate",
    "ValueNotAgreed",
    "locks",
]

__version__ = "0.1.0"
