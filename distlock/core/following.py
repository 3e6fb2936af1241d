"""The way to one's ticket. What one of the same owner's name is answered counts for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from distlock.clock import clock
from distlock.core.attempt import AcquireAttempt
from distlock.core.held import HeldLease
from distlock.core.local_queue import Key
from distlock.exceptions import LockUnavailable
from distlock.types.lease import LockInfo, Owner, State

#: Seconds between two looks at the lock.
_PAUSE = 0.05


#: Finds what an owner holds here.
Find = Callable[[Key, Owner], HeldLease | None]


def come(attempt: AcquireAttempt, find: Find, wait: bool, deadline: float | None) -> bool:
    """Wait for one's turn to ask, or for the lock to become the named owner's; False if in vain.

    LockUnavailable if one ahead with the same owner's name has no answer.
    """
    if attempt.line_up(wait, deadline) and (
        _joins(attempt, find) or attempt.ticket.wait(attempt.until)
    ):
        return True
    return attempt.request.named and _follow(attempt, attempt.request.last_answer_due(wait))


async def acome(attempt: AcquireAttempt, find: Find, wait: bool, deadline: float | None) -> bool:
    """See come()."""
    if attempt.line_up(wait, deadline) and (
        _joins(attempt, find) or await attempt.ticket.await_(attempt.until)
    ):
        return True
    return attempt.request.named and await _afollow(attempt, attempt.request.last_answer_due(wait))


def _joins(attempt: AcquireAttempt, find: Find) -> bool:
    """Return whether the lock has become the named owner's just before this one lined up."""
    hold = find(attempt.request.key, attempt.request.claim.owner)
    if hold is not None and hold.portable and hold.loss() is None:
        attempt.ticket.joined = True
    return attempt.ticket.joined


def _follow(attempt: AcquireAttempt, until: float | None) -> bool:
    """Wait for the answer to the one ahead; False if someone else has the lock."""
    looking = partial(attempt.request.backend.inspect, attempt.request.claim.name)
    while not _is_of_another(attempt, looking(until)):
        if attempt.ticket.wait(clock() + _PAUSE):
            return True
        _refuse_after(attempt, until)
    return False


async def _afollow(attempt: AcquireAttempt, until: float | None) -> bool:
    """See _follow()."""
    looking = partial(attempt.request.backend.inspect, attempt.request.claim.name)
    while not _is_of_another(attempt, await attempt.request.backend.calls.run(looking, until)):
        if await attempt.ticket.await_(clock() + _PAUSE):
            return True
        _refuse_after(attempt, until)
    return False


def _is_of_another(attempt: AcquireAttempt, info: LockInfo) -> bool:
    return info.state is State.HELD and info.owner != attempt.request.claim.owner


def _refuse_after(attempt: AcquireAttempt, until: float | None) -> None:
    if until is not None and clock() >= until:
        raise LockUnavailable(
            f"lock {attempt.request.claim.name!r}: another thread or task has asked for it under"
            " the same owner's name, and has no answer yet"
        )
