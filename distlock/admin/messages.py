"""The messages that Django shows after locks were released or swept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.contrib import messages
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.admin.actions import Outcome, ReleaseResult
from distlock.admin.fan_out import Answer
from distlock.templatetags.distlock_admin import visible
from distlock.types.lease import SweepResult
from distlock.types.printable import escaped

_MAX_NAMES = 10
_MAX_NAME_LENGTH = 80

_LEVELS = {
    Outcome.RELEASED: messages.SUCCESS,
    Outcome.CHANGED: messages.WARNING,
    Outcome.UNKNOWN: messages.ERROR,
    Outcome.NOT_SENT: messages.ERROR,
}


def add_release_messages(request: HttpRequest, results: Sequence[ReleaseResult]) -> None:
    """Add one message for each outcome of a forced release."""
    for outcome, level in _LEVELS.items():
        if some := [result for result in results if result.outcome is outcome]:
            parts = [_sentence(outcome, len(some)), _names(some), escaped(some[0].problem)]
            messages.add_message(request, level, format_html_join(" ", "{}", zip(parts)))
    if unlogged := [result for result in results if not result.logged]:
        text = _("This could not be written to the admin’s log, only to that of the site:")
        messages.error(request, format_html("{} {}", text, _names(unlogged)))


def add_sweep_messages(request: HttpRequest, answers: Mapping[str, Answer[SweepResult]]) -> None:
    """Add one message for each backend that was swept."""
    for alias, answer in answers.items():
        if (swept := answer.value) is None:
            text = _("Could not sweep %(backend)s, or it is not done yet:")
            problem = escaped(answer.problem)
            messages.error(request, f"{text % {'backend': alias}} {problem}")
            continue
        text = _("Swept %(backend)s: %(expired)d expired, %(removed)d removed.")
        values = {"backend": alias, "expired": swept.expired, "removed": swept.removed}
        messages.success(request, text % values)


def shortened(name: str) -> str:
    """Return a name, escaped, and cut if it is too long for a sentence."""
    name = escaped(name)
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…"


def _sentence(outcome: Outcome, count: int) -> str:
    match outcome:
        case Outcome.RELEASED:
            text = ngettext("%(count)d lock was released:", "%(count)d locks were released:", count)
        case Outcome.CHANGED:
            text = ngettext(
                "%(count)d lock was not released, because it was no longer held under the token"
                " shown:",
                "%(count)d locks were not released, because they were no longer held under the"
                " tokens shown:",
                count,
            )
        case Outcome.UNKNOWN:
            text = ngettext(
                "%(count)d lock may have been released or not, because no answer came:",
                "%(count)d locks may have been released or not, because no answer came:",
                count,
            )
        case Outcome.NOT_SENT:
            text = ngettext(
                "%(count)d lock was not released, because its backend could not be asked:",
                "%(count)d locks were not released, because their backend could not be asked:",
                count,
            )
    return text % {"count": count}


def _names(some: Sequence[ReleaseResult]) -> SafeString:
    names = format_html_join(
        ", ", "{}", ([visible(shortened(result.ref.name))] for result in some[:_MAX_NAMES])
    )
    return format_html("{}, …", names) if len(some) > _MAX_NAMES else names
