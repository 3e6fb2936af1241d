"""What the code that takes a lock is doing: it describes a hold that was given no description.

In a request that Django handles this is the method and the path; no middleware is needed. Elsewhere
it is what :func:`activity` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.signals import request_finished, request_started

from distlock.concurrency import fork
from distlock.types.arguments import MAX_DESCRIPTION
from distlock.types.printable import escaped


@dataclass(slots=True, eq=False)
class _Doing:
    """An activity and the one around it.

    A context is copied to threads and to tasks, which may outlive the activity. So the end of the
    activity is noted here, on the object that all copies share.
    """

    text: str
    outer: _Doing | None
    is_request: bool = False
    ended: bool = False


_current: ContextVar[_Doing | None] = ContextVar("distlock_activity", default=None)

#: ASGI requests by the object that all tasks and threads of a request share. Up to Django 6.0 the
#: receivers of its signals run in a task of their own: others do not see the variables they set.
_requests: WeakKeyDictionary[ThreadSensitiveContext, _Doing] = WeakKeyDictionary()


@contextmanager
def activity(text: str) -> Iterator[None]:
    """Say what goes on inside the ``with`` block, for all locks taken there without a description.

    ``text`` is cut to the length of a description, and what does not print in it is escaped; an
    empty one keeps the outer activity, perhaps a path with a secret in it, from being shown.
    """
    if not isinstance(text, str):
        raise TypeError(f"an activity is described by a str, not {text!r}")
    doing = _begin(text)
    try:
        yield
    finally:
        doing.ended = True
        # A generator may end in another context than the one in which it began.
        if _current.get() is doing:
            _current.set(_running())


def current_activity() -> str:
    """Return what is going on here; empty if nobody has said anything."""
    if _current.get() is None and SyncToAsync.thread_sensitive_context.get(None) is None:
        return ""  # the usual case
    doing = _running()
    return doing.text if doing else ""


def watch_requests() -> None:
    """Follow the requests of this process, whichever handler they come through."""
    request_started.connect(_on_started, dispatch_uid="distlock.activity")
    request_finished.connect(_end_request, dispatch_uid="distlock.activity")


def _on_started(
    *,
    environ: Mapping[str, Any] | None = None,
    scope: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    fork.ensure_reset()  # so that watches go on here, if this is a worker's first request
    _end_request()  # one of this thread whose server never closed the response
    if environ is not None:
        raw = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"[:MAX_DESCRIPTION]
        # PEP 3333: each character of these stands for the byte of its number.
        path = raw.encode("latin-1", "replace").decode("utf-8", "replace")
        text = f"{environ.get('REQUEST_METHOD', '')} {path}"
    elif scope is not None:
        text = f"{scope.get('method', '')} {scope.get('path', '')}"
    else:
        return
    request = _begin(text, is_request=True)
    if shared := SyncToAsync.thread_sensitive_context.get(None):
        _requests[shared] = request


def _begin(text: str, *, is_request: bool = False) -> _Doing:
    text = escaped(text[: MAX_DESCRIPTION + 1])
    if len(text) > MAX_DESCRIPTION:
        text = f"{text[: MAX_DESCRIPTION - 1]}…"
    doing = _Doing(text, _running(), is_request)
    _current.set(doing)
    return doing


def _end_request(**kwargs: Any) -> None:
    """End the innermost request, with whatever goes on inside it."""
    doing = request = _running()
    while request is not None and not request.is_request:
        request = request.outer
    if request is None:
        return
    while doing is not None and doing is not request.outer:
        doing.ended = True
        doing = doing.outer
    _current.set(_running())


def _running() -> _Doing | None:
    doing = _current.get()
    while doing is not None and doing.ended:
        doing = doing.outer
    if doing is None and (shared := SyncToAsync.thread_sensitive_context.get(None)):
        doing = _requests.get(shared)
    return doing if doing and not doing.ended else None
