"""Asks several backends at the same time, and waits for none of them for long.

A backend that has not answered in time is asked again by every page, but for some seconds no page
waits for that: each process finds a silent backend out once, and others are shown without delay.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from distlock.backends.base import BaseBackend
from distlock.clock import clock, left
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.threads import start
from distlock.types.printable import escaped

logger = logging.getLogger("distlock")

#: Seconds that a backend gets for what a page shows of it.
LIMIT = 2.0
#: Seconds for which no page waits for a backend that has not answered in time.
REMEMBERED = 15.0
#: Seconds that it gets all the same, so that one that is back is seen at once.
SHORT_LIMIT = 0.1
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
    """How many threads wait for each backend, and which backends were silent, and when."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Wait for nobody: in the child of a fork, those threads are the parent's."""
        self._mutex = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self._silent_at: weakref.WeakKeyDictionary[BaseBackend, float] = weakref.WeakKeyDictionary()

    def begin(self, alias: str) -> bool:
        with self._mutex:
            if self._waiting[alias] >= _MOST_ASKING:
                return False
            self._waiting[alias] += 1
            return True

    def end(self, alias: str) -> None:
        with self._mutex:
            self._waiting[alias] -= 1

    def note(self, backend: BaseBackend, *, silent: bool) -> None:
        """Remember that a backend has not answered in time, or forget it."""
        with self._mutex:
            if silent:
                self._silent_at[backend] = clock()
            else:
                self._silent_at.pop(backend, None)

    def is_silent(self, backend: BaseBackend) -> bool:
        """Return whether a backend has lately not answered in time."""
        with self._mutex:
            silent_at = self._silent_at.get(backend)
            return silent_at is not None and clock() < silent_at + REMEMBERED


_asking = _Asking()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_asking.reset)


@dataclass(slots=True)
class _Question(Generic[T]):
    """What was asked of a backend; ``patient``: the page waits for the answer."""

    alias: str
    backend: BaseBackend | None = None
    patient: bool = True
    answer: Future[tuple[T, float]] = field(default_factory=Future)


def ask_all(
    aliases: Iterable[str], call: Call[T], limit: float = LIMIT, *, patient: bool = True
) -> dict[str, Answer[T]]:
    """Return what each backend answers to ``call(backend, deadline)``, by alias in their order.

    All are asked at once, each on a thread of its own. One that has not answered within ``limit``
    seconds is left to itself, and so is one that keeps too many waiting already. One that has
    lately not answered in time is not waited for, unless ``patient``.
    """
    began = clock()
    asked = [_ask(alias, call, began, limit, patient) for alias in aliases]
    wait([question.answer for question in asked if question.patient], left(began + limit, limit))
    hurried = [question.answer for question in asked if not question.patient]
    wait(hurried, left(began + SHORT_LIMIT, SHORT_LIMIT))
    return {question.alias: _answer(question, limit) for question in asked}


def _ask(alias: str, call: Call[T], began: float, limit: float, patient: bool) -> _Question[T]:
    question: _Question[T] = _Question(alias)
    answer = question.answer
    try:
        question.backend = backend = locks[alias]
    except ImproperlyConfigured as error:
        answer.set_exception(error)
        return question
    question.patient = patient or not _asking.is_silent(backend)
    if not _asking.begin(alias):
        answer.set_exception(Unanswered(_("Earlier questions to it are still without an answer.")))
        return question

    def run() -> None:
        problem: BaseException | None = None
        try:
            value = call(backend, began + limit)
        except BaseException as error:
            problem = error
        seconds = clock() - began
        # Before anyone is told, because who waits may have left the future locked: see Bell.
        _asking.note(backend, silent=seconds > (SHORT_LIMIT if problem else limit))
        _asking.end(alias)
        if problem is None:
            answer.set_result((value, seconds))
        else:
            answer.set_exception(problem)

    try:
        start(run, f"distlock-admin-{alias}")
    except RuntimeError as error:  # no more threads can be had
        _asking.end(alias)
        answer.set_exception(Unanswered(str(error)))
    return question


def _answer(question: _Question[T], limit: float) -> Answer[T]:
    alias, backend, answer = question.alias, question.backend, question.answer
    if not answer.done():
        return Answer(alias, backend, None, _silence(question, limit), limit)
    if (error := answer.exception()) is None:
        value, seconds = answer.result()
        return Answer(alias, backend, value, "", seconds)
    if not isinstance(error, (LockError, ImproperlyConfigured, Unanswered)):
        logger.error("backend %r failed when the admin asked it", alias, exc_info=error)
    problem = escaped(" ".join(str(error).split()))  # drivers like to speak in several lines
    return Answer(alias, backend, None, problem or type(error).__name__, 0.0)


def _silence(question: _Question[T], limit: float) -> str:
    if not question.patient:
        return _("It did not answer a moment ago, so this page has not waited for it.")
    if question.backend is not None:
        _asking.note(question.backend, silent=True)
    seconds = int(limit)
    text = ngettext(
        "No answer within %(seconds)d second.", "No answer within %(seconds)d seconds.", seconds
    )
    return text % {"seconds": seconds}
