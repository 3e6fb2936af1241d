"""Calls several backends at the same time, and waits for none of them for long.

A page of the admin, or a command, waits up to ``TIMEOUT`` for a backend. If one has not answered by
then, the next pages of this process wait only ``SHORT_TIMEOUT`` for it. So a backend that hangs
makes one page slow, not every page, and one that is back is seen at once.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.workers import ThreadCall, WorkerThreads
from distlock.conf import locks
from distlock.exceptions import LockError, NotSupported
from distlock.types.values import escaped

logger = logging.getLogger("distlock")

#: Seconds that a page waits for a backend.
TIMEOUT = 2.0
#: Seconds that it waits for a backend that was silent a moment ago.
SHORT_TIMEOUT = 0.1
#: Seconds for which a backend counts as silent after a page has waited for it in vain.
SILENT_FOR = 15.0
#: Threads for the calls of one backend. Further calls wait in line, and are given up there in time.
MAX_THREADS = 4
#: The lock that ping() asks for. Nobody takes it.
_PING_NAME = "distlock:ping"

T = TypeVar("T")


@dataclass(slots=True)
class BackendAnswer(Generic[T]):
    """What a backend returned after ``seconds``; None, and the ``problem``, if it failed.

    ``backend`` is None if the settings of this alias are wrong, or no lock works in this process.
    ``silent``: it has not answered in time.
    """

    alias: str
    backend: BaseBackend | None = None
    value: T | None = None
    problem: str = ""
    seconds: float = 0.0
    silent: bool = False

    @property
    def kind(self) -> str:
        """What kind of backend it is; empty if the settings of this alias are wrong."""
        return type(self.backend).__name__.removesuffix("Backend") if self.backend else ""

    def as_json(self) -> dict[str, Any]:
        """Return what JSON says of it, without the problem, which may name addresses."""
        return {"ok": not self.problem, "seconds": round(self.seconds, 3)}


#: Until when a backend counts as silent, by clock().
_silent_until: weakref.WeakKeyDictionary[BaseBackend, float] = weakref.WeakKeyDictionary()


def call_backends(
    aliases: Iterable[str],
    call: Callable[[BaseBackend, float], T],
    timeout: float | None = None,
    *,
    wait_for_silent: bool = True,
    heard: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, BackendAnswer[T]]:
    """Return what ``call(backend, deadline)`` returns for each backend, by alias, in their order.

    All are called at once, each on another thread, and get ``timeout`` seconds (by default
    ``TIMEOUT``). A call that takes longer goes on, but nobody waits for it. With
    ``wait_for_silent=False`` a backend that was silent a moment ago gets only ``SHORT_TIMEOUT``.

    A call that answers in parts writes the time of the last one into ``heard``, by alias: its time
    counts from then on.
    """
    if timeout is None:
        timeout = TIMEOUT
    answers: dict[str, BackendAnswer[T]] = {alias: _unasked(alias) for alias in aliases}
    jobs: list[tuple[BackendAnswer[T], BaseBackend, ThreadCall[tuple[T, float]]]] = []
    began = clock()
    for alias, answer in answers.items():
        if (backend := answer.backend) is None:
            continue
        try:
            timed = functools.partial(_timed, call, backend, began, timeout, heard)
            jobs.append((answer, backend, _threads()(alias).submit(timed)))
        except RuntimeError as error:  # no more threads can be started
            answer.problem = one_line(error)
    for answer, backend, job in jobs:
        short = not wait_for_silent and clock() < _silent_until.get(backend, 0.0)
        limit = SHORT_TIMEOUT if short else timeout
        until = began + limit
        while not (done := job.wait(until)) and heard.get(answer.alias, began) + limit > until:
            until = heard[answer.alias] + limit
        if done:
            _take(answer, job)
        else:
            job.discard()  # if it has not begun yet, it never will
            answer.silent = True
            answer.problem = _silence(timeout, waited=not short)
            if not short:
                _silent_until[backend] = clock() + SILENT_FOR
    return answers


def ping(aliases: Iterable[str], timeout: float | None = None) -> dict[str, BackendAnswer[bool]]:
    """Ask backends, all at once, for what they know of a lock; return their answers by alias.

    Nothing is taken or written. ``timeout`` is the seconds that each one gets, 2 by default. An
    error is the ``problem`` of an answer, which is empty otherwise; none is raised.
    """

    def ask(backend: BaseBackend, deadline: float) -> bool:
        backend.inspect(_PING_NAME, deadline)
        return True

    return call_backends(aliases, ask, timeout)


def _unasked(alias: str) -> BackendAnswer[Any]:
    try:
        return BackendAnswer(alias, locks[alias])  # imports a driver, which may take some time
    except (ImproperlyConfigured, NotSupported) as error:
        return BackendAnswer(alias, problem=one_line(error))


def _silence(timeout: float, *, waited: bool) -> str:
    """Say that a backend was silent, and whether it was waited for."""
    if not waited:
        return _("It did not answer a moment ago, so it was not waited for.")
    text = ngettext(
        "No answer within %(seconds)g second.",
        "No answer within %(seconds)g seconds.",
        1 if timeout == 1 else 2,
    )
    return text % {"seconds": timeout}


def _take(answer: BackendAnswer[T], job: ThreadCall[tuple[T, float]]) -> None:
    try:
        answer.value, answer.seconds = job.take()
    except Exception as error:
        answer.problem = one_line(error)
        if not isinstance(error, (LockError, ImproperlyConfigured)):
            logger.exception("backend %r failed when it was asked", answer.alias)


def _threads_for(alias: str) -> WorkerThreads:
    return WorkerThreads(MAX_THREADS, f"distlock-ask-{alias}")


#: by alias
_threads = PerProcess(lambda: functools.cache(_threads_for))


def _timed(
    call: Callable[[BaseBackend, float], T],
    backend: BaseBackend,
    began: float,
    timeout: float,
    heard: Mapping[str, float],
) -> tuple[T, float]:
    """Return what a call returns, and its seconds; note whether the backend counts as silent.

    It does after a late answer, and after an error that took longer than ``SHORT_TIMEOUT``: most
    such errors say that the server has not answered.
    """
    limit = SHORT_TIMEOUT
    try:
        value = call(backend, began + timeout)
        limit = timeout
    finally:
        seconds = clock() - began
        if clock() - heard.get(backend.alias, began) > limit:
            _silent_until[backend] = clock() + SILENT_FOR
        else:
            _silent_until.pop(backend, None)
    return value, seconds


def one_line(error: BaseException) -> str:
    """Return an error as one printable line. Drivers' messages have several lines."""
    return escaped(" ".join(str(error).split())) or type(error).__name__
