"""Locks of this very process in a backend that does not answer: held until their leases end."""

from __future__ import annotations

from distlock.core.manager import manager
from distlock.types.lease import LockInfo, State


def own_locks(alias: str) -> list[LockInfo]:
    """Return what this process holds in a backend, by its own clock and without asking anyone."""
    return [
        LockInfo(
            hold.lease.name,
            alias,
            State.HELD,
            owner=hold.lease.owner,
            token=hold.lease.token,
            remaining=hold.lease.remaining,
            description=hold.lease.claim.description,
            lease=hold.lease.duration,
            renews=hold.renews,
        )
        for hold in manager.all()
        if hold.backend.alias == alias
    ]
