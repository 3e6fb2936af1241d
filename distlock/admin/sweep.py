"""Sweeps backends for someone in the admin, and writes down what that did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext_lazy as _

from distlock.admin.fan_out import Answer, ask_all
from distlock.admin.log import in_the_logs_language, log
from distlock.types.lease import SweepResult

#: Seconds that sweeping may take before the page is shown all the same; it goes on then.
LIMIT = 10.0


def sweep(aliases: Iterable[str], user: Any) -> dict[str, Answer[SweepResult]]:
    """Sweep all at the same time; return what each did, by alias."""
    answers = ask_all(aliases, lambda backend, deadline: backend.sweep(), LIMIT)
    for alias, answer in answers.items():
        if (swept := answer.value) is not None:
            message = in_the_logs_language(
                _("Swept: %(expired)d expired, %(removed)d removed."),
                {"expired": swept.expired, "removed": swept.removed},
            )
            log(user, alias, "", message)
    return answers
