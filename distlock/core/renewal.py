"""Keeps every lease of this process alive, and tells of those that are gone.

The thread of the timers watches the time for all backends. It never talks to a backend: renewals
run on threads of their own, so that a server that does not answer delays neither the leases of
another nor the news that a lease has ended.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import start, thread_logger
from distlock.concurrency.timers import Timer, call_after
from distlock.concurrency.workers import WorkerThreads
from distlock.core.events import log_unreleased, send_loss
from distlock.core.held import BROKEN, ENDED, OVERDUE, HeldLease
from distlock.core.renewal_steps import RenewalSteps
from distlock.exceptions import LockError
from distlock.types.lease import RELIED_ON, Lease

#: Seconds until a renewal that failed is tried again: this part of the lease, within these limits.
_RETRY_PART, _SHORTEST_RETRY, _LONGEST_RETRY = 1 / 30, 0.02, 1.0
#: Callbacks are other people's code and may take their time; so many may do so at once.
_MOST_NOTIFIERS = 32


class LeaseRenewer:
    """The leases of a process that are to be kept alive, by their nonce.

    A lease is here until it is dropped or lost. One timer is set for the first thing to do. It
    stays when its lease is dropped: the next lease, which is due later, can use it.
    """

    def __init__(self) -> None:
        #: protects this and HeldLeases; it is taken for moments only
        self.mutex = threading.Lock()
        self._running: dict[str, HeldLease] = {}
        #: The one timer, and its time. A lease that is due earlier sets a new one in its place.
        self._timer: Timer | None = None
        self._wakes_at = math.inf
        self._steps = RenewalSteps(self._renew)
        self._notifiers = WorkerThreads(_MOST_NOTIFIERS, "distlock-lost", for_callbacks=True)
        self._outages = OutageLog()

    def keep(self, hold: HeldLease) -> None:
        """Keep a lease alive until it is dropped or lost. The caller has the mutex."""
        hold.backend.listener = self
        self._running[hold.lease.claim.nonce] = hold
        if hold.renew_at < self._wakes_at or hold.time_limit < self._wakes_at:
            self.reschedule(hold)

    def renewed(self) -> list[HeldLease]:
        """Return the holds that are kept."""
        return list(self._running.copy().values())

    def reschedule(self, hold: HeldLease) -> None:
        """Note that a lease may have to be renewed earlier. The caller has the mutex."""
        if hold.lease.nonce in self._running and hold.next_check < self._wakes_at:
            self._wake_at(hold.next_check)

    def drop(self, hold: HeldLease) -> None:
        """Renew a lease no more. The caller has the mutex."""
        self._running.pop(hold.lease.claim.nonce, None)

    def extend(self, hold: HeldLease, sent_at: float, seconds: float) -> None:
        """Note that a renewal for ``seconds``, sent at ``sent_at``, was answered with yes."""
        with self.mutex:
            if not hold.ended:  # what is lost stays so
                hold.extend(sent_at + seconds * RELIED_ON)
                self.reschedule(hold)

    def lose(self, hold: HeldLease, reason: str) -> None:
        """Tell that a lease is gone; once, and not of one that was dropped."""
        with self.mutex:
            if self._running.pop(hold.lease.nonce, None) is None:
                return
            hold.lost = reason
        try:
            self.tell_loss(hold, reason)
        finally:
            if reason == OVERDUE:  # the backend would keep it for the rest of its lease
                rest = hold.minimum_remaining
                hold.backend.cleanup.add(hold.lease.claim, hold.free if rest else None)

    def tell_loss(self, hold: HeldLease, reason: str) -> None:
        """Tell that a lease is gone, also if it was dropped before; the caller does not wait."""
        hold.lost = reason
        try:
            try:
                hold.backend.discard_local(hold.lease)
            finally:
                hold.on_end()
        finally:  # whatever fails, this is told: it is not tried again
            try:
                self._notifiers.submit(partial(_send_loss, hold, reason))
            except (RuntimeError, MemoryError):  # no thread can be had: the caller has to wait
                _send_loss(hold, reason)

    # What a backend learns by itself, see Listener

    def lease_lost(self, lease: Lease, reason: str) -> None:
        """Note that a lease is gone."""
        if hold := self._running.get(lease.nonce):
            self.lose(hold, reason)

    def lease_abandoned(self, nonce: str) -> None:
        """Note that all who hold a lease have ended, and will not release it.

        The garbage collector may call this, in a thread that has our mutex.
        """
        if hold := self._running.get(nonce):
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
                due = tuple(hold for hold in self._running.values() if hold.next_check <= now)
            self._end(due)
            self._warn_of_silence(due)
            self._ask_for(due)
            self._renew_due(due)
        finally:
            with self.mutex:
                first = min((hold.next_check for hold in self._running.values()), default=math.inf)
                if first < self._wakes_at:
                    self._wake_at(first)

    def _end(self, due: Sequence[HeldLease]) -> None:
        for hold in due:
            if (reason := hold.over()) is not None:
                try:
                    self.lose(hold, reason)
                except Exception:  # the others must be told, and renewed, all the same
                    _log_untold(hold)

    def _ask_for(self, due: Sequence[HeldLease]) -> None:
        """Ask for holds of named owners that are not renewed and will end soon."""
        batches = defaultdict(list)
        with self.mutex:
            running = (hold for hold in due if hold.lease.nonce in self._running)
            for hold in tuple(hold for hold in running if hold.named and not hold.needs_renewal):
                hold.note_asked()
                batches[hold.backend].append(hold)
        for batch in batches.values():
            with suppress(RuntimeError):  # no more threads can be had: its end counts as a loss
                start(self._ask, "distlock-renewal", batch)

    def _warn_of_silence(self, due: Sequence[HeldLease]) -> None:
        """Log it if half of a lease is over, and its renewal has had no answer."""
        silent = defaultdict(list)
        with self.mutex:
            for hold in tuple(hold for hold in due if hold.renewing and not hold.ended):
                hold.warned = True
                silent[hold.backend.alias].append(hold)
        for alias, holds in silent.items():
            self._outages.note_silence(alias, holds)

    def _renew_due(self, due: Sequence[HeldLease]) -> None:
        """Renew what is due, and with it what is due soon: many leases take few statements.

        Leases that had no answer the last time are renewed apart from the others, so that what held
        them up holds up no others.
        """
        now = clock()
        kinds = {(hold.backend, hold.renewal_failed) for hold in due}
        batches = defaultdict(list)
        orphans = []
        with self.mutex:
            soon = (
                hold
                for hold in self._running.values()
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
            except Exception as error:  # no more threads, or no memory, can be had
                self._outages.note_failure(backend.alias, error, batch)
                self._note_answers(batch, {}, now)
        for hold in orphans:
            log_unreleased(hold, hold.entries[-1].call_site)

    # On threads that may wait for a backend

    def _ask(self, batch: Sequence[HeldLease]) -> None:
        for hold in batch:
            try:
                if reason := hold.ask(hold.lease.deadline):
                    self.lose(hold, reason)
            except LockError:
                pass  # its end counts as a loss
            except Exception:  # the others must be asked for all the same
                fields = hold.log_fields()
                thread_logger.exception("could not ask for %r", hold.lease.name, extra=fields)

    def _renew(
        self, backend: BaseBackend, step: Sequence[HeldLease], others_wait: bool = False
    ) -> None:
        # Those that were left meanwhile need it no more.
        if not (batch := [hold for hold in step if hold.lease.nonce in self._running]):
            return
        sent_at = clock()
        answers: Mapping[str, bool] = {}
        try:
            deadline = min(hold.lease.deadline for hold in batch)
            if others_wait:  # what holds these up must not take all of the others' time
                deadline = (sent_at + deadline) / 2
            answers = backend.renew([hold.to_renew() for hold in batch], deadline)
        except Exception as error:  # one failure is no loss; the deadline decides
            self._outages.note_failure(backend.alias, error, batch)
        else:
            if answers:  # rows that are locked get none
                self._outages.note_success(backend.alias, batch)
        finally:
            self._note_answers(batch, answers, sent_at)
        for hold in batch:
            answer = answers.get(hold.lease.nonce)
            if answer is False:
                self.lose(hold, backend.known_lost(hold.lease) or BROKEN)
            elif answer and hold.ended:
                # The server renewed the lease after we had counted it as ended. Free it, or others
                # wait for nobody.
                self.lose(hold, hold.over() or ENDED)
                with suppress(LockError):
                    if hold.minimum_remaining:
                        hold.free()
                    else:
                        backend.cancel(hold.lease.claim)

    def _note_answers(
        self, batch: Sequence[HeldLease], answers: Mapping[str, bool], sent_at: float
    ) -> None:
        with self.mutex:
            for hold in batch:
                hold.renewing = False
                hold.renewal_failed = hold.lease.nonce not in answers
                if answers.get(hold.lease.nonce) and not hold.ended:
                    hold.extend(hold.lease.renewed(sent_at).deadline)
                else:
                    retry = hold.lease.duration * _RETRY_PART
                    hold.renew_at = clock() + min(max(retry, _SHORTEST_RETRY), _LONGEST_RETRY)
                self.reschedule(hold)


def _send_loss(hold: HeldLease, reason: str) -> None:
    try:
        send_loss(hold, reason)
    except Exception:  # the losses of other holds must still be reported
        _log_untold(hold)


def _log_untold(hold: HeldLease) -> None:
    name, fields = hold.lease.name, hold.log_fields()
    thread_logger.exception("could not tell of the loss of %r", name, extra=fields)


@dataclass(slots=True)
class _Outage:
    failures: int = 0
    pause: float = 1.0
    next_line: float = 0.0
    last: float = 0.0


class OutageLog:
    """A line when renewals of a backend begin to fail, ever rarer ones while they do, one at last.

    Renewals are tried again several times a second where leases are short. The fields of a record
    are those of the hold whose lease ends first.
    """

    #: The longest time between two lines, in seconds.
    LONGEST_PAUSE = 60.0

    def __init__(self) -> None:
        self._outages: dict[str, _Outage] = {}

    def note_failure(self, alias: str, error: Exception, holds: Sequence[HeldLease]) -> None:
        """Log a renewal that failed, unless a line of the same outage was written just before."""
        now = clock()
        outage = self._outages.get(alias)
        if outage is None or now - outage.last > 2 * self.LONGEST_PAUSE:
            # Nothing was renewed in between: what was to be renewed had been lost or left.
            outage = self._outages[alias] = _Outage()
        outage.failures += 1
        outage.last = now
        if now < outage.next_line:
            return
        outage.next_line = now + outage.pause
        outage.pause = min(2 * outage.pause, self.LONGEST_PAUSE)
        times = f" {outage.failures} times" if outage.failures > 1 else ""
        text, fields = "renewal on %r failed%s, will try again: %s", _first(holds).log_fields()
        thread_logger.warning(text, alias, times, error, extra=fields)

    def note_silence(self, alias: str, holds: Sequence[HeldLease]) -> None:
        """Log that renewals have had no answer for half of their lease, once in an outage."""
        now, outage = clock(), self._outages.get(alias)
        if outage is not None and now - outage.last <= 2 * self.LONGEST_PAUSE:
            return
        self._outages[alias] = _Outage(last=now)
        first = _first(holds)
        thread_logger.warning(
            "renewal on %r has had no answer yet for %d of its leases, half of which is over;"
            " the first to end is that of %s %r, in %.3g s",
            alias,
            len(holds),
            first.lease.claim.kind,
            first.lease.name,
            first.lease.remaining,
            extra=first.log_fields(),
        )

    def note_success(self, alias: str, holds: Sequence[HeldLease]) -> None:
        """Log a renewal that had an answer, if the last one had none."""
        if outage := self._outages.pop(alias, None):
            text, fields = "renewal on %r works again, failures: %d", _first(holds).log_fields()
            thread_logger.warning(text, alias, outage.failures, extra=fields)


def _first(holds: Sequence[HeldLease]) -> HeldLease:
    return min(holds, key=attrgetter("lease.deadline"))
