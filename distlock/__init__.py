"""A lock for Django projects that lives in the database they already have."""

from __future__ import annotations

from distlock.conf import locks
from distlock.exceptions import (
    Cancelled,
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
from distlock.lock import Lock
from distlock.types.lease import Lease, LockInfo, Owner, State

__all__ = [
    "Cancelled",
    "Lease",
    "Lock",
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
