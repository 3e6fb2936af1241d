"""``lock.extend()``: a hold that is not renewed lasts for longer than its lease was to."""

from __future__ import annotations

from functools import partial

from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Sleep, Steps
from distlock.core.held import ENDED, HeldLease
from distlock.core.manager import manager
from distlock.core.registry import not_held
from distlock.exceptions import LockError, LockUnavailable, NotSupported

#: Seconds between two looks whether a renewal that is under way has ended.
_PAUSE = 0.02


def extending(hold: HeldLease, seconds: float) -> Steps[None]:
    """Let a hold end no earlier than ``seconds`` from now. See Lock.extend() for the errors."""
    backend, lease = hold.backend, hold.lease
    _refuse(hold, seconds)
    due = backend.calls.due()
    # Renewals that begin from here on ask for as much. One that has begun might bind the hold to
    # its usual lease later than this.
    hold.extended_until = max(hold.extended_until, clock() + seconds)
    while hold.renewing:
        if due is not None and clock() >= due:
            raise LockUnavailable(f"lock {lease.name!r}: its renewal has had no answer yet")
        yield Sleep(_PAUSE)
    wanted = max(seconds, hold.lease.remaining, backend.capabilities.shortest_lease)
    sent_at = clock()
    renewing = partial(backend.renew, [lease.lasting(wanted)])
    answer = (yield Call(renewing, due, executor=backend.calls)).get(lease.nonce)
    if answer is None:
        raise LockUnavailable(
            f"lock {lease.name!r} could not be extended: a transaction has locked its row, which"
            " may be one of this thread"
        )
    if answer:
        manager().extend(hold, sent_at, wanted)
        if hold.ended:  # by then; it must not go on for nobody
            manager().lose(hold, ENDED)
            backend.cleanup.add(lease.claim)
    else:
        manager().lose(hold, (yield Call(hold.why_gone, due, executor=backend.calls)))
        # What was left is not lost: another thread of its owner's name has released it meanwhile.
        raise hold.loss() or not_held(hold.place[0], lease.owner)
    if (loss := hold.loss()) is not None:
        raise loss


def _refuse(hold: HeldLease, seconds: float) -> None:
    """Raise the error for a hold that cannot be extended, or need not be."""
    claim, alias = hold.lease.claim, hold.backend.alias
    if not hold.backend.capabilities.extends:
        raise NotSupported(
            f"extend({seconds:g}): a lock of DISTLOCK[{alias!r}] is held as long as a session lives"
        )
    if hold.renews:
        raise LockError(
            f"extend({seconds:g}) is for renew=False, and lock {claim.name!r} is renewed anyway"
        )
    if claim.maybe_repeated:
        raise LockUnavailable(
            f"extend({seconds:g}): an earlier request for lock {claim.name!r}, whose answer was"
            " lost, may still come, and bring back the first end. Take the lock anew"
        )
