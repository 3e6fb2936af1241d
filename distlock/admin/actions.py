"""What the admin does to locks: break holds, and sweep; and what it says of that.

A hold is broken only if it is still the one that the page has shown: its token is compared.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from django import forms
from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from distlock import fan_out
from distlock.admin.log import names_in_message, write_log
from distlock.admin.rows import HoldRef, LockRow
from distlock.backends.base import BaseBackend
from distlock.backends.seats import backend_name
from distlock.backends.shared import part_of, sweep_every_kind
from distlock.concurrency.clock import clock
from distlock.conf import locks
from distlock.core.events import send_event
from distlock.exceptions import LockError, LockUnavailable
from distlock.fan_out import call_backends, one_line
from distlock.signals import lock_broken
from distlock.types.lease import Kind
from distlock.types.query import DisplayStatus

logger = logging.getLogger("distlock")

#: Seconds that a page waits for a sweep; the sweep goes on after that.
SWEEP_TIMEOUT = 10.0
#: Seconds that the answer to a renewal may take.
_RENEWAL_ANSWER = 1.0


class ReasonField(forms.CharField):
    """Asks why. Without a reason nothing is done."""

    def __init__(self, *, label: Any = None, help_text: Any) -> None:
        super().__init__(
            label=label or gettext_lazy("Reason"),
            max_length=500,
            help_text=help_text,
            widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
            error_messages={"required": gettext_lazy("Please say why.")},
        )


class ReasonForm(forms.Form):
    """Asks why a hold is broken."""

    reason = ReasonField(
        help_text=gettext_lazy("It is written to the log with your name, the owner and the token.")
    )


#: The result of a forced release. "changed": the lock is no longer held under the token that the
#: page has shown; "unknown": the request was sent, but no answer came.
Outcome = Literal["released", "changed", "unknown", "not sent"]

#: The level and the sentence of the message about each outcome.
_MESSAGES: dict[Outcome, tuple[int, Any]] = {
    "released": (
        messages.SUCCESS,
        ngettext_lazy("%(count)d lock was released:", "%(count)d locks were released:", "count"),
    ),
    "changed": (
        messages.WARNING,
        ngettext_lazy(
            "%(count)d lock was not released, because it was no longer held under the token shown:",
            "%(count)d locks were not released, because they were no longer held under the tokens"
            " shown:",
            "count",
        ),
    ),
    "unknown": (
        messages.ERROR,
        ngettext_lazy(
            "%(count)d lock may have been released or not, because no answer came:",
            "%(count)d locks may have been released or not, because no answer came:",
            "count",
        ),
    ),
    "not sent": (
        messages.ERROR,
        ngettext_lazy(
            "%(count)d lock was not released, because its backend could not be asked:",
            "%(count)d locks were not released, because their backend could not be asked:",
            "count",
        ),
    ),
}


#: A hold, its lock as it is now (None if the backend failed), and the problem of the backend.
ChangedHold = tuple[HoldRef, LockRow | None, str]


def current_rows(refs: Sequence[HoldRef]) -> tuple[list[LockRow], list[ChangedHold]]:
    """Ask all backends at once for the locks of these holds.

    Returns the locks that are still held under the same token, and the holds of all others.
    """

    def inspect(backend: BaseBackend, deadline: float) -> dict[HoldRef, LockRow]:
        mine = [ref for ref in refs if ref.alias == backend.alias]
        return {ref: _row_now(backend, ref, deadline) for ref in mine}

    answers = call_backends({ref.alias for ref in refs}, inspect)
    unchanged: list[LockRow] = []
    changed: list[ChangedHold] = []
    for ref in refs:
        answer = answers[ref.alias]
        row = answer.value[ref] if answer.value else None
        if row is not None and row.status is not None and row.ref == ref:
            unchanged.append(row)
        else:
            changed.append((ref, row, answer.problem))
    return unchanged, changed


def _row_now(backend: BaseBackend, ref: HoldRef, deadline: float) -> LockRow:
    """Return the row of a hold if it is still there; else that of the lock."""
    part = part_of(backend, ref.kind)
    row = LockRow(part.inspect(backend_name(ref.kind, ref.name), deadline))
    return next((each for each in row.holders if each.ref == ref), row)


def consequences(rows: Iterable[LockRow]) -> dict[str, Any]:
    """Return how many holders learn that their holds are broken, how many do not, and when.

    ``working``: whether any holder may still work under its lock; it may not, if it has released
    the lock with ``at_least``. Times are in seconds.
    """
    working = [row for row in rows if not row.is_reserved]
    held = [row for row in working if row.status is not DisplayStatus.EXPIRED]
    told = [row.notified_within for row in held if row.notified_within is not None]
    untold = [row.info for row in held if row.notified_within is None]
    rests = [info.lease if info.remaining is None else info.remaining for info in untold]
    return {
        "working": bool(working),
        "told": len(told),
        "told_within": math.ceil(max(told, default=0.0) + _RENEWAL_ANSWER),
        "untold": len(untold),
        "untold_for": math.ceil(max((rest or 0.0 for rest in rests), default=0.0)),
    }


def force_release(request: HttpRequest, refs: Iterable[HoldRef], reason: str) -> None:
    """Break the holds, log who did it and why, and add a message for each kind of outcome.

    After a backend has failed once, the other holds in it are not tried.
    """
    results: dict[Outcome, list[tuple[HoldRef, str]]] = {outcome: [] for outcome in _MESSAGES}
    failed: dict[str, str] = {}
    for ref in refs:
        outcome: Outcome = "not sent"
        if not (problem := failed.get(ref.alias, "")):
            outcome, problem = _break_hold(request, ref, reason)
            failed[ref.alias] = problem
        results[outcome].append((ref, problem))
    for outcome, some in results.items():
        if some:
            level, sentence = _MESSAGES[outcome]
            text, problem = sentence % {"count": len(some)}, some[0][1]
            named = names_in_message([ref.name for ref, _ in some])
            messages.add_message(request, level, format_html("{} {} {}", text, named, problem))


def _break_hold(request: HttpRequest, ref: HoldRef, reason: str) -> tuple[Outcome, str]:
    """Break a hold; return the outcome, and the problem if its backend failed."""
    try:
        backend = part_of(locks[ref.alias], ref.kind)
        name = backend_name(ref.kind, ref.name)
        lease = backend.force_release(name, ref.token, clock() + fan_out.TIMEOUT)
    except Exception as error:
        problem = one_line(error)
        if not isinstance(error, (LockError, ImproperlyConfigured)):
            logger.exception("backend %r failed when the admin released a lock", ref.alias)
        elif not (isinstance(error, LockUnavailable) and error.maybe_applied):
            return "not sent", problem
        message = gettext_lazy(
            "Release of token %(token)d requested, without an answer (%(problem)s)."
            " Reason: %(reason)s"
        )
        values = {"token": ref.token, "problem": problem, "reason": reason}
        write_log(request, ref.alias, ref.kind, ref.name, message, values)
        return "unknown", problem
    if lease is None:
        return "changed", ""
    send_event(lock_broken, backend, lease)
    message = gettext_lazy("Force released: token %(token)d, owner %(owner)s. Reason: %(reason)s")
    values = {"token": lease.token, "owner": lease.owner, "reason": reason}
    write_log(request, ref.alias, ref.kind, ref.name, message, values)
    return "released", ""


def sweep(request: HttpRequest, aliases: Iterable[str]) -> None:
    """Sweep all backends at once, log it, and add a message about each of them."""
    answers = call_backends(
        aliases, lambda backend, deadline: sweep_every_kind(backend), SWEEP_TIMEOUT
    )
    for alias, answer in answers.items():
        if (swept := answer.value) is None:
            text = _("Could not sweep %(backend)s, or it is not done yet:") % {"backend": alias}
            messages.error(request, f"{text} {answer.problem}")
            continue
        values = {"backend": alias, "expired": swept.expired, "removed": swept.removed}
        text = _("Swept %(backend)s: %(expired)d expired, %(removed)d removed.")
        messages.success(request, text % values)
        message = gettext_lazy("Swept: %(expired)d expired, %(removed)d removed.")
        write_log(request, alias, Kind.LOCK, "", message, values)
