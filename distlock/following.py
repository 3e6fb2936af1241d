"""The way to one's turn. What one of the same owner's name is answered counts for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from distlock.clock import clock
from distlock.exceptions import LockUnavailable
from distlock.hold import Hold
from distlock.lease import LockInfo, Owner, State
from distlock.turns import Key
from distlock.wish import Entry

#: Seconds between two looks at the lock.
_PAUSE = 0.05


#: Finds what an owner holds here.
Find = Callable[[Key, Owner], Hold | None]


def come(entry: Entry, find: Find, wait: bool, deadline: float | None) -> bool:
    """Wait for one's turn to ask, or for the lock to become the named owner's; False if in vain.

    LockUnavailable if one ahead with the same owner's name has no answer.
    """
    if entry.line_up(wait, deadline) and (_joins(entry, find) or entry.turn.wait(entry.until)):
        return True
    return entry.wish.named and _follow(entry, entry.wish.last_answer_due(wait))


async def acome(entry: Entry, find: Find, wait: bool, deadline: float | None) -> bool:
    """See come()."""
    if entry.line_up(wait, deadline) and (
        _joins(entry, find) or await entry.turn.await_(entry.until)
    ):
        return True
    return entry.wish.named and await _afollow(entry, entry.wish.last_answer_due(wait))


def _joins(entry: Entry, find: Find) -> bool:
    """Return whether the lock has become the named owner's just before this one lined up."""
    hold = find(entry.wish.key, entry.wish.claim.owner)
    if hold is not None and hold.portable and hold.loss() is None:
        entry.turn.joined = True
    return entry.turn.joined


def _follow(entry: Entry, until: float | None) -> bool:
    """Wait for the answer to the one ahead; False if someone else has the lock."""
    looking = partial(entry.wish.backend.inspect, entry.wish.claim.name)
    while not _is_of_another(entry, looking(until)):
        if entry.turn.wait(clock() + _PAUSE):
            return True
        _refuse_after(entry, until)
    return False


async def _afollow(entry: Entry, until: float | None) -> bool:
    """See _follow()."""
    looking = partial(entry.wish.backend.inspect, entry.wish.claim.name)
    while not _is_of_another(entry, await entry.wish.backend.calls.run(looking, until)):
        if await entry.turn.await_(clock() + _PAUSE):
            return True
        _refuse_after(entry, until)
    return False


def _is_of_another(entry: Entry, info: LockInfo) -> bool:
    return info.state is State.HELD and info.owner != entry.wish.claim.owner


def _refuse_after(entry: Entry, until: float | None) -> None:
    if until is not None and clock() >= until:
        raise LockUnavailable(
            f"lock {entry.wish.claim.name!r}: another thread or task has asked for it under the"
            " same owner's name, and has no answer yet"
        )
