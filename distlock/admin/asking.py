"""Asks several backends at the same time, and waits for none of them for long."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.backends.base import BaseBackend
from distlock.clock import clock, left
from distlock.exceptions import LockError
from distlock.handler import locks
from distlock.printable import escaped
from distlock.threads import start

logger = logging.getLogger("distlock")

#: Seconds that a backend gets for what a page shows of it.
LIMIT = 2.0
#: Threads that may wait for one backend; whoever looks again and again must not add to them.
_MOST_ASKING = 4

T = TypeVar("T")
Call = Callable[[BaseBackend, float], T]


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a backend said, or why it said nothing; ``seconds`` is how long that took."""

    alias: str
    backend: BaseBackend | None
    value: T | None
    problem: str
    seconds: float


class Unanswered(Exception):
    """A backend was not asked, or has not answered in time."""


class _Asking:
    """How many threads wait for each backend."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Wait for nobody: in the child of a fork, those threads are the parent's."""
        self._mutex = threading.Lock()
        self._waiting: Counter[str] = Counter()

    def begin(self, alias: str) -> bool:
        with self._mutex:
            if self._waiting[alias] >= _MOST_ASKING:
                return False
            self._waiting[alias] += 1
            return True

    def end(self, alias: str) -> None:
        with self._mutex:
            self._waiting[alias] -= 1


_asking = _Asking()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_asking.reset)


def ask_all(aliases: Iterable[str], call: Call[T], limit: float = LIMIT) -> dict[str, Answer[T]]:
    """Return what each backend answers to ``call(backend, deadline)``, by alias in their order.

    All are asked at once, each on a thread of its own. One that has not answered within ``limit``
    seconds is left to itself, and so is one that keeps too many waiting already.
    """
    began = clock()
    asked = {alias: _submit(alias, call, began + limit) for alias in aliases}
    wait([future for _backend, future in asked.values()], left(began + limit, limit))
    return {
        alias: _answer(alias, backend, future, limit) for alias, (backend, future) in asked.items()
    }


def _submit(
    alias: str, call: Call[T], deadline: float
) -> tuple[BaseBackend | None, Future[tuple[T, float]]]:
    future: Future[tuple[T, float]] = Future()
    try:
        backend = locks[alias]
    except ImproperlyConfigured as error:
        future.set_exception(error)
        return None, future
    if not _asking.begin(alias):
        future.set_exception(Unanswered(_("Earlier questions to it are still without an answer.")))
        return backend, future

    def run() -> None:
        began = clock()
        try:
            value, problem = call(backend, deadline), None
        except BaseException as error:
            problem = error
        # Before anyone is told, because who waits may have left the future locked: see Bell.
        _asking.end(alias)
        if problem is None:
            future.set_result((value, clock() - began))
        else:
            future.set_exception(problem)

    try:
        start(run, f"distlock-admin-{alias}")
    except RuntimeError as error:  # no more threads can be had
        _asking.end(alias)
        future.set_exception(Unanswered(str(error)))
    return backend, future


def _answer(
    alias: str, backend: BaseBackend | None, future: Future[tuple[T, float]], limit: float
) -> Answer[T]:
    if not future.done():
        seconds = int(limit)
        problem = ngettext(
            "No answer within %(seconds)d second.", "No answer within %(seconds)d seconds.", seconds
        )
        return Answer(alias, backend, None, problem % {"seconds": seconds}, limit)
    if (error := future.exception()) is None:
        value, seconds_taken = future.result()
        return Answer(alias, backend, value, "", seconds_taken)
    if not isinstance(error, (LockError, ImproperlyConfigured, Unanswered)):
        logger.error("backend %r failed when the admin asked it", alias, exc_info=error)
    problem = escaped(" ".join(str(error).split()))  # drivers like to speak in several lines
    return Answer(alias, backend, None, problem or type(error).__name__, 0.0)
