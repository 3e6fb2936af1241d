"""What the admin does: breaks holds, sweeps, the actions of recipes; and what it says of that.

A hold is broken only if it is still the one that the page has shown: its token is compared.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial
from queue import Full
from typing import Any, Literal

from django import forms
from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from distlock import audit, fan_out
from distlock.admin.locks import HoldRef, LockRow, read_row
from distlock.admin.panel import error_text, names_in_message, write_log
from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.workers import WorkerThreads
from distlock.conf import locks
from distlock.exceptions import LockError, LockUnavailable, StaleToken
from distlock.fan_out import call_backends, one_line
from distlock.recipes.cells import Text
from distlock.recipes.description import Action, Effect, JsonInput, Ref
from distlock.records.shared_backend import part_of, sweep_every_kind
from distlock.runtime.events import send_event
from distlock.signals import lock_broken
from distlock.types.lease import Kind, Lease, LockKey
from distlock.types.query import DisplayStatus
from distlock.types.values import batches

logger = logging.getLogger("distlock")

#: Seconds that a page waits for a sweep; the sweep goes on after that.
SWEEP_TIMEOUT = 10.0
#: Seconds that the answer to a renewal may take.
_RENEWAL_ANSWER = 1.0


class ReasonForm(forms.Form):
    """Asks why a hold is broken. Without a reason nothing is done."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=500,
        help_text=gettext_lazy("It is written to the log with your name, the owner and the token."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        error_messages={"required": gettext_lazy("Please say why.")},
    )


class ActionForm(ReasonForm):
    """Asks why something is done, and before that for a value if the action takes one."""

    def __init__(self, action: Action[Any], *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        default = gettext_lazy("It is written to the log with your name.")
        help_text: Any = action.reason_help or default  # Django's type of a Text is another one
        self.fields["reason"].help_text = help_text
        if action.value is not None:
            self.fields[action.value.name] = JsonField(action.value)
            self.order_fields([action.value.name])


class JsonField(forms.CharField):
    """A field for a value in JSON; what it holds first is a text."""

    def __init__(self, value: JsonInput) -> None:
        widget = forms.Textarea({"class": "dl-mono", "rows": 12, "spellcheck": "false"})
        super().__init__(label=value.label, help_text=value.help, strip=False, widget=widget)

    def clean(self, value: Any) -> Any:
        """Return what the JSON says."""
        try:
            return json.loads(super().clean(value), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            text = _("This is not JSON: %(error)s") % {"error": error}
            raise forms.ValidationError(text) from error


def _refuse(constant: str) -> None:
    raise ValueError(constant)


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
            "%(count)d lock was not released, because its backend could not be reached:",
            "%(count)d locks were not released, because their backend could not be reached:",
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
        mine = [ref for ref in refs if ref.key.alias == backend.alias]
        return {ref: _row_now(backend, ref, deadline) for ref in mine}

    answers = call_backends({ref.key.alias for ref in refs}, inspect)
    unchanged: list[LockRow] = []
    changed: list[ChangedHold] = []
    for ref in refs:
        answer = answers[ref.key.alias]
        row = answer.value[ref] if answer.value else None
        if row is not None and row.status is not None and row.ref == ref:
            unchanged.append(row)
        else:
            changed.append((ref, row, answer.problem))
    return unchanged, changed


def _row_now(backend: BaseBackend, ref: HoldRef, deadline: float) -> LockRow:
    """Return the row of a hold if it is still there; else that of the lock."""
    row = read_row(backend, ref.key, deadline)
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


def force_release(request: HttpRequest, refs: Sequence[HoldRef], reason: str) -> list[HoldRef]:
    """Break the holds, log who did it and why, and add a message for each kind of outcome.

    Returns those that were broken. Some are broken at the same time. After a backend has failed
    once, the other holds in it are not tried.
    """
    results: dict[Outcome, list[tuple[HoldRef, str]]] = {outcome: [] for outcome in _MESSAGES}
    failed: dict[str, str] = {}
    # Of no more than so many the log does not say yet what was done.
    for some in batches(refs, fan_out.MAX_THREADS):
        jobs = [_threads().submit(partial(_break_hold, ref, failed)) for ref in some]
        for ref, job in zip(some, jobs, strict=True):
            job.wait(None)
            outcome, problem, lease = job.take()
            results[outcome].append((ref, problem))
            _report_release(request, ref, outcome, lease, reason)
    for outcome, done in results.items():
        if done:
            level, sentence = _MESSAGES[outcome]
            text, problem = sentence % {"count": len(done)}, error_text(request, done[0][1])
            named = names_in_message([ref.key.name for ref, _ in done])
            messages.add_message(request, level, format_html("{} {} {}", text, named, problem))
    return [ref for ref, _ in results["released"]]


_threads = PerProcess(lambda: WorkerThreads(fan_out.MAX_THREADS, "distlock-admin-release"))


def _break_hold(ref: HoldRef, failed: dict[str, str]) -> tuple[Outcome, str, Lease | None]:
    """Break a hold; return the outcome, the problem if its backend failed, and what was broken.

    ``failed`` has the problems of backends, by alias.
    """
    alias, kind, name = ref.key
    if problem := failed.get(alias, ""):
        return "not sent", problem, None
    try:
        backend, until = part_of(locks[alias], kind), clock() + fan_out.TIMEOUT
        lease = backend.force_release(ref.key.backend_name, ref.token, until)
    except Exception as error:
        failed[alias] = problem = one_line(error)
        if not isinstance(error, (LockError, ImproperlyConfigured)):
            logger.exception("backend %r failed when the admin released a lock", alias)
        elif not (isinstance(error, LockUnavailable) and error.maybe_applied):
            return "not sent", problem, None
        logger.warning("no answer to the release of %r on %r: %s", name, alias, problem)
        return "unknown", problem, None
    return "changed" if lease is None else "released", "", lease


def _report_release(
    request: HttpRequest, ref: HoldRef, outcome: Outcome, lease: Lease | None, reason: str
) -> None:
    """Tell and log what was done, or may have been. The log has no texts of errors."""
    if lease is not None:
        send_event(lock_broken, part_of(locks[ref.key.alias], ref.key.kind), lease)
        message = gettext_lazy(
            "Force released: token %(token)d, owner %(owner)s. Reason: %(reason)s"
        )
    elif outcome == "unknown":
        message = gettext_lazy(
            "Release of token %(token)d requested, without an answer. Reason: %(reason)s"
        )
    else:
        return
    values = {"token": ref.token, "owner": lease and lease.owner, "reason": reason}
    write_log(request, ref.key, message, values, "release")


def sweep(request: HttpRequest, aliases: Iterable[str]) -> None:
    """Sweep all backends at once, log it, and add a message about each of them.

    As every sweep, this one removes old entries of the audit log.
    """
    answers = call_backends(
        aliases, lambda backend, deadline: sweep_every_kind(backend), SWEEP_TIMEOUT
    )
    for alias, answer in answers.items():
        if (swept := answer.value) is None:
            text = _("Could not sweep %(backend)s, or it is not done yet:") % {"backend": alias}
            messages.error(request, f"{text} {error_text(request, answer.problem)}")
            continue
        values = {"backend": alias, "expired": swept.expired, "removed": swept.removed}
        text = _("Swept %(backend)s: %(expired)d expired, %(removed)d removed.")
        messages.success(request, text % values)
        message = gettext_lazy("Swept: %(expired)d expired, %(removed)d removed.")
        key = LockKey(alias, Kind.LOCK, "")
        write_log(request, key, message, values, "sweep" if swept.expired else "")
    audit.remove_old()


def perform(
    request: HttpRequest, kind: Kind, action: Action[Any], ref: Ref, values: dict[str, Any]
) -> None:
    """Do it, log who did it and why, and add a message that says what came of it."""
    values = {**values, "who": request.user.get_username(), "timeout": action.timeout}

    def attempt(backend: BaseBackend, deadline: float) -> Effect | LockError | bool | None:
        try:
            return action.perform(ref, values)
        except StaleToken:
            return None
        except (LockError, ValueError, TypeError, Full) as error:
            return error if isinstance(error, LockError) else LockError(one_line(error))

    answer = call_backends([ref.alias], attempt, action.timeout)[ref.alias]
    done = LockUnavailable(answer.problem) if answer.problem else answer.value
    what: Text = names_in_message([ref.target or ref.name])
    said: Text = _("Nothing was done, because it has changed since it was shown:")
    why: Text = ""
    log, level = why, messages.WARNING
    if isinstance(done, LockError):
        said, level, problem = _("Nothing was done:"), messages.ERROR, one_line(done)
        why = error_text(request, problem)
        if isinstance(done, LockUnavailable) and done.maybe_applied:
            said = _("It is unknown whether it was done, because no answer came:")
            log = gettext_lazy("%(title)s: requested, without an answer. %(reason)s")
            text = "no answer to %s %r on %r: %s"
            logger.warning(text, action.name, ref.name, ref.alias, problem)
    elif done:
        done = Effect() if done is True else done
        level = messages.WARNING if done.why else messages.SUCCESS
        said, what, log = action.done, done.count or what, action.log
        why = _why_no_more(request, done.why)
        values |= done.values
    messages.add_message(request, level, format_html("{} {} {}", said, what, why))
    if log:
        values |= {"title": action.title, "target": ref.target, "token": ref.token}
        # The recipe has recorded the operation by itself.
        asked = action.name if isinstance(done, LockError) else ""
        write_log(request, LockKey(ref.alias, kind, ref.name), log, values, asked)


def _why_no_more(request: HttpRequest, why: Text | Exception) -> Text:
    """Return the text that says why something was not done for all."""
    if isinstance(why, LockError):
        hidden = _("The text of the error is shown only to users who may see the texts of errors.")
        return error_text(request, one_line(why)) or hidden
    return one_line(why) if isinstance(why, Exception) else why
