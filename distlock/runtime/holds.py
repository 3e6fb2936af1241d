"""Which locks this process holds: by lock and owner, and entered how often."""

from __future__ import annotations

from functools import partial
from operator import methodcaller

from distlock.concurrency.clock import clock
from distlock.concurrency.work import Work
from distlock.exceptions import LockLost, LockNotHeld
from distlock.runtime.acquiring import AcquireRequest
from distlock.runtime.events import log_unreleased
from distlock.runtime.hold import Entrant, Hold, Left, task_of
from distlock.runtime.renewal import LeaseRenewer
from distlock.types.lease import LockKey, Owner
from distlock.types.owners import current_actor, current_liveness

#: Lost holds that nobody will leave are cleared out when there are more holds than this; the limit
#: is then set to twice the rest plus this.
_MOST_LOST = 64
#: Seconds after its end that a hold is remembered that was not to be renewed, or whose thread or
#: task has ended. Many are never left; who does it so late gets LockNotHeld, and not LockLost.
_REMEMBERED = 3600.0


class Holds:
    """The holds of a process. A lost one stays here until it was left, or is taken again."""

    def __init__(self, renewer: LeaseRenewer) -> None:
        self._renewer = renewer
        self._mutex = renewer.mutex  # shared, so that a hold and its renewal change together
        self._holds: dict[tuple[LockKey, str], Hold] = {}
        #: the holds of tasks that jobs have entered which these tasks await, by lock and job
        self._entered_by_jobs: dict[tuple[LockKey, str], Hold] = {}
        self._limit = _MOST_LOST

    def find(self, key: LockKey, owner: Owner) -> Hold | None:
        """Return the hold of an owner, or one that it is within or has entered, lost or not."""
        hold = self._holds.get((key, owner.key))
        if hold is None and owner.within:
            holds = (self._holds.get((key, outer)) for outer in owner.within)
            hold = next((hold for hold in holds if hold is not None), None)
        if hold is None and self._entered_by_jobs:
            entered = (self._entered_by_jobs.get((key, one)) for one in owner.keys)
            hold = next((hold for hold in entered if hold is not None), None)
        return hold

    def of_tasks(self, key: LockKey) -> list[Hold]:
        """Return the holds of a lock that belong to asyncio tasks, but not to named owners."""
        holds = (hold for hold in self.all() if hold.key == key and not hold.named)
        return [hold for hold in holds if any(task_of(entry) for entry in hold.entries)]

    def within(self, key: LockKey, owner: Owner) -> list[Hold]:
        """Return all holds of an owner who may hold a lock several times, lost or not.

        The keys of their owners are that of ``owner``, or one that it is within, and a number after
        a slash. They are in the order in which they were granted.
        """
        start = tuple(f"{key}/" for key in owner.keys)
        holds = (hold for hold in self.all() if hold.key == key)
        return [hold for hold in holds if hold.owner_key.startswith(start)]

    def hold(self, key: LockKey, owner: Owner) -> Hold:
        """Return what the owner holds; LockNotHeld or LockLost. Asks no backend."""
        if (hold := self.find(key, owner)) is None:
            raise not_held(key, owner)
        if loss := hold.lost_error():
            raise loss
        if hold.earlier_entries and hold.is_only_in_earlier(current_liveness()):
            raise _lost_before(hold)
        return hold

    def all(self) -> list[Hold]:
        """Return all holds, those included that were lost and have not been left."""
        # Without the mutex: the garbage collector may ask for this in a thread that has it.
        return list(self._holds.copy().values())

    def add(self, hold: Hold, waited: float) -> None:
        """Note a new hold, whose acquire took ``waited`` seconds, and keep its lease alive."""
        known_by, hold.waited = (hold.key, hold.owner_key), waited
        with self._mutex:
            if hold.named and (earlier := self._holds.get(known_by)):
                inside = (*earlier.earlier_entries, *earlier.entries)  # of a hold that was lost
                hold.earlier_entries = list(filter(methodcaller("is_alive"), inside))
            if len(self._holds) > self._limit:
                self._forget_leftovers()
            self._holds[known_by] = hold
            self._renewer.keep(hold)
            if (entry := hold.entries[0]).work is not None:
                self._follow(hold, entry)

    def enter(self, hold: Hold, entry: Entrant, owner: Owner) -> bool:
        """Enter once more; False if it was lost or left meanwhile, or a job has come in."""
        with self._mutex:
            if not self._has(hold) or hold.lost_error() or hold.keeps_out(entry):
                return False
            if entry.work is not None and hold.owner_key not in owner.keys:
                entry.job = owner
                self._entered_by_jobs[hold.key, owner.key] = hold
            hold.enter(entry)
            if entry.until_commit and owner.within and hold.owner_key in owner.keys:
                self._give_to_thread(hold, owner)
            self._renewer.reschedule(hold)  # it had been orphaned, or was not renewed
            self._follow(hold, entry)
            return True

    def _give_to_thread(self, hold: Hold, owner: Owner) -> None:
        """Let every piece of work of the thread enter the hold.

        All of them run inside the transaction that keeps it, and would wait for that in vain.
        """
        _, slash, number = hold.owner_key.partition("/")  # a seat has a number
        self._move(hold, f"{owner.within[-1]}{slash}{number}")

    def _move(self, hold: Hold, owner_key: str) -> None:
        """Let a hold be found by another key; an interrupt in between leaves it under one.

        One of that key that was lost and never left is forgotten, as when the lock is taken again.
        """
        known_by = hold.key, hold.owner_key
        earlier = self._holds.get((hold.key, owner_key))
        if earlier is None or earlier.loss_reason() is not None:
            self._holds[hold.key, owner_key], hold.owner_key = hold, owner_key
            del self._holds[known_by]

    def _follow(self, hold: Hold, entry: Entrant) -> None:
        """See to it that the end of a piece of work does not leave the hold to its successors."""
        if entry.work and entry.renews and not hold.named:
            entry.work.add(hold, partial(self._end_work, hold))

    def _end_work(self, hold: Hold, work: Work) -> None:
        """Take a piece of work that has ended out of a hold that it did not release."""
        with self._mutex:
            if not self._has(hold) or hold.lost_for_good or hold.orphaned:
                return
            left = tuple(one for one in hold.entries if one.work is work and one.renews)
            if not left:
                return
            hold.remove(left)
            if hold.orphaned:  # it may be the thread's, whose next piece of work must not enter it
                self._move(hold, hold.lease.owner.key)
            self._forget_jobs(hold)
        log_unreleased(hold, left[-1].call_site)

    def undo_enter(self, hold: Hold, entry: Entrant) -> bool:
        """Leave a hold if it was entered once more; True if nobody is in it any more."""
        with self._mutex:
            if entry.has_entered:
                entry.has_entered = False
                hold.leave(entry.lock, entry.is_alive)
            self._forget_jobs(hold)
        return not hold.count

    def leave(self, hold: Hold, lock: object, left: Left | None = None) -> bool:
        """Leave once, by this Lock object; True if that was the last time.

        Then the backend has to free the lock. See Lock.release() for the errors.
        """
        with self._mutex:
            if not self._has(hold):
                raise not_held(hold.key, hold.lease.owner)  # another thread of its name was first
            # As a rule it was entered once, and then it does not matter who leaves.
            if hold.count > 1 or hold.earlier_entries or hold.entries[0].until_commit:
                liveness = current_actor().liveness
                if hold.is_only_in_earlier(liveness):
                    hold.leave_earlier(liveness, left)
                    raise _lost_before(hold)
                if not hold.entered and all(entry.lock is not lock for entry in hold.entries):
                    raise not_held(hold.key, hold.lease.owner)  # it only waits for a commit
                hold.leave(lock, liveness, left)
            else:
                hold.count = 0
                if left is not None:
                    left.append(True)
            if self._entered_by_jobs:
                self._forget_jobs(hold)
            reason, is_last = hold.loss_reason(), hold.count == 0
            if is_last:
                hold.on_leave()
                del self._holds[hold.key, hold.owner_key]
                if (work := hold.entries[0].work) is not None:
                    work.finished(hold)
                if reason is None:
                    self._renewer.kept.pop(hold.lease.claim.nonce, None)
        if reason is not None:
            loss = hold.lost_error()
            self._renewer.lose(hold, reason)
            raise loss or LockLost(reason)
        return is_last

    def _forget_jobs(self, hold: Hold) -> None:
        """Forget the jobs that have left a hold; one that its task has left is only theirs."""
        jobs = [entry.job.key for entry in hold.entries if entry.job and hold.count]
        for known_by, entered in list(self._entered_by_jobs.items()):
            if entered is hold and known_by[1] not in jobs:
                del self._entered_by_jobs[known_by]
        inside = [entry for entry in hold.entries if jobs and not entry.until_commit]
        if inside and all(entry.job for entry in inside):
            hold.on_leave(inside[0])
            self._move(hold, hold.lease.nonce)  # no owner has this key

    def undo(self, request: AcquireRequest) -> bool:
        """Leave what a request has come to; False if others are in it by its owner's name.

        It may be repeated.
        """
        claim, entry = request.claim, request.entry
        with self._mutex:
            hold = self._holds.get((request.key, claim.owner.key))
            if hold is None or hold.lease.nonce != claim.nonce:
                return True
            if not request.undone:
                request.undone = True
                hold.leave(entry.lock, entry.is_alive)
            if hold.count:
                return False
            self._discard(hold)
        return True

    def discard(self, hold: Hold) -> None:
        """Forget a hold, and renew it no more."""
        with self._mutex:
            self._discard(hold)

    def _discard(self, hold: Hold) -> None:
        if self._has(hold):
            del self._holds[hold.key, hold.owner_key]
        self._renewer.kept.pop(hold.lease.nonce, None)

    def _has(self, hold: Hold) -> bool:
        return self._holds.get((hold.key, hold.owner_key)) is hold

    def _forget_leftovers(self) -> None:
        """Forget lost holds that nobody is expected to leave here."""
        for known_by, hold in list(self._holds.items()):
            if hold.lost_for_good and _is_left_over(hold):
                del self._holds[known_by]
        self._limit = 2 * len(self._holds) + _MOST_LOST


def _is_left_over(hold: Hold) -> bool:
    """Return whether nobody is expected to leave a lost hold here; a named owner does elsewhere."""
    late = clock() >= hold.lease.deadline + _REMEMBERED
    return hold.named or (late and not (hold.renews and hold.alive))


def not_held(key: LockKey, owner: Owner, holder: Hold | None = None) -> LockNotHeld:
    """Return the error for an owner who does not hold a lock; another one of this process may."""
    message = f"{key.kind} {key.name!r} on {key.alias!r} is not held by {owner}"
    if holder is not None:
        other = holder.lease.owner
        who = "another piece of work there" if str(other) == str(owner) else str(other)
        message += (
            f", but by {who}: each thread and task is an owner, and so is each request, job of an"
            " executor and activity() of a thread. Release it where it was acquired, or give it an"
            " owner"
        )
    return LockNotHeld(message)


def _lost_before(hold: Hold) -> LockLost:
    return LockLost(
        f"lock {hold.lease.name!r} was lost here, and has been taken again since (token"
        f" {hold.lease.token}) under its owner's name"
    )
