"""One lock held by one owner of this process, and who is inside by which options."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from distlock.backends.base import BaseBackend, LossReason
from distlock.concurrency.clock import clock, left
from distlock.concurrency.work import Work
from distlock.exceptions import LockLost, LockUnavailable
from distlock.types.lease import RELIED_ON, Lease, LockInfo, LockKey, Owner, State
from distlock.types.owners import NAMED, Liveness

OnLost = Callable[[Lease], object]


#: Is no longer empty when a hold has been left, so that it must not be left again. No interrupt
#: comes between the two.
Left: TypeAlias = list[bool]


@dataclass(slots=True, eq=False)
class Entrant:
    """One thread or task inside a hold: its Lock object, its options, how often it entered."""

    is_alive: Callable[[], bool]
    at_least: float = 0.0
    renews: bool = True
    on_lost: OnLost | None = None
    lock: object = None
    #: the piece of work that it is, None outside of all
    work: Work | None = None
    #: the file and the line where it was asked for, if they are known
    call_site: str = ""
    count: int = 1
    #: whether this is no thread or task, but the end of transactions; see locking.until_commit
    until_commit: bool = False
    #: whether its thread or task may enter the hold once more
    reentrant: bool = True
    #: seconds after the grant at which this process gives the hold up
    at_most: float | None = None
    #: who a job is that has entered the hold of a task which awaits it
    job: Owner | None = None
    #: whether it has entered a hold that was there before
    has_entered: bool = False


def task_of(entry: Entrant) -> asyncio.Task[object] | None:
    """Return the task that has entered; None for others, and for one that is gone."""
    liveness = entry.is_alive
    return liveness.task if isinstance(liveness, Liveness) else None


def _do_nothing(*_: Entrant) -> None:
    pass


class Hold:
    """A lease, how often its owner has entered, and what becomes of it."""

    def __init__(
        self,
        backend: BaseBackend,
        lease: Lease,
        entry: Entrant,
        on_end: Callable[[], object] = _do_nothing,
        key: LockKey | None = None,
        on_leave: Callable[..., object] = _do_nothing,
    ) -> None:
        """``entry`` is the first who has entered.

        ``on_end`` gives the next thread or task its turn. It is called when nobody holds this any
        more, perhaps more than once; ``on_leave`` when the last one leaves, before the backend is
        asked to free it, and with the Entrant of a job when its task has left the hold to it.
        ``key`` says which lock it is, None for what the claim says.
        """
        claim, settings = lease.claim, backend.settings
        self.backend = backend
        self.lease = lease
        self.on_end, self.on_leave = on_end, on_leave
        self.key = key or claim.key(backend.alias)
        #: by which the owner finds it: that of the claim, or of the thread that it was given to
        self.owner_key = claim.owner.key
        #: whether another process can take or free it, by its owner's name
        self.named = claim.owner.key.startswith(NAMED)
        self.acquired_at = clock()  # it was granted before that
        #: for how many seconds it was waited for, None where that is not known
        self.waited: float | None = None
        self.at_least = entry.at_least
        #: when this process gives it up, by the local clock; entering again does not change it
        self.time_limit = self.acquired_at + (entry.at_most or math.inf)
        #: until when extend() was to let it last, by the local clock; it may have failed
        self.extended_until = 0.0
        #: how often it was entered and not left
        self.count = 1
        #: Who is inside. The list is replaced when it changes: others read it without a mutex.
        self.entries = [entry]
        #: whether any of those who entered wants it to be renewed
        self.renews = entry.renews
        #: who is still in earlier holds of the same owner, which were lost
        self.earlier_entries: list[Entrant] = []
        #: why it is gone although its owner has not left yet; a lost hold stays lost
        self.lost: str | None = None
        #: whether all who entered have ended without leaving: then it is not renewed any more
        self.orphaned = False
        #: whether it is not to be renewed any more, so that it ends with its lease
        self.renewal_stopped = False
        #: whether a renewal is under way, and whether the last one had no answer
        self.renewing = False
        self.renewal_failed = False
        #: whether it was logged that half of the lease is over without an answer to its renewal
        self.warned = False
        usual = claim.duration == settings.lease
        self._interval = settings.renew if usual else settings.interval(claim.duration)
        #: when it is to be renewed, counted from when the last renewal was sent
        self.renew_at = lease.deadline - claim.duration * RELIED_ON + self._interval
        #: the end about which the backend was asked already, once for each
        self._confirmed_until: float | None = None

    # Who is inside

    @property
    def entered(self) -> int:
        """How often it was entered by a thread or task and not left."""
        return self.count - sum(entry.until_commit for entry in self.entries)

    def keeps_out(self, entry: Entrant) -> bool:
        """Return whether a job inside keeps someone out who would otherwise enter once more.

        A task and the jobs that it awaits have one hold, but not at the same time: a job goes on
        beside others, and beside a task whose await was cancelled. Readers share it.
        """
        claim = self.lease.claim
        shares = self.named or entry.until_commit or claim.seats < (claim.limit or 1)
        if shares or any(inside.is_alive == entry.is_alive for inside in self.entries):
            return False
        # The other pieces of work of the current thread stand still for the caller.
        return any(
            inside.work is not None and inside.is_alive() and not inside.work.is_here
            for inside in self.entries
        )

    def enter(self, entry: Entrant) -> None:
        """Enter once more. A named owner may do so in several threads and tasks."""
        of_lock = [one for one in self.entries if one.lock is entry.lock]
        known = next((one for one in of_lock if one.is_alive == entry.is_alive), None)
        entries = self.entries if known else [*self.entries, entry]
        renews, at_least = self.renews or entry.renews, max(self.at_least, entry.at_least)
        # No call from here on, so an interrupt finds all of it done or nothing.
        if known is not None:
            known.count += 1
        self.entries, self.renews, self.at_least = entries, renews, at_least
        self.orphaned = self.renewal_stopped = False
        self.count += 1
        entry.has_entered = True

    def leave(self, lock: object, liveness: Callable[[], bool], left: Left | None = None) -> None:
        """Leave once; the terms on which it was entered by this Lock object end with that.

        If it was not entered by this Lock object, those of the last entry of this thread or task
        end; if there is none either, all terms go on.
        """
        self.count -= 1
        if left is not None:
            left.append(True)
        if not self.count:
            self._forget_works(self.entries)
            return
        of_lock = [entry for entry in self.entries if entry.lock is lock]
        of_caller = [entry for entry in self.entries if entry.is_alive == liveness]
        candidates = [entry for entry in of_lock if entry in of_caller] or of_lock or of_caller
        if candidates:
            self._set_entries(_once_less(self.entries, candidates[-1]))

    def remove(self, entries: Sequence[Entrant]) -> None:
        """Take out those who can release it no more; it is orphaned if nobody else is inside."""
        others = [entry for entry in self.entries if entry not in entries]
        if others:
            self.count -= sum(entry.count for entry in entries)
            self._set_entries(others)
        else:
            self.orphaned = True

    def _set_entries(self, entries: list[Entrant]) -> None:
        gone = [entry for entry in self.entries if entry not in entries]
        self.entries = entries
        self.renews = any(entry.renews for entry in entries)
        self._forget_works(gone)

    def _forget_works(self, entries: list[Entrant]) -> None:
        for entry in entries:
            if (work := entry.work) is not None and not any(
                other.work is work for other in self.entries if other not in entries
            ):
                work.finished(self)

    def is_only_in_earlier(self, liveness: Liveness) -> bool:
        """Return whether this thread or task is in an earlier hold only, not in this one."""
        return all(entry.is_alive != liveness for entry in self.entries) and any(
            entry.is_alive == liveness for entry in self.earlier_entries
        )

    def leave_earlier(self, liveness: Liveness, left: Left | None) -> None:
        """Leave one of the earlier holds once."""
        entries = self.earlier_entries
        entry = next(entry for entry in entries if entry.is_alive == liveness)
        self.earlier_entries = _once_less(entries, entry)
        if left is not None:
            left.append(True)

    def set_orphaned(self) -> None:
        """Note that all who entered have ended."""
        for entry in self.entries:
            entry.is_alive = _ended

    @property
    def alive(self) -> bool:
        """Whether any of those who entered still runs."""
        return any(entry.is_alive() for entry in self.entries)

    @property
    def on_lost(self) -> list[OnLost]:
        """The callbacks for its loss, each once."""
        callbacks: list[OnLost] = []
        for entry in self.entries:
            if entry.on_lost is not None and entry.on_lost not in callbacks:
                callbacks.append(entry.on_lost)
        return callbacks

    # Its time

    @property
    def needs_renewal(self) -> bool:
        """Whether it is to be renewed, and its loss would be somebody's emergency."""
        return self.renews and not self.orphaned and not self.renewal_stopped

    @property
    def lost_for_good(self) -> bool:
        """Whether no answer that comes later brings the hold back."""
        return self.lost is not None or clock() >= min(self.lease.deadline, self.time_limit)

    def expiry_reason(self) -> str | None:
        """Return why it is over by the local clock, None while it is not."""
        now = clock()
        if now >= self.lease.deadline:
            return LossReason.EXPIRED
        return LossReason.OVERDUE if now >= self.time_limit else None

    @property
    def next_check(self) -> float:
        """When the renewer has something to do for this hold: renew it, ask for it, or see it end.

        A named owner's hold that is not renewed here may go on in another process. So the backend
        is asked for it once before its end: if it goes on there, no loss is reported.
        """
        end = min(self.lease.deadline, self.time_limit)
        if self.renewing:
            half = self.lease.deadline - self.lease.claim.relied_on / 2
            return end if self.warned else min(end, half)
        if self.needs_renewal:
            return min(self.renew_at, end)
        if self.named and self._confirmed_until != end:
            return end - self._interval
        return end

    def note_asked(self) -> None:
        """Note that the backend is asked for it before its end."""
        self._confirmed_until = min(self.lease.deadline, self.time_limit)

    def can_be_renewed_with_others(self, now: float) -> bool:
        """Whether its renewal is due soon enough to go along with one that is due now."""
        return self.renew_at <= now + self._interval / 2

    def extend(self, deadline: float) -> None:
        """Note that the lease ends at a later local deadline."""
        deadline = max(deadline, self.lease.deadline)
        self.lease = self.lease.until(deadline)
        self.warned = False
        self.renew_at = deadline - self.lease.claim.relied_on + self._interval

    def to_renew(self, at_least: float = 0.0) -> Lease:
        """Return the lease as the backend is to renew it: not to end before ``at_least`` is over.

        This process goes on counting its own, shorter length.
        """
        at_least = max(self.at_least, at_least)
        rest = max(left(self.acquired_at + at_least, at_least), self.extended_until - clock())
        return self.lease.lasting(rest) if rest > self.lease.duration else self.lease

    @property
    def minimum_remaining(self) -> float:
        """Seconds for which the lock has to stay taken, whether its holder leaves it or not."""
        return left(self.acquired_at + self.at_least, self.at_least)

    # Asking the backend

    def free(self, deadline: float | None = None) -> str | None:
        """Free the lock, now or when its time is over; why it was gone, None if it was not."""
        if self.at_least and (rest := self.minimum_remaining):
            freed = self.backend.reserve_for(self.lease, rest, deadline)
        else:
            freed = self.backend.release(self.lease, deadline)
        return None if freed else self.ask_loss_reason(deadline)

    def ask(self, deadline: float | None = None) -> str | None:
        """Ask whether the lock is still held; why it is gone, or None. LockUnavailable if unknown.

        A named owner's adopted hold can be distinguished from a broken one only before somebody
        takes the lock.
        """
        return None if self.backend.verify(self.lease, deadline) else self.ask_loss_reason(deadline)

    def renew(self, at_least: float, deadline: float | None = None) -> tuple[bool, str | None]:
        """Renew the lease for its length, and at least until ``at_least`` is over.

        Returns whether the backend gave an answer, and why the hold is gone, None if it is not.
        """
        lease = self.to_renew(at_least)
        answer = self.backend.renew([lease], deadline).get(lease.nonce)
        if answer is None:
            return False, None
        return True, None if answer else self.ask_loss_reason(deadline)

    def ask_loss_reason(self, deadline: float | None = None) -> str:
        """Return why the backend no longer knows this hold; it is asked if the owner was named.

        Before the lease ends only a named owner can take the lock, in another process, unless it
        was broken. So if somebody has taken it since, it was handed over.
        """
        if not self.named:
            return LossReason.GONE
        try:
            token = self.backend.inspect_holder(self.lease.name, deadline).token
        except LockUnavailable:
            return LossReason.TAKEN_AWAY
        taken_since = token is not None and token > self.lease.token
        if taken_since and clock() < self.lease.deadline:
            return LossReason.HANDED_OVER
        return LossReason.TAKEN_AWAY

    # By what this process knows

    def info(self) -> LockInfo:
        """Return what this process knows of the lock, by its own clock, without asking anyone."""
        lease, held_for = self.lease, clock() - self.acquired_at
        return LockInfo(
            lease.name,
            self.backend.alias,
            State.HELD,
            owner=lease.owner,
            token=lease.token,
            since=datetime.now(UTC) - timedelta(seconds=held_for),
            held_for=held_for,
            remaining=lease.remaining,
            description=lease.claim.description,
            call_site=lease.claim.call_site,
            lease=lease.duration,
            renews=self.renews,
            kind=lease.claim.kind,
            slots=lease.claim.limit or 1,
            seats=lease.claim.seats,
        )

    def log_fields(self) -> dict[str, Any]:
        """Return the ``extra`` of a record of the log about this hold."""
        held = clock() - self.acquired_at
        return self.lease.log_fields(self.backend.alias, self.waited, held)

    def loss_reason(self) -> str | None:
        """Return why the lock is gone, None while it is held. Asks nobody but this process."""
        if self.lost is not None:
            return self.lost
        return self.expiry_reason() or self.backend.loss_reason(self.lease)

    def lost_error(self) -> LockLost | None:
        """Return the error that tells of the loss, None while the lock is held."""
        if (reason := self.loss_reason()) is None:
            return None
        lease = self.lease
        return LockLost(
            f"{lease.claim.kind} {lease.name!r} (token {lease.token}) was lost: {reason}"
        )


def _once_less(entries: list[Entrant], one: Entrant) -> list[Entrant]:
    others = [entry for entry in entries if entry is not one]
    one.count -= 1  # no call from here on, so an interrupt finds all of it done or nothing
    return entries if one.count else others


def _ended() -> bool:
    return False
