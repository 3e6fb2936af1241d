"""What the admin does to locks: break holds, and sweep.

A hold is broken only if it is still the one that the page has shown: its token is compared.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django import forms
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from distlock.admin import fan_out
from distlock.admin.fan_out import Answer, call_backends, one_line
from distlock.admin.log import in_site_language, write_log
from distlock.admin.rows import HoldRef, LockRow
from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.conf import locks
from distlock.core.events import send_event
from distlock.exceptions import LockError, LockUnavailable
from distlock.signals import lock_broken
from distlock.templatetags.distlock_admin import duration
from distlock.types.lease import LockInfo, State, SweepResult
from distlock.types.printable import escaped
from distlock.types.query import DisplayStatus

logger = logging.getLogger("distlock")

#: The most characters of a reason.
MAX_REASON = 500
#: Seconds that a page waits for a sweep; the sweep goes on after that.
SWEEP_TIMEOUT = 10.0
#: Seconds that the answer to a renewal may take.
_RENEWAL_ANSWER = 1.0


class ReasonForm(forms.Form):
    """Asks why a hold is broken. Without a reason nothing is released."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=MAX_REASON,
        help_text=gettext_lazy("It is written to the log with your name, the owner and the token."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        error_messages={"required": gettext_lazy("Please say why.")},
    )


class Outcome(StrEnum):
    """The result of a forced release."""

    RELEASED = "released"
    CHANGED = "changed"  # the lock is no longer held under this token
    UNKNOWN = "unknown"  # the request was sent, but no answer came
    NOT_SENT = "not sent"  # the backend could not be reached


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """A hold that was to be broken, and the outcome; ``logged``: the admin's log has it."""

    ref: HoldRef
    outcome: Outcome
    problem: str = ""
    logged: bool = True


@dataclass(frozen=True, slots=True)
class CurrentHold:
    """A selected hold, and its lock as it is now; ``row`` is None if the backend failed."""

    ref: HoldRef
    row: LockRow | None
    problem: str = ""

    @property
    def is_unchanged(self) -> bool:
        """Whether the lock is still held under the selected token."""
        if self.row is None:
            return False
        return self.row.info.state is not State.FREE and self.row.info.token == self.ref.token


def current_holds(refs: Iterable[HoldRef]) -> list[CurrentHold]:
    """Look the holds up, in all backends at once; return them in their order."""
    refs = list(refs)
    by_alias: dict[str, list[HoldRef]] = {}
    for ref in refs:
        by_alias.setdefault(ref.alias, []).append(ref)

    def inspect(backend: BaseBackend, deadline: float) -> dict[HoldRef, LockInfo]:
        return {ref: backend.inspect(ref.name, deadline) for ref in by_alias[backend.alias]}

    answers = call_backends(by_alias, inspect)

    def current(ref: HoldRef) -> CurrentHold:
        answer = answers[ref.alias]
        if answer.backend is None or answer.value is None:
            return CurrentHold(ref, None, answer.problem)
        return CurrentHold(ref, LockRow.of(answer.value[ref], answer.backend))

    return [current(ref) for ref in refs]


def release_holds(refs: Iterable[HoldRef], user: Any, reason: str) -> list[ReleaseResult]:
    """Break the holds, log who did it and why, and return the results.

    After a backend has failed once, the other holds in it are not tried.
    """
    results: list[ReleaseResult] = []
    failed: dict[str, str] = {}
    for ref in refs:
        if problem := failed.get(ref.alias):
            results.append(ReleaseResult(ref, Outcome.NOT_SENT, problem))
            continue
        result = _release(ref, user, reason)
        if result.problem:
            failed[ref.alias] = result.problem
        results.append(result)
    return results


def _release(ref: HoldRef, user: Any, reason: str) -> ReleaseResult:
    try:
        backend = locks[ref.alias]
        lease = backend.force_release(ref.name, ref.token, clock() + fan_out.TIMEOUT)
    except Exception as error:
        problem = one_line(error)
        if not isinstance(error, (LockError, ImproperlyConfigured)):
            logger.exception("backend %r failed when the admin released a lock", ref.alias)
        elif not (isinstance(error, LockUnavailable) and error.maybe_applied):
            return ReleaseResult(ref, Outcome.NOT_SENT, problem)
        message = in_site_language(
            gettext_lazy(
                "Release of token %(token)d requested, without an answer (%(problem)s)."
                " Reason: %(reason)s"
            ),
            {"token": ref.token, "problem": problem, "reason": escaped(reason)},
        )
        logged = write_log(user, ref.alias, ref.name, message)
        return ReleaseResult(ref, Outcome.UNKNOWN, problem, logged)
    if lease is None:
        return ReleaseResult(ref, Outcome.CHANGED)
    send_event(lock_broken, backend, lease)
    message = in_site_language(
        gettext_lazy("Force released: token %(token)d, owner %(owner)s. Reason: %(reason)s"),
        {
            "token": lease.token,
            "owner": escaped(str(lease.owner)),
            "reason": escaped(reason),
        },
    )
    logged = write_log(user, ref.alias, ref.name, message)
    return ReleaseResult(ref, Outcome.RELEASED, logged=logged)


def consequences(rows: Iterable[LockRow]) -> list[str]:
    """Return sentences about what happens if these holds are broken."""
    working = [row for row in rows if not row.is_reserved]
    sentences = [_("Whoever is next gets the lock at once.")]
    if working:
        sentences.append(_("The old holder may still be working: nothing stops its code."))
        held = [row for row in working if row.status is not DisplayStatus.EXPIRED]
        sentences += _notified([row for row in held if row.notified_within is not None])
        sentences += _not_notified([row for row in held if row.notified_within is None])
    sentences.append(
        _(
            "What it writes with its old fencing token is refused where a newer one has been seen;"
            " everything else it writes is not."
        )
    )
    return sentences


def _notified(held: Sequence[LockRow]) -> Iterator[str]:
    if not held:
        return
    seconds = max(row.notified_within or 0.0 for row in held) + _RENEWAL_ANSWER
    yield ngettext(
        "%(count)d holder is told within %(time)s, or at the end of its lease if it cannot reach"
        " the backend: then lock.held is false, lock.check() and leaving the lock raise LockLost,"
        " and on_lost is called.",
        "%(count)d holders are told within %(time)s, or at the end of their leases if they cannot"
        " reach the backend: then lock.held is false, lock.check() and leaving the lock raise"
        " LockLost, and on_lost is called.",
        len(held),
    ) % {"count": len(held), "time": duration(math.ceil(seconds))}


def _not_notified(held: Sequence[LockRow]) -> Iterator[str]:
    if not held:
        return
    seconds = max(
        row.info.lease or 0.0 if row.info.remaining is None else row.info.remaining for row in held
    )
    yield ngettext(
        "%(count)d holder does not renew its lease and is not told: until the lease ends, in"
        " %(time)s at the latest, lock.held stays true there and lock.check() raises nothing. Only"
        " lock.verify() and leaving the lock ask the backend.",
        "%(count)d holders do not renew their leases and are not told: until the leases end, the"
        " last of them in %(time)s, lock.held stays true there and lock.check() raises nothing."
        " Only lock.verify() and leaving the lock ask the backend.",
        len(held),
    ) % {"count": len(held), "time": duration(math.ceil(seconds))}


def sweep_backends(aliases: Iterable[str], user: Any) -> dict[str, Answer[SweepResult]]:
    """Sweep all backends at once and log it; return what each did, by alias."""
    answers = call_backends(aliases, lambda backend, deadline: backend.sweep(), SWEEP_TIMEOUT)
    for alias, answer in answers.items():
        if (swept := answer.value) is not None:
            message = in_site_language(
                gettext_lazy("Swept: %(expired)d expired, %(removed)d removed."),
                {"expired": swept.expired, "removed": swept.removed},
            )
            write_log(user, alias, "", message)
    return answers
