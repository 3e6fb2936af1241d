"""Answers the client when a view raises an error of a lock.

    MIDDLEWARE = [..., "distlock.middleware.LockErrorMiddleware"]

For views of Django REST framework see exception_handler().
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.exceptions import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin

from distlock.exceptions import LockBusy, LockUnavailable

logger = logging.getLogger("distlock")

#: The status that each error is answered with, and its code in JSON. Others are no matter of the
#: client's, and stay what they are for Django: status 500.
ANSWERS: Mapping[type[Exception], tuple[int, str]] = {
    LockBusy: (409, "busy"),
    LockUnavailable: (503, "unavailable"),
}
#: Seconds after which the client may try again.
RETRY_AFTER = 5


class LockErrorMiddleware(MiddlewareMixin):
    """Answers 409 where a lock is busy, and 503 where a backend cannot be asked.

    Put it last, or next to the views: it sees the errors of views and of what they render. A
    subclass may have another ``retry_after``, in seconds.
    """

    retry_after = RETRY_AFTER

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the answer; None for an error that is not of a lock."""
        return error_response(error, request, retry_after=self.retry_after)


def error_response(
    error: Exception,
    request: HttpRequest,
    *,
    json: bool | None = None,
    retry_after: int = RETRY_AFTER,
) -> HttpResponse | None:
    """Return the response to an error of a lock; None for other errors.

    - ``json``: whether to answer in JSON: ``{"error": "busy", "retry_after": 5}``. None does so if
      the request prefers it to HTML. HTML is the project's template ``409.html`` or ``503.html``,
      which gets ``retry_after``, or else a line.
    - ``retry_after``: the header Retry-After, in seconds.

    The answer does not name the lock, nor who has it: that is in the log.
    """
    found = next((answer for kind, answer in ANSWERS.items() if isinstance(error, kind)), None)
    if found is None:
        return None
    status, code = found
    level = logging.WARNING if status >= 500 else logging.INFO
    logger.log(level, "%s %s is answered with %d: %s", request.method, request.path, status, error)
    accepted = request.get_preferred_type(["text/html", "application/json"])
    response: HttpResponse
    if json or (json is None and accepted == "application/json"):
        response = JsonResponse({"error": code, "retry_after": retry_after}, status=status)
    else:
        response = HttpResponse(_page(status, retry_after), status=status)
    response["Retry-After"] = str(retry_after)
    patch_vary_headers(response, ["Accept"])
    return response


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """Return the answer in JSON to an error of a lock: for an exception handler of DRF.

    ``error`` and ``context`` are what DRF calls such a handler with. None for other errors, which
    are its own handler's. As that one does, this rolls back the transaction of the request, if
    ATOMIC_REQUESTS has begun one.
    """
    response = error_response(error, context["request"], json=True)
    for connection in connections.all(initialized_only=True) if response else ():
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)
    return response


def _page(status: int, retry_after: int) -> str:
    try:
        return render_to_string(f"{status}.html", {"retry_after": retry_after})
    except TemplateDoesNotExist:
        said = HttpResponse(status=status).reason_phrase
        page = f"<!doctype html><title>{said}</title><h1>{said}</h1>"
        return f"{page}<p>Try again in {retry_after} s.</p>"
