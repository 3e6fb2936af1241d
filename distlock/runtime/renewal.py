"""Keeps every lease of this process alive, and tells of those that are gone.

The thread of the timers watches the time for all backends. It never talks to a backend: renewals
run on threads of their own, so that a server that does not answer delays neither the leases of
another nor the news that a lease has ended.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from distlock.backends.base import BaseBackend, LossReason
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import Timer, call_after, start, thread_logger
from distlock.concurrency.workers import WorkerThreads
from distlock.exceptions import LockError
from distlock.runtime.events import OutageLog, log_unreleased, send_loss
from distlock.runtime.hold import Hold
from distlock.types.lease import RELIED_ON, Lease

#: Seconds until a renewal that failed is tried again: this part of the lease, within these limits.
_RETRY_PART, _SHORTEST_RETRY, _LONGEST_RETRY = 1 / 30, 0.02, 1.0
#: Callbacks are other people's code and may take their time; so many may do so at once.
_MOST_NOTIFIERS = 32

#: Leases that are renewed in one step. In one step of 10,000 all wait for the last one, and a busy
#: machine may not do that in time; many small steps take longer than few.
STEP = 400
#: Threads that renew leases of one backend at once, so that a step that has no answer does not hold
#: up the others for as long as it gets for that.
_MOST_THREADS = 4

#: Renews some leases of a backend; whether others wait for that.
Renew: TypeAlias = Callable[[BaseBackend, Sequence[Hold], bool], object]


class LeaseRenewer:
    """The leases of a process that are to be kept alive, by their nonce.

    A lease is here until it is taken out or lost. One timer is set for the first thing to do. It
    stays when its lease is taken out: the next lease, which is due later, can use it.
    """

    def __init__(self) -> None:
        #: protects this and Holds; it is taken for moments only
        self.mutex = threading.Lock()
        #: The leases, by nonce. A thread with the mutex may take one out, which ends its renewal.
        self.kept: dict[str, Hold] = {}
        #: The one timer, and its time. A lease that is due earlier sets a new one in its place.
        self._timer: Timer | None = None
        self._wakes_at = math.inf
        self._steps = RenewalSteps(self._renew)
        self._notifiers = WorkerThreads(_MOST_NOTIFIERS, "distlock-lost", for_callbacks=True)
        self._outages = OutageLog()

    def keep(self, hold: Hold) -> None:
        """Keep a lease alive until it is taken out or lost. The caller has the mutex."""
        hold.backend.listener = self
        self.kept[hold.lease.claim.nonce] = hold
        if hold.renew_at < self._wakes_at or hold.time_limit < self._wakes_at:
            self.reschedule(hold)

    def renewed(self) -> list[Hold]:
        """Return all leases that are kept alive, with those that nobody enters."""
        return list(self.kept.copy().values())

    def reschedule(self, hold: Hold) -> None:
        """Note that a lease may have to be renewed earlier. The caller has the mutex."""
        if hold.lease.nonce in self.kept and hold.next_check < self._wakes_at:
            self._wake_at(hold.next_check)

    def extend(self, hold: Hold, sent_at: float, seconds: float) -> None:
        """Note that a renewal for ``seconds``, sent at ``sent_at``, was answered with yes."""
        with self.mutex:
            if not hold.lost_for_good:  # what is lost stays so
                hold.extend(sent_at + seconds * RELIED_ON)
                self.reschedule(hold)

    def lose(self, hold: Hold, reason: str) -> None:
        """Tell that a lease is gone; once, and not of one that was taken out."""
        with self.mutex:
            if self.kept.pop(hold.lease.nonce, None) is None:
                return
            hold.lost = reason
        try:
            self.tell_loss(hold, reason)
        finally:
            if reason == LossReason.OVERDUE:  # the backend would keep it for the rest of its lease
                rest = hold.minimum_remaining
                hold.backend.cleanup.add(hold.lease.claim, hold.free if rest else None)

    def tell_loss(self, hold: Hold, reason: str) -> None:
        """Tell that a lease is gone, also if it was taken out before; the caller does not wait."""
        hold.lost = reason
        try:
            try:
                hold.backend.discard_local(hold.lease)
            finally:
                hold.on_end()
        finally:  # report the loss after any failure: it is not tried again
            try:
                self._notifiers.submit(partial(_send_loss, hold, reason))
            except (RuntimeError, MemoryError):  # no thread can be started: the caller has to wait
                _send_loss(hold, reason)

    # Reports of a backend, see Listener

    def lease_lost(self, lease: Lease, reason: str) -> None:
        """Note that a lease is gone."""
        if hold := self.kept.get(lease.nonce):
            self.lose(hold, reason)

    def lease_orphaned(self, nonce: str) -> None:
        """Note that all who hold a lease have ended, and will not release it.

        The garbage collector may call this, in a thread that has our mutex.
        """
        if hold := self.kept.get(nonce):
            hold.set_orphaned()

    # On the thread of the timers

    def _wake_at(self, when: float) -> None:
        earlier, self._timer = self._timer, call_after(when - clock(), self._check)
        self._wakes_at = when
        if earlier is not None:
            earlier.cancel()

    def _check(self) -> None:
        """See to all leases that are due, and set the timer for the next one."""
        try:
            with self.mutex:
                self._wakes_at = math.inf  # who is added from here on sets a timer of its own
                now = clock()
                due = tuple(hold for hold in self.kept.values() if hold.next_check <= now)
            self._end(due)
            self._warn_of_silence(due)
            self._ask_for(due)
            self._renew_due(due)
        finally:
            with self.mutex:
                first = min((hold.next_check for hold in self.kept.values()), default=math.inf)
                if first < self._wakes_at:
                    self._wake_at(first)

    def _end(self, due: Sequence[Hold]) -> None:
        for hold in due:
            if (reason := hold.expiry_reason()) is not None:
                try:
                    self.lose(hold, reason)
                except Exception:  # the others must be reported, and renewed, all the same
                    _log_untold(hold)

    def _ask_for(self, due: Sequence[Hold]) -> None:
        """Ask for holds of named owners that are not renewed and will end soon."""
        batches = defaultdict(list)
        with self.mutex:
            running = (hold for hold in due if hold.lease.nonce in self.kept)
            for hold in tuple(hold for hold in running if hold.named and not hold.needs_renewal):
                hold.note_asked()
                batches[hold.backend].append(hold)
        for batch in batches.values():
            with suppress(RuntimeError):  # no more threads: its end counts as a loss
                start(self._ask, "distlock-renewal", batch)

    def _warn_of_silence(self, due: Sequence[Hold]) -> None:
        """Log it if half of a lease is over, and its renewal has had no answer."""
        silent = defaultdict(list)
        with self.mutex:
            for hold in tuple(hold for hold in due if hold.renewing and not hold.lost_for_good):
                hold.warned = True
                silent[hold.backend.alias].append(hold)
        for alias, holds in silent.items():
            self._outages.note_silence(alias, holds)

    def _renew_due(self, due: Sequence[Hold]) -> None:
        """Renew what is due, and with it what is due soon: many leases take few statements.

        Leases whose last renewal got no answer are renewed separately, so that the same problem
        does not delay the other leases.
        """
        now = clock()
        kinds = {(hold.backend, hold.renewal_failed) for hold in due}
        batches = defaultdict(list)
        orphans = []
        with self.mutex:
            soon = (
                hold
                for hold in self.kept.values()
                if (hold.backend, hold.renewal_failed) in kinds
                and hold.needs_renewal
                and not hold.renewing
                and hold.can_be_renewed_with_others(now)
            )
            for hold in tuple(soon):
                if hold.alive:
                    hold.renewing = True
                    batches[hold.backend, hold.renewal_failed].append(hold)
                else:
                    hold.orphaned = True
                    orphans.append(hold)
        for (backend, apart), batch in batches.items():
            try:
                self._steps.add(backend, apart, batch)
            except Exception as error:  # no more threads, or no memory
                self._outages.note_failure(backend.alias, error, batch)
                self._note_answers(batch, {}, now)
        for hold in orphans:
            log_unreleased(hold, hold.entries[-1].call_site)

    # On threads that may wait for a backend

    def _ask(self, batch: Sequence[Hold]) -> None:
        for hold in batch:
            try:
                if reason := hold.ask(hold.lease.deadline):
                    self.lose(hold, reason)
            except LockError:
                pass  # its end counts as a loss
            except Exception:  # the others must be asked for all the same
                fields = hold.log_fields()
                thread_logger.exception("could not ask for %r", hold.lease.name, extra=fields)

    def _renew(self, backend: BaseBackend, step: Sequence[Hold], others_wait: bool = False) -> None:
        # Those that were left meanwhile need it no more; one that is kept again is due at once.
        with self.mutex:
            for hold in step:
                hold.renewing = hold.lease.nonce in self.kept
        if not (batch := [hold for hold in step if hold.renewing]):
            return
        sent_at = clock()
        answers: Mapping[str, bool] = {}
        try:
            deadline = min(hold.lease.deadline for hold in batch)
            if others_wait:  # what holds these up must not take all of the others' time
                deadline = (sent_at + deadline) / 2
            answers = backend.renew([hold.to_renew() for hold in batch], deadline)
        except Exception as error:  # one failure does not lose the lease; the deadline decides
            self._outages.note_failure(backend.alias, error, batch)
        else:
            if answers:  # rows that are locked get none
                self._outages.note_success(backend.alias, batch)
        finally:
            self._note_answers(batch, answers, sent_at)
        for hold in batch:
            answer = answers.get(hold.lease.nonce)
            if answer is False:
                self.lose(hold, backend.loss_reason(hold.lease) or LossReason.GONE)
            elif answer and hold.lost_for_good:
                # The server renewed the lease after we had counted it as ended. Free it, or others
                # wait for nobody.
                self.lose(hold, hold.expiry_reason() or LossReason.EXPIRED)
                with suppress(LockError):
                    if hold.minimum_remaining:
                        hold.free()
                    else:
                        backend.cancel(hold.lease.claim)

    def _note_answers(
        self, batch: Sequence[Hold], answers: Mapping[str, bool], sent_at: float
    ) -> None:
        with self.mutex:
            for hold in batch:
                hold.renewing = False
                hold.renewal_failed = hold.lease.nonce not in answers
                if answers.get(hold.lease.nonce) and not hold.lost_for_good:
                    hold.extend(hold.lease.renewed(sent_at).deadline)
                else:
                    retry = hold.lease.duration * _RETRY_PART
                    hold.renew_at = clock() + min(max(retry, _SHORTEST_RETRY), _LONGEST_RETRY)
                self.reschedule(hold)


def _send_loss(hold: Hold, reason: str) -> None:
    try:
        send_loss(hold, reason)
    except Exception:  # the losses of other holds must still be reported
        _log_untold(hold)


def _log_untold(hold: Hold) -> None:
    name, fields = hold.lease.name, hold.log_fields()
    thread_logger.exception("could not report the loss of %r", name, extra=fields)


@dataclass(slots=True)
class _RenewalLine:
    """Leases that are due, the nearest to its end last, and how many threads renew them."""

    holds: list[Hold] = field(default_factory=list)
    threads: int = 0


class RenewalSteps:
    """The leases of all backends that are due. Each backend has threads of its own for them."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        self._mutex = threading.Lock()
        self._lines: dict[tuple[BaseBackend, bool], _RenewalLine] = {}

    def add(self, backend: BaseBackend, apart: bool, holds: Sequence[Hold]) -> None:
        """Renew leases soon; ``apart`` from others of the backend, by threads of their own.

        If no thread can be started for them, raises the error of start(), and they are not renewed.
        """
        key = backend, apart
        with self._mutex:
            line = self._lines.setdefault(key, _RenewalLine())
            line.holds = sorted(
                [*line.holds, *holds], key=attrgetter("lease.deadline"), reverse=True
            )
            # The threads that run may all be waiting for an answer.
            steps = -(-len(line.holds) // STEP)
            most = min(line.threads + steps, _MOST_THREADS)
            while line.threads < most:
                try:
                    start(partial(self._work, key, line), "distlock-renewal")
                except Exception:  # RuntimeError or MemoryError: no thread can be started
                    if line.threads:
                        return  # those there are will do it
                    del self._lines[key]
                    raise
                line.threads += 1

    def _work(self, key: tuple[BaseBackend, bool], line: _RenewalLine) -> None:
        backend, _ = key
        while True:
            with self._mutex:
                step = line.holds[-STEP:]
                del line.holds[-STEP:]
                if not step:
                    line.threads -= 1
                    if not line.threads:
                        del self._lines[key]
                    return
                others_wait = bool(line.holds)
            try:
                self._renew(backend, step, others_wait)
            except Exception:  # the others must be renewed all the same
                fields = step[-1].log_fields()  # its lease ends first
                thread_logger.exception("a renewal on %r failed", backend.alias, extra=fields)
