"""Tells the log and the signals' receivers what happens to locks, and to their renewal."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from django.dispatch import Signal

from distlock.backends.base import BaseBackend, LossReason
from distlock.concurrency.clock import clock
from distlock.concurrency.reentry import calls_others
from distlock.concurrency.steps import Nested
from distlock.concurrency.threads import call_and_log, thread_logger
from distlock.exceptions import BodyEnded
from distlock.runtime.hold import Hold
from distlock.signals import lock_acquired, lock_broken, lock_lost, lock_released
from distlock.types.lease import Lease

logger = logging.getLogger("distlock")

#: The ``extra`` of a record of the log, see log_fields(); None for what a lease says.
Fields: TypeAlias = Mapping[str, Any] | None

_VERBS: dict[Signal, str] = {
    lock_acquired: "acquired",
    lock_released: "released",
    lock_broken: "broke",
}


def event(signal: Signal, hold: Hold) -> Nested | None:
    """Return the step that tells of an event, for a thread or a task; None if nobody listens."""
    if not signal.receivers and not logger.isEnabledFor(logging.DEBUG):
        return None  # nearly everywhere
    told = signal, hold.backend, hold.lease, hold.log_fields()
    return Nested(partial(send_event, *told), partial(asend_event, *told))


@calls_others
def send_event(signal: Signal, backend: BaseBackend, lease: Lease, fields: Fields = None) -> None:
    """Log the event and send its signal; an error of a receiver is logged, not raised.

    BodyEnded is raised: it came while a receiver ran, and is the caller's. ``fields`` are the
    ``extra`` of the record, None for what the lease says.
    """
    _log(signal, backend, lease, fields)
    _raise_loss(signal.send_robust(type(backend), lease=lease, using=backend.alias))


@calls_others
async def asend_event(
    signal: Signal, backend: BaseBackend, lease: Lease, fields: Fields = None
) -> None:
    """See send_event()."""
    _log(signal, backend, lease, fields)
    _raise_loss(await signal.asend_robust(type(backend), lease=lease, using=backend.alias))


def _raise_loss(responses: Iterable[tuple[object, object]]) -> None:
    for _, response in responses:
        if isinstance(response, BodyEnded):
            raise response


@calls_others
def send_loss(hold: Hold, reason: str) -> None:
    """Log a loss, call every ``on_lost``, send ``lock_lost``; a hand-over is none."""
    lease, fields = hold.lease, hold.log_fields()
    if reason is LossReason.GONE:
        try:
            hold.lost = reason = hold.ask_loss_reason()
        except Exception:  # it is lost all the same
            thread_logger.exception("could not ask why %r was lost", lease.name, extra=fields)
    if reason is LossReason.HANDED_OVER:
        thread_logger.info("%s: %s", _described(lease, hold.backend), reason, extra=fields)
        return
    # A lease that nobody was to renew ends as planned; any other loss is somebody's emergency.
    level = logging.ERROR if hold.needs_renewal else logging.INFO
    thread_logger.log(level, "lost %s: %s", _described(lease, hold.backend), reason, extra=fields)
    for on_lost in hold.on_lost:
        what = lease.claim.kind, lease.name
        call_and_log(partial(on_lost, lease), "on_lost of %s %r failed", *what, extra=fields)
    lock_lost.send_robust(type(hold.backend), lease=lease, using=hold.backend.alias)


def log_unreleased(hold: Hold, call_site: str) -> None:
    """Log that a thread, a task or a piece of work has ended without releasing a lock."""
    thread_logger.error(
        "%s ended without releasing %s %r on %r%s: %s",
        hold.lease.owner,
        hold.lease.claim.kind,
        hold.lease.name,
        hold.backend.alias,
        f", acquired at {call_site}" if call_site else "",
        f"it is no longer renewed, and ends in {hold.lease.remaining:.0f} s"
        if hold.orphaned
        else "it is still held around that",
        extra=hold.log_fields(),
    )


@calls_others
def _log(signal: Signal, backend: BaseBackend, lease: Lease, fields: Fields) -> None:
    level = logging.WARNING if signal is lock_broken else logging.DEBUG
    if logger.isEnabledFor(level):
        extra = fields or lease.log_fields(backend.alias)
        logger.log(level, "%s %s", _VERBS[signal], _described(lease, backend), extra=extra)


def _described(lease: Lease, backend: BaseBackend) -> str:
    lock = f"{lease.claim.kind} {lease.name!r} on {backend.alias!r}"
    return f"{lock}, token {lease.token}, owner {str(lease.owner)!r}"


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

    def note_failure(self, alias: str, error: Exception, holds: Sequence[Hold]) -> None:
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

    def note_silence(self, alias: str, holds: Sequence[Hold]) -> None:
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

    def note_success(self, alias: str, holds: Sequence[Hold]) -> None:
        """Log a renewal that had an answer, if the last one had none."""
        if outage := self._outages.pop(alias, None):
            text, fields = "renewal on %r works again, failures: %d", _first(holds).log_fields()
            thread_logger.warning(text, alias, outage.failures, extra=fields)


def _first(holds: Sequence[Hold]) -> Hold:
    return min(holds, key=attrgetter("lease.deadline"))
