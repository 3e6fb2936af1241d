"""Calls several backends at the same time, and waits for none of them for long.

A page waits up to ``TIMEOUT`` for a backend. If one has not answered by then, the next pages of
this process wait only ``SHORT_TIMEOUT`` for it. So a backend that hangs makes one page slow, not
every page, and one that is back is seen at once.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.workers import Job, WorkerThreads
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.types.printable import escaped

logger = logging.getLogger("distlock")

#: Seconds that a page waits for a backend.
TIMEOUT = 2.0
#: Seconds that it waits for a backend that was silent a moment ago.
SHORT_TIMEOUT = 0.1
#: Seconds for which a backend counts as silent after a page has waited for it in vain.
SILENT_FOR = 15.0
#: Threads for the calls of one backend. Further calls wait in line, and are given up there in time.
MAX_THREADS = 4

T = TypeVar("T")
Call = Callable[[BaseBackend, float], T]


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a backend returned after ``seconds``; None, and the ``problem``, if it failed.

    ``backend`` is None if the settings of this alias are wrong.
    """

    alias: str
    backend: BaseBackend | None
    value: T | None
    problem: str
    seconds: float


#: The threads for the calls of each backend, by alias.
_threads: dict[str, WorkerThreads] = {}

#: When a page has last waited for a backend in vain, or the backend has failed slowly.
_silent_since: weakref.WeakKeyDictionary[BaseBackend, float] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class _Request(Generic[T]):
    """One call of one backend; ``error``: it could not be made."""

    alias: str
    timeout: float  # seconds that the page waits for it
    backend: BaseBackend | None = None
    job: Job[tuple[T, float]] | None = None
    error: Exception | None = None


def call_backends(
    aliases: Iterable[str],
    call: Call[T],
    timeout: float | None = None,
    *,
    wait_for_silent: bool = True,
) -> dict[str, Answer[T]]:
    """Return what ``call(backend, deadline)`` returns for each backend, by alias, in their order.

    All are called at once, each on another thread, and get ``timeout`` seconds (by default
    ``TIMEOUT``). A call that takes longer goes on, but nobody waits for it. With
    ``wait_for_silent=False`` a backend that was silent a moment ago gets only ``SHORT_TIMEOUT``.
    """
    if timeout is None:
        timeout = TIMEOUT
    began = clock()
    requests = [_start(alias, call, began, timeout, wait_for_silent) for alias in aliases]
    for request in requests:
        if request.job is not None:
            request.job.wait(began + request.timeout)
    return {request.alias: _answer(request, timeout) for request in requests}


def _start(
    alias: str, call: Call[T], began: float, timeout: float, wait_for_silent: bool
) -> _Request[T]:
    request: _Request[T] = _Request(alias, timeout)
    try:
        request.backend = backend = locks[alias]
    except ImproperlyConfigured as error:
        request.error = error
        return request
    silent_since = _silent_since.get(backend)
    if not wait_for_silent and silent_since is not None and clock() < silent_since + SILENT_FOR:
        request.timeout = SHORT_TIMEOUT

    def run() -> tuple[T, float]:
        limit = SHORT_TIMEOUT  # that of an error; an answer may take longer
        try:
            value = call(backend, began + timeout)
            limit = timeout
        finally:
            seconds = clock() - began
            if seconds > limit:
                _silent_since[backend] = clock()
            else:
                _silent_since.pop(backend, None)
        return value, seconds

    if alias not in _threads:
        _threads.setdefault(alias, WorkerThreads(MAX_THREADS, f"distlock-admin-{alias}"))
    try:
        request.job = _threads[alias].submit(run)
    except RuntimeError as error:  # no more threads can be had
        request.error = error
    return request


def _answer(request: _Request[T], timeout: float) -> Answer[T]:
    alias, backend, job, error = request.alias, request.backend, request.job, request.error
    if job is not None:
        if not job.answered:
            job.discard()  # if it has not begun yet, it never will
            return Answer(alias, backend, None, _no_answer(request, timeout), request.timeout)
        try:
            value, seconds = job.take()
        except Exception as raised:
            error = raised
        else:
            return Answer(alias, backend, value, "", seconds)
    assert error is not None
    if not isinstance(error, (LockError, ImproperlyConfigured)):
        logger.error("backend %r failed when the admin asked it", alias, exc_info=error)
    return Answer(alias, backend, None, one_line(error), 0.0)


def one_line(error: BaseException) -> str:
    """Return an error as one printable line. Drivers' messages have several lines."""
    return escaped(" ".join(str(error).split())) or type(error).__name__


def _no_answer(request: _Request[T], timeout: float) -> str:
    if request.timeout < timeout:
        return _("It did not answer a moment ago, so this page has not waited for it.")
    if request.backend is not None:
        _silent_since[request.backend] = clock()
    seconds = int(timeout)
    text = ngettext(
        "No answer within %(seconds)d second.", "No answer within %(seconds)d seconds.", seconds
    )
    return text % {"seconds": seconds}
