"""Calls several backends at the same time, and waits for none of them for long.

A page waits up to ``TIMEOUT`` for a backend. If one has not answered by then, the next pages of
this process wait only ``SHORT_TIMEOUT`` for it. So a backend that hangs makes one page slow, not
every page, and one that is back is seen at once.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.backends.base import BaseBackend
from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import start
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
#: Threads that may wait for one backend. Pages that are loaded again and again start no more.
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


class _NotCalled(Exception):
    """A backend was not called; the message says why."""


class _OpenCalls:
    """How many calls of each backend are not answered yet, and which backends were silent."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget the calls: their threads are the parent's."""
        self._mutex = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._silent_since: weakref.WeakKeyDictionary[BaseBackend, float] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self, alias: str) -> bool:
        """Count a call; False if there are too many already."""
        with self._mutex:
            if self._calls[alias] >= MAX_THREADS:
                return False
            self._calls[alias] += 1
            return True

    def end(self, alias: str) -> None:
        with self._mutex:
            self._calls[alias] -= 1

    def set_silent(self, backend: BaseBackend, silent: bool) -> None:
        """Remember that a backend has not answered in time, or that it has."""
        with self._mutex:
            if silent:
                self._silent_since[backend] = clock()
            else:
                self._silent_since.pop(backend, None)

    def is_silent(self, backend: BaseBackend) -> bool:
        """Return whether a page has lately waited for this backend in vain."""
        with self._mutex:
            since = self._silent_since.get(backend)
            return since is not None and clock() < since + SILENT_FOR


_open_calls = _OpenCalls()


@dataclass(slots=True)
class _Request(Generic[T]):
    """One call of one backend, and how many seconds the page waits for it."""

    alias: str
    timeout: float
    backend: BaseBackend | None = None
    shortened: bool = False
    result: Pending[tuple[T, float]] = field(default_factory=Pending)


def call_backends(
    aliases: Iterable[str],
    call: Call[T],
    timeout: float | None = None,
    *,
    wait_for_silent: bool = True,
) -> dict[str, Answer[T]]:
    """Return what ``call(backend, deadline)`` returns for each backend, by alias, in their order.

    All are called at once, each on a thread of its own, and get ``timeout`` seconds (by default
    ``TIMEOUT``). A call that takes longer goes on, but nobody waits for it. With
    ``wait_for_silent=False`` a backend that was silent a moment ago gets only ``SHORT_TIMEOUT``.
    """
    if timeout is None:
        timeout = TIMEOUT
    began = clock()
    requests = [_start(alias, call, began, timeout, wait_for_silent) for alias in aliases]
    for request in requests:
        request.result.wait(began + request.timeout)
    return {request.alias: _answer(request) for request in requests}


def _start(
    alias: str, call: Call[T], began: float, timeout: float, wait_for_silent: bool
) -> _Request[T]:
    request: _Request[T] = _Request(alias, timeout)
    try:
        request.backend = backend = locks[alias]
    except ImproperlyConfigured as error:
        request.result.fail(error)
        return request
    if not wait_for_silent and _open_calls.is_silent(backend):
        request.shortened = True
        request.timeout = SHORT_TIMEOUT
    if not _open_calls.begin(alias):
        request.result.fail(_NotCalled(_("Earlier calls of it have not been answered yet.")))
        return request

    def run() -> None:
        problem: BaseException | None = None
        try:
            value = call(backend, began + timeout)
        except BaseException as error:
            problem = error
        seconds = clock() - began
        # Before the answer, so that whoever has the answer finds this up to date.
        _open_calls.set_silent(backend, seconds > (SHORT_TIMEOUT if problem else timeout))
        _open_calls.end(alias)
        if problem is None:
            request.result.resolve((value, seconds))
        else:
            request.result.fail(problem)

    try:
        start(run, f"distlock-admin-{alias}")
    except RuntimeError as error:  # no more threads can be had
        _open_calls.end(alias)
        request.result.fail(_NotCalled(str(error)))
    return request


def _answer(request: _Request[T]) -> Answer[T]:
    alias, backend, result = request.alias, request.backend, request.result
    if not result.answered:
        return Answer(alias, backend, None, _no_answer(request), request.timeout)
    try:
        value, seconds = result.take()
    except (LockError, ImproperlyConfigured, _NotCalled) as error:
        return Answer(alias, backend, None, one_line(error), 0.0)
    except Exception as error:
        logger.error("backend %r failed when the admin asked it", alias, exc_info=error)
        return Answer(alias, backend, None, one_line(error), 0.0)
    return Answer(alias, backend, value, "", seconds)


def one_line(error: BaseException) -> str:
    """Return an error as one printable line. Drivers' messages have several lines."""
    return escaped(" ".join(str(error).split())) or type(error).__name__


def _no_answer(request: _Request[T]) -> str:
    if request.shortened:
        return _("It did not answer a moment ago, so this page has not waited for it.")
    if request.backend is not None:
        _open_calls.set_silent(request.backend, True)
    seconds = int(request.timeout)
    text = ngettext(
        "No answer within %(seconds)d second.", "No answer within %(seconds)d seconds.", seconds
    )
    return text % {"seconds": seconds}
