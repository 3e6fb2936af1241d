"""A lock for Django projects that lives in the database they already have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from distlock.conf import locks
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

#: Where the other names are. Django imports this package when it starts, so each of them is
#: imported when it is first asked for: `from distlock import Lock` imports all that a lock needs.
_LATE = {
    "Lock": "distlock.locking.lock",
    "locks": "distlock.conf",
    **dict.fromkeys(("Holder", "Lease", "LockInfo", "Owner", "State"), "distlock.types.lease"),
}

if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
