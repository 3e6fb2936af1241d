"""Asks a backend for a lease that has time left when it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Steps
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Lease

#: The local deadline counts from before the request was sent. Where the answer took a long wait,
#: much of the lease seems to be over, and it is renewed before anyone relies on it.
_FRESH = 2 / 3
#: How often a lease may be gone before it is had, until it is plainly too short.
_TRIES = 3


def ask(
    backend: BaseBackend, claim: Claim, *, wait: bool, deadline: float | None
) -> Steps[Lease | None]:
    """Return a lease, or None if someone else has the lock (until ``deadline``, if ``wait``)."""
    deadline = deadline if wait else backend.calls.due()
    for _ in range(_TRIES):
        if wait:
            lease = yield from backend.enqueue(claim, deadline)
        else:
            lease = yield backend.attempt(claim, deadline)
        if lease is None or _fresh(lease):
            return lease
        sent_at = clock()
        with _granted():
            renewing = partial(backend.renew, [_reserved(lease)])
            answer = yield Call(renewing, deadline, executor=backend.calls)
        if renewed := _renewed(lease, sent_at, answer.get(lease.nonce)):
            return renewed
        backend.discard_local(lease)
    raise _too_short(claim)


@contextmanager
def _granted() -> Iterator[None]:
    """Let errors tell that there is something to take back, whatever they are about."""
    try:
        yield
    except LockUnavailable as error:
        error.maybe_applied = True
        raise


def _fresh(lease: Lease) -> bool:
    return lease.deadline - clock() > lease.duration * _FRESH


def _reserved(lease: Lease) -> Lease:
    """Return the lease as the backend is to renew it: not to end before ``at_least`` is over."""
    return lease.lasting(lease.claim.reserved)


def _renewed(lease: Lease, sent_at: float, answer: bool | None) -> Lease | None:
    """Return the lease as renewed, None if it is gone already and must be asked for again."""
    if answer is False:
        return None
    renewed = lease.renewed(sent_at)
    if answer is None or clock() >= renewed.deadline:
        raise _too_short(lease.claim)
    return renewed


def _too_short(claim: Claim) -> LockUnavailable:
    return LockUnavailable(
        f"lock {claim.name!r}: answers take longer than the lease of {claim.duration:g} s lasts"
    )
