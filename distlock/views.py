"""Views for the probes of a deployment: whether the backends answer, and who leads.

They answer 200 or 503, in JSON, to anyone. So they do not say what is wrong with a backend: that is
in the log, and ``manage.py locks ping`` prints it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from distlock.conf import DEFAULT_ALIAS, locks
from distlock.fan_out import ping
from distlock.recipes.candidacy import leads_here
from distlock.types.lease import log_fields

logger = logging.getLogger("distlock")


@non_atomic_requests  # a database that is down must not make it an error
@require_safe
@never_cache
def ready(request: HttpRequest, using: Sequence[str] | None = None) -> JsonResponse:
    """Answer whether all backends, or those with the aliases ``using``, can be asked for locks.

    ``{"ok": true, "backends": {"default": {"ok": true, "seconds": 0.002}}}``, with status 503 if
    one of them fails, or does not answer within two seconds. All are asked at once.
    """
    answers = ping(locks if using is None else using)
    for alias, answer in answers.items():
        if answer.problem:
            logger.warning("not ready: %r: %s", alias, answer.problem, extra=log_fields(alias))
    found = {alias: answer.as_json() for alias, answer in answers.items()}
    return _answer(all(one["ok"] for one in found.values()), backends=found)


@non_atomic_requests
@require_safe
@never_cache
def leads(request: HttpRequest, election: str, using: str = DEFAULT_ALIAS) -> JsonResponse:
    """Answer whether a candidate of this very process leads an election. Asks no backend.

    - ``election``: its name.
    - ``using``: the alias of its backend.

    Returns ``{"ok": true, "election": "scheduler"}``, with status 503 and False if none leads.
    """
    return _answer(leads_here(election, using), election=election)


def _answer(ok: bool, **more: object) -> JsonResponse:
    response = JsonResponse({"ok": ok, **more}, status=200 if ok else 503)
    # Probes come every few seconds, and Django would log each 503 as an error.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response
