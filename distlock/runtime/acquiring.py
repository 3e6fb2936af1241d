"""The steps from a request for a lock to its lease, and those of entering a lock again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from distlock.backends.background import answer_due
from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Steps, Wait
from distlock.exceptions import LockDeadlock, LockError, LockUnavailable
from distlock.runtime.hold import Entrant, Hold
from distlock.runtime.local_queue import Lane, LocalQueue, Ticket
from distlock.types.lease import Claim, Lease, LockInfo, LockKey, State

#: Seconds between two looks at a lock that another of the same owner's name asks for.
_FOLLOW_PAUSE = 0.05
#: Seconds after which one who waits without a limit is looked at again, at first and at most: who
#: waits for its task, or awaits its job, may not have begun to when it came.
_DEADLOCK_PAUSE, _MAX_DEADLOCK_PAUSE = 0.2, 5.0
#: The local deadline counts from before the request was sent. Where the answer took a long wait,
#: much of the lease seems to be over, and it is renewed before anyone relies on it.
_FRESH = 2 / 3
#: So often the lock is asked for again if the grant was gone before it could be renewed.
_TRIES = 3


@dataclass(slots=True, eq=False)
class AcquireRequest:
    """A claim, on which terms the hold is entered if it is granted, and how far that has come."""

    backend: BaseBackend
    claim: Claim
    entry: Entrant
    #: whether the owner was named by the caller, and may be in several places at once
    named: bool
    #: the length in seconds that was asked for, None for the backend's own
    lease: float | None
    #: Whether to wait, and until when by the local clock (None: forever). If it is not to wait:
    #: until when there has to be an answer (None: for as long as the backend gets for one).
    wait: bool
    deadline: float | None
    #: which lock it is
    key: LockKey
    #: In which lane of the local queue this waits: the common one, or one of its owner's own.
    #: Another process may take or free a named owner's hold, and this process would not notice. So
    #: nobody waits for such a hold here, but at the backend. And a named owner does not wait here
    #: behind others, because it may hold the lock already and let them wait.
    lane: Lane
    #: its place in the local queue, once it has one
    ticket: Ticket | None = None
    #: whether the backend has been asked, and may have granted it
    asked: bool = False
    #: the hold of a task that awaits this job of an executor, which enters it
    enters: Hold | None = None
    #: whether the hold, if it was granted, has been left after an error
    undone: bool = False

    @property
    def answer_due(self) -> float | None:
        """When an answer is due that is asked for now, though the time may be over."""
        return self.backend.calls.due(answer_due(self.deadline))


def wait_for_turn(
    request: AcquireRequest, queue: LocalQueue, ticket: Ticket, enqueued: bool, hold: Hold | None
) -> Steps[bool]:
    """Wait for one's turn to ask, or until another request of the owner's name has got the lock.

    False: someone else has it.

    ``hold`` is what the owner holds here just now. Requests with one owner's name share one answer:
    LockUnavailable if it does not come.
    """
    if enqueued:
        until = request.deadline if request.wait else clock()
        if hold is not None and hold.named and hold.lost_error() is None:
            ticket.joined = True
        turn = ticket.turn if until is None else None
        pause = _DEADLOCK_PAUSE
        while turn is not None and not (yield Wait(turn, clock() + pause)):
            queue.check_deadlock(ticket)
            pause = min(2 * pause, _MAX_DEADLOCK_PAUSE)
        if ticket.joined or (yield from _wait(ticket, until)):
            return True
    return request.named and (yield from _follow(request, ticket, request.answer_due))


def _wait(ticket: Ticket, until: float | None) -> Steps[bool]:
    if ticket.turn is not None:
        if not (yield Wait(ticket.turn, until)):
            return False
        ticket.turn.take()
    return True


def _follow(request: AcquireRequest, ticket: Ticket, until: float | None) -> Steps[bool]:
    """Wait for the answer to the one ahead; False if someone else has the lock."""
    backend, claim = request.backend, request.claim
    while True:
        info: LockInfo = yield Call(
            partial(backend.inspect_holder, claim.name), until, executor=backend.calls
        )
        if info.state is State.HELD and info.owner != claim.owner:
            return False
        if (yield from _wait(ticket, clock() + _FOLLOW_PAUSE)):
            return True
        if until is not None and clock() >= until:
            raise LockUnavailable(
                f"lock {claim.name!r}: another thread or task has asked for it under the same"
                " owner's name, and has no answer yet"
            )


def ask(request: AcquireRequest) -> Steps[Lease | None]:
    """Return a lease that has time left, or None if someone else has the lock.

    If the request is to wait, that means: someone else had it until its deadline.
    """
    backend, claim, deadline = request.backend, request.claim, request.deadline
    if not request.wait:
        deadline = backend.calls.due(deadline)
    for _ in range(_TRIES):
        lease: Lease | None
        if request.wait:
            lease = yield from backend.enqueue(claim, deadline)
        else:
            lease = yield backend.attempt(claim, deadline)
        if lease is None or lease.deadline - clock() > claim.duration * _FRESH:
            return lease
        if renewed := (yield from _renewed(backend, lease, answer_due(deadline))):
            return renewed
        backend.discard_local(lease)
    raise _too_short(claim)


def _renewed(backend: BaseBackend, lease: Lease, deadline: float | None) -> Steps[Lease | None]:
    """Return the lease as renewed, None if it is gone already and must be asked for again."""
    sent_at = clock()
    renewing = partial(backend.renew, [lease.lasting(lease.claim.reserved)])
    try:
        answers = yield Call(renewing, deadline, executor=backend.calls)
    except LockUnavailable as error:
        error.maybe_applied = True  # whatever it is about: there is a grant to take back
        raise
    answer = answers.get(lease.nonce)
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


# Entering again what this process holds already


def refuses_reentry(hold: Hold, request: AcquireRequest) -> bool:
    """Return whether the owner must not enter what it holds; LockDeadlock if it would wait."""
    inside = [entry for entry in hold.entries if not entry.until_commit]
    may_enter = not inside or all(entry.reentrant for entry in (*inside, request.entry))
    if may_enter or hold.loss_reason() is not None:
        return False
    if request.wait:
        site = hold.lease.claim.call_site
        raise LockDeadlock(
            f"lock {request.claim.name!r}: reentrant=False, and this thread or task holds it"
            f" already{f', acquired at {site}' if site else ''}: it would wait for itself"
        )
    return True


def confirm(
    hold: Hold, request: AcquireRequest, deadline: float | None
) -> Steps[tuple[str | None, float | None]]:
    """Ask the backend for a hold before it is entered again, where this process cannot know.

    Returns why it is gone (None if it is not), and when a renewal was sent that was answered (None
    if there was none). LockError if more is asked for than entering again can give: nothing is
    dropped without a word. LockUnavailable if the backend does not answer.
    """
    if request.lease is not None and request.lease > hold.lease.duration:
        # Two lengths in one hold would not be safe: a shorter renewal that was given up may be
        # carried out after a longer one.
        raise LockError(
            f"lease={request.lease:g}: lock {hold.lease.name!r} is held already, with a lease of"
            f" {hold.lease.duration:g} s, which cannot become longer when the lock is entered again"
        )
    at_most = request.entry.at_most
    if at_most is not None and hold.acquired_at + at_most < hold.time_limit:
        raise LockError(
            f"at_most={at_most:g}: lock {hold.lease.name!r} is held already, and may be held for"
            " longer; that cannot change when the lock is entered again"
        )
    if not _may_end_too_soon(hold, request):
        if not hold.named:
            return None, None
        return (yield Call(hold.ask, deadline, executor=hold.backend.calls)), None
    sent_at = clock()
    renewing = partial(hold.renew, request.entry.at_least)
    answered, gone = yield Call(renewing, deadline, executor=hold.backend.calls)
    if answered:
        return gone, sent_at
    if _needs_lease(hold, request):
        raise LockError(
            f"lease={request.lease:g}: lock {hold.lease.name!r} is held already, and its lease"
            " cannot begin again inside a transaction that has locked its row"
        )
    # The next renewal sees to at_least.
    return (yield Call(hold.ask, deadline, executor=hold.backend.calls)), None


def _may_end_too_soon(hold: Hold, request: AcquireRequest) -> bool:
    """Return whether the hold may end before the request allows, if its holder dies."""
    at_least = request.entry.at_least
    return hold.backend.capabilities.lease_lengths and (
        _needs_lease(hold, request) or (at_least > hold.at_least and at_least > hold.lease.duration)
    )


def _needs_lease(hold: Hold, request: AcquireRequest) -> bool:
    """Return whether less is left than the lease that is asked for and will not be renewed."""
    return not request.entry.renews and (request.lease or 0.0) > hold.lease.remaining
