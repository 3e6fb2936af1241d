"""Entering again what this process holds already: what the backend is asked before."""

from __future__ import annotations

from distlock.clock import clock
from distlock.core.attempt import AcquireRequest
from distlock.core.held import BROKEN, HeldLease
from distlock.core.renewal import LeaseRenewer
from distlock.exceptions import LockError


def must_ask(hold: HeldLease, request: AcquireRequest) -> bool:
    """Return whether the backend is to be asked before the hold is entered again.

    LockError if more is asked for than entering again can give: nothing is dropped without a word.
    """
    if request.lease is not None and request.lease > hold.lease.duration:
        # Two lengths in one hold would not be safe: a shorter renewal that was given up may be
        # carried out after a longer one.
        raise LockError(
            f"lease={request.lease:g}: lock {hold.lease.name!r} is held already, with a lease of"
            f" {hold.lease.duration:g} s, which cannot become longer when the lock is entered again"
        )
    return hold.portable or _is_short(hold, request)


def confirm(
    hold: HeldLease, request: AcquireRequest, renewer: LeaseRenewer, deadline: float | None
) -> str | None:
    """Ask for a hold, and let it run for as long as is wished; why it is gone, or None.

    LockUnavailable if the backend cannot be asked, LockError if the hold cannot be renewed now.
    """
    if not _is_short(hold, request):
        return hold.ask(deadline)
    sent_at = clock()
    lease = hold.renewal(request.level.at_least)
    answer = hold.backend.renew([lease], deadline).get(lease.nonce)
    if answer is None:
        if _needs_lease(hold, request):
            raise LockError(
                f"lease={request.lease:g}: lock {lease.name!r} is held already, and its lease"
                " cannot run anew inside a transaction that has locked its row"
            )
        return hold.ask(deadline)  # the next renewal sees to at_least
    if not answer:
        return hold.why_gone(deadline) if hold.portable else BROKEN
    renewer.renewed(hold, sent_at)
    return None


def _is_short(hold: HeldLease, request: AcquireRequest) -> bool:
    """Return whether the hold may end before the request allows, if its holder dies."""
    at_least = request.level.at_least
    return hold.backend.capabilities.lease_lengths and (
        _needs_lease(hold, request) or (at_least > hold.at_least and at_least > hold.lease.duration)
    )


def _needs_lease(hold: HeldLease, request: AcquireRequest) -> bool:
    """Return whether less is left than a lease that is wished for and will not be renewed."""
    return not request.level.renews and (request.lease or 0.0) > hold.lease.remaining
