"""What this process holds: who entered which lock how often, and the way in and out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Sleep, Steps, run_soon
from distlock.concurrency.threads import undo
from distlock.concurrency.work import tasks_awaiting
from distlock.exceptions import LockDeadlock, LockNotHeld, LockUnavailable
from distlock.runtime.acquiring import AcquireRequest, ask, confirm, refuses_reentry, wait_for_turn
from distlock.runtime.events import event
from distlock.runtime.hold import Hold, Left, task_of
from distlock.runtime.holds import Holds, not_held
from distlock.runtime.local_queue import LocalQueue, Ticket, WaitingCounts
from distlock.runtime.name_template import warn_if_unfilled
from distlock.runtime.renewal import LeaseRenewer
from distlock.signals import lock_acquired, lock_released
from distlock.types.lease import Kind, Lease, LockKey, Owner
from distlock.types.owners import current_actor

#: How often, and after how many seconds, it is asked who awaits a job.
_LOOKS, _LOOK_PAUSE = 10, 0.005
#: Seconds between two looks at a lock that another thread or task of this process asks for.
_PAUSE = 0.02


class LockManager:
    """All holds of a process. Re-entrance goes by owner: the same owner enters again, counted.

    acquire() and release() return steps, which :func:`distlock.concurrency.steps.run` makes for a
    thread and ``arun`` for an asyncio task.
    """

    def __init__(self) -> None:
        #: the threads and tasks of this process that hold locks or wait for them
        self.queue = LocalQueue()
        self.queue.on_wait = WaitingCounts(self.queue).note
        self.renewer = LeaseRenewer()
        #: what they hold, lost or not
        self.holds = Holds(self.renewer)

    # The way in

    def acquire(self, request: AcquireRequest) -> Steps[bool]:
        """Enter the lock; False if someone else has it (until the deadline, if it is to wait)."""
        holds, queue, owner, began = self.holds, self.queue, request.claim.owner, clock()
        if "{" in request.claim.name:
            warn_if_unfilled(request.claim.name, request.entry.lock)
        while True:
            if holds.find(request.key, owner) is not None or request.entry.work is not None:
                entered = yield from self._reenter(request)
                if entered is not None:
                    return entered
            limited = not request.wait or request.deadline is not None
            ticket = Ticket(request.key, request.lane, owner, request.entry, limited)
            request.ticket, request.asked = ticket, False
            try:
                # A request with the same owner's name always queues: they share one answer.
                enqueued = queue.enqueue(ticket, wait=request.wait or request.named)
                request.asked = enqueued and ticket.called and not request.named
                busy = request.asked or (yield from self._wait(request, ticket, enqueued))
                lease = (yield from ask(request)) if request.asked else None
                if lease is None:
                    queue.leave(ticket)
                    if busy and not ticket.joined:
                        return False
                    continue
                backend, leave = request.backend, partial(queue.leave, ticket)
                hold = Hold(backend, lease, request.entry, leave, request.key, ticket.note_leaving)
                holds.add(hold, hold.acquired_at - began)
                if request.named:
                    queue.call_same_owner(ticket)
                if (step := event(lock_acquired, hold)) is not None:
                    yield step
                return True
            except BaseException as error:  # the others of this process must get their turn
                is_clean = False
                try:  # as or_undo(), without its functions on the way of each lock
                    self._fail(request, error)
                    is_clean = True
                finally:
                    if not is_clean:
                        self._fail(request, error)
                raise

    def _wait(self, request: AcquireRequest, ticket: Ticket, enqueued: bool) -> Steps[bool]:
        """Wait for the turn to ask the backend; note in the request whether it is to be asked.

        If it is not: True if someone else holds the lock, or this owner has got it meanwhile
        (``ticket.joined``); False if nobody holds it any more, and the request begins again.
        """
        named = request.named
        hold = self.holds.find(request.key, request.claim.owner) if named else None
        if (yield from wait_for_turn(request, self.queue, ticket, enqueued, hold)):
            request.asked = not ticket.joined
        elif not named:
            if not request.wait:  # what follows has one time for all
                request.deadline = request.answer_due
            return (yield from self._is_held(request))
        return True

    def _reenter(self, request: AcquireRequest) -> Steps[bool | None]:
        """Enter what this process holds already; None if the lock has to be taken.

        False if it must not be entered once more, or not while a job is inside.
        """
        while True:
            request.enters = None
            if self.holds.find(request.key, request.claim.owner) is None:
                request.enters = yield from self._hold_of_caller(request)
            if (hold := self._entered(request)) is None:
                return None
            if not hold.keeps_out(request.entry):
                if refuses_reentry(hold, request):
                    return False
                gone, renewed_at = yield from confirm(hold, request, request.answer_due)
                if gone:
                    self.renewer.lose(hold, gone)
                    continue
                if renewed_at is not None:
                    self.renewer.extend(hold, renewed_at, hold.lease.duration)
                try:
                    if self.holds.enter(hold, request.entry, request.claim.owner):
                        return True
                except BaseException as error:  # an interrupt
                    if self is manager() and self.holds.undo_enter(hold, request.entry):
                        undo(error, self._free_later, hold)
                    raise
            elif not request.wait or (request.deadline is not None and clock() >= request.deadline):
                return False
            else:
                yield Sleep(_PAUSE)

    def _hold_of_caller(self, request: AcquireRequest) -> Steps[Hold | None]:
        """Return the hold of a task that awaits the job of an executor which makes this request.

        The task does not release it before the job has ended, unless it is cancelled. It may have
        submitted the job just now, and not await it yet. Seats are never entered again, but taken.
        """
        work = request.entry.work
        jobs = work.futures() if work is not None and request.key.kind != Kind.SEMAPHORE else []
        for _ in range(_LOOKS if jobs else 0):
            if not (holds := self.holds.of_tasks(request.key)):
                return None
            tasks = [task for future in jobs for task in tasks_awaiting(future)]
            for hold in holds:
                if any(task_of(entry) in tasks for entry in hold.entries):
                    return _checked_seats(hold, request)
            if tasks:
                return None
            yield Sleep(_LOOK_PAUSE)
        return None

    def _entered(self, request: AcquireRequest) -> Hold | None:
        """Return what the owner holds here, None if nothing; LockLost if it has to be left first.

        A named owner may come in from anywhere, and takes the lock again.
        """
        hold = request.enters or self.holds.find(request.key, request.claim.owner)
        if hold is None or (loss := hold.lost_error()) is None:
            return hold
        if hold.renews and hold.alive and not hold.named:
            raise loss
        self.renewer.lose(hold, hold.loss_reason() or "")
        # The thread that tells of losses may have been first, but not have come this far yet.
        hold.backend.discard_local(hold.lease)
        hold.on_end()
        return None

    def _is_held(self, request: AcquireRequest) -> Steps[bool]:
        """Return whether anybody holds the lock for which another thread or task has its turn here.

        That one may still be asking, or leaving: then the backend is asked, so that neither that
        nor an outage is reported as a held lock. False if nobody holds it, and that one has gone.
        LockUnavailable if this is not known in time.
        """
        backend, due, ahead = request.backend, request.answer_due, self.queue.first(request.key)
        looking = partial(backend.is_held, request.claim)
        while (hold := self.holder(request.key)) is None or hold.lost_for_good:
            if (yield Call(looking, due, executor=backend.calls)):
                break
            if self.queue.first(request.key) != ahead:
                return False
            if due is not None and clock() >= due:
                raise LockUnavailable(
                    f"lock {request.claim.name!r}: {ahead} has asked for it, and has no answer yet"
                )
            yield Sleep(_PAUSE)
        return True

    def _fail(self, request: AcquireRequest, error: BaseException) -> None:
        """Leave nothing behind of a request that ended with an error."""
        if self is not manager():
            return  # in the child of a fork: the request is the parent's
        # Interrupted, cancelled, left without an answer: it may have been granted all the same.
        unknown = request.asked and not (
            isinstance(error, LockUnavailable) and not error.maybe_applied
        )
        undo(error, self._abandon, request, unknown)

    def _abandon(self, request: AcquireRequest, unknown: bool) -> None:
        """Take back what a request was granted, or may have been, and let the next one ask."""
        if self.holds.undo(request):
            try:
                if unknown:
                    request.backend.cleanup.add(request.claim)
            finally:  # a lease ends by itself, a turn does not
                if request.ticket is not None:
                    self.queue.leave(request.ticket)

    # The way out

    def release(
        self,
        key: LockKey,
        owner: Owner,
        lock: object,
        deadline: float | None = None,
        hold: Hold | None = None,
        left: Left | None = None,
    ) -> Steps[bool]:
        """Leave once, by this Lock object; True if it was the last time. See Lock.release().

        ``deadline``: by when the backend has to answer; None for as long as it gets for that.
        ``hold`` is which one, if it is not to be a later one of the same owner. ``left`` tells
        after an interrupt whether it came before that.
        """
        if hold is None:
            hold = self.holds.find(key, owner)
        if hold is None:
            raise not_held(key, owner, self.holder(key))
        try:
            is_last = self.holds.leave(hold, lock, left)
            if is_last:
                gone = yield Call(hold.free, deadline, executor=hold.backend.release_calls)
                if gone:
                    self.renewer.tell_loss(hold, gone)
                    if loss := hold.lost_error():
                        raise loss
                hold.on_end()
        except BaseException as error:  # as in acquire()
            is_clean = False
            try:
                self._fail_to_release(hold, error)
                is_clean = True
            finally:
                if not is_clean:
                    self._fail_to_release(hold, error)
            raise
        if is_last and (step := event(lock_released, hold)) is not None:
            yield step
        return is_last

    def release_soon(self, key: LockKey, owner: Owner, lock: object) -> None:
        """Leave once for someone who is gone, without making the caller wait.

        It may be the garbage collector, in a thread that has a mutex of ours.
        """
        run_soon(self.release(key, owner, lock))

    def _fail_to_release(self, hold: Hold, error: BaseException) -> None:
        """Leave nothing behind of a hold that was left for the last time with an error."""
        if hold.count or self is not manager():  # in the child of a fork it is the parent's
            return
        # A LockLost may be of another lock, whose loss ends the body that this one is left in.
        if isinstance(error, LockNotHeld):
            hold.on_end()
        else:
            undo(error, self._free_later if hold.loss_reason() is None else self._discard, hold)

    def _discard(self, hold: Hold) -> None:
        """Free what may outlast the lease: a seat does where its session goes on for others."""
        try:
            hold.backend.discard_local(hold.lease)
        finally:
            hold.on_end()

    def _free_later(self, hold: Hold) -> None:
        self.holds.discard(hold)
        try:
            minimum = hold.minimum_remaining
            hold.backend.cleanup.add(hold.lease.claim, hold.free if minimum else None)
        finally:  # as in _abandon()
            hold.on_end()

    # Looking

    def holder(self, key: LockKey) -> Hold | None:
        """Return the hold of a thread or task of this process for which others wait here."""
        first = self.queue.first(key)
        return None if first is None else self.holds.find(key, first)

    def running(self) -> list[Hold]:
        """Return what this process holds, by what it knows."""
        return [hold for hold in self.all() if not hold.lost_for_good]

    def all(self) -> list[Hold]:
        """Return all holds, those included that were lost and have not been left."""
        return self.holds.all()

    def free(self, hold: Hold) -> None:
        """Free a hold at once, even with owners inside. For tests, see distlock.testing."""
        self.holds.discard(hold)
        try:
            if not hold.lost_for_good:
                hold.backend.release(hold.lease)
        finally:
            hold.on_end()

    def free_ended(self) -> None:
        """Free what nobody can release any more when the process ends.

        Its main thread, which calls this, has nothing left to do then, and all other threads have
        ended but daemons, whose locks stay. A program that was interrupted just before a ``with``
        block began to release its lock, or forgot to, does not keep it for another lease.
        """
        here = current_actor().liveness
        for hold in self.holds.all():
            if hold.named or not hold.renews or hold.loss_reason() is not None:
                continue
            if all(one.is_alive == here or not one.is_alive() for one in hold.entries):
                self._free_later(hold)

    def become_reader(self, hold: Hold) -> None:
        """Note that a writer has become a reader."""
        with self.renewer.mutex:
            lease = hold.lease
            hold.lease = Lease(replace(lease.claim, seats=1), lease.token, lease.deadline)

    # Leases that were taken from their backend past this process's owners

    def watch(self, hold: Hold) -> None:
        """Keep a lease alive that nobody enters."""
        with self.renewer.mutex:
            self.renewer.keep(hold)

    def unwatch(self, hold: Hold) -> None:
        """Keep it alive no more; it stays taken until it is released, or ends."""
        with self.renewer.mutex:
            self.renewer.kept.pop(hold.lease.nonce, None)


def _checked_seats(hold: Hold, request: AcquireRequest) -> Hold:
    """Return the hold of a task, which its job is to enter; LockDeadlock if the job cannot."""
    if request.claim.seats > hold.lease.claim.seats and not hold.lost_for_good:
        raise LockDeadlock(
            f"rwlock {request.claim.name!r}: a job cannot become the writer while the task that"
            " awaits it is a reader, because they would wait for each other"
        )
    return hold


#: that of this process
manager = fork.PerProcess(LockManager)


@fork.at_exit
def _free_ended() -> None:
    if not fork.children_run():  # which may work under what this process holds
        manager().free_ended()
