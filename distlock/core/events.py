"""Tells the log and the signals' receivers what happens to locks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

from django.dispatch import Signal

from distlock.backends.base import BaseBackend
from distlock.concurrency.reentry import calls_others
from distlock.concurrency.steps import Nested
from distlock.concurrency.threads import call_and_log, thread_logger
from distlock.core.held import BROKEN, HANDED_OVER, HeldLease
from distlock.signals import lock_acquired, lock_broken, lock_lost, lock_released
from distlock.types.lease import Lease

logger = logging.getLogger("distlock")

#: The ``extra`` of a record of the log, see log_fields(); None for what a lease says.
Fields: TypeAlias = Mapping[str, Any] | None

_VERBS = {lock_acquired: "acquired", lock_released: "released", lock_broken: "broke"}


def event(signal: Signal, hold: HeldLease) -> Nested | None:
    """Return the step that tells of an event, for a thread or a task; None if nobody listens."""
    if not signal.receivers and not logger.isEnabledFor(logging.DEBUG):
        return None  # nearly everywhere
    told = signal, hold.backend, hold.lease, hold.log_fields()
    return Nested(partial(send_event, *told), partial(asend_event, *told))


@calls_others
def send_event(signal: Signal, backend: BaseBackend, lease: Lease, fields: Fields = None) -> None:
    """Log the event and send its signal; an error of a receiver is logged, not raised.

    ``fields`` are the ``extra`` of the record, None for what the lease says.
    """
    _log(signal, backend, lease, fields)
    signal.send_robust(type(backend), lease=lease, using=backend.alias)


@calls_others
async def asend_event(
    signal: Signal, backend: BaseBackend, lease: Lease, fields: Fields = None
) -> None:
    """See send_event()."""
    _log(signal, backend, lease, fields)
    await signal.asend_robust(type(backend), lease=lease, using=backend.alias)


@calls_others
def send_loss(hold: HeldLease, reason: str) -> None:
    """Log a loss, call every ``on_lost``, send ``lock_lost``; a hand-over is none."""
    lease, fields = hold.lease, hold.log_fields()
    if reason is BROKEN:
        try:
            hold.lost = reason = hold.why_gone()
        except Exception:  # it is lost all the same
            thread_logger.exception("could not ask why %r was lost", lease.name, extra=fields)
    if reason is HANDED_OVER:
        thread_logger.info("%s: %s", _described(lease, hold.backend), reason, extra=fields)
        return
    # A lease that nobody was to renew ends as planned; any other loss is somebody's emergency.
    level = logging.ERROR if hold.needs_renewal else logging.INFO
    thread_logger.log(level, "lost %s: %s", _described(lease, hold.backend), reason, extra=fields)
    for on_lost in hold.on_lost:
        what = lease.claim.kind, lease.name
        call_and_log(partial(on_lost, lease), "on_lost of %s %r failed", *what, extra=fields)
    lock_lost.send_robust(type(hold.backend), lease=lease, using=hold.backend.alias)


def log_unreleased(hold: HeldLease, call_site: str) -> None:
    """Log that a thread, a task or a piece of work has ended without releasing a lock."""
    thread_logger.error(
        "%s ended without releasing %s %r on %r%s: %s",
        hold.lease.owner,
        hold.lease.claim.kind,
        hold.lease.name,
        hold.backend.alias,
        f", acquired at {call_site}" if call_site else "",
        f"it is not renewed any more, and ends in {hold.lease.remaining:.0f} s"
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
