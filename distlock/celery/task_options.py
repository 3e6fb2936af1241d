"""The options of a locked task, checked when the task is made and by ``manage.py check``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from distlock.backends.base import BaseBackend
from distlock.checks import TAG
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.core.entrant import OnLost
from distlock.core.name_template import Template
from distlock.exceptions import NotSupported
from distlock.recipes.shared import Slots, checked_slots
from distlock.types.arguments import (
    Release,
    checked_callback,
    checked_choice,
    checked_release,
    checked_seconds,
)

TaskOnBusy = Literal["wait", "raise", "skip", "retry"]
#: Seconds that "wait" waits without a ``timeout``.
_WAIT = 60.0
OnUnavailable = Literal["raise", "retry"]
Until = Literal["started", "finished"]
OnQueued = Literal["raise", "return"]
Terminate = Literal["terminate"]
TERMINATE: Terminate = "terminate"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a locked task; times are in seconds.

    The lock that is held while the task runs:

    - ``lock``: its name: a template that is filled in from the arguments of the call by name,
      defaults included (``"report:{account_id}"``), or a callable that gets them and returns it.
    - ``slots``: how many tasks may run at a time under that name; None for one, under a Lock. With
      a number it is a ``Semaphore``, of which each task takes one seat; "agreed" takes the number
      that ``manage.py locks resize`` has said last. A task that says another number than those
      that run now is treated as if the backend could not be asked. It excludes ``at_least``.
    - ``on_busy``: what happens to a task whose lock is held by someone else, or has no free slot:
      "retry" queues it again, "wait" waits in the worker, "skip" leaves it undone, "raise" fails
      with LockBusy.
    - ``timeout``: seconds to wait in the worker before that; None does not wait, but 60 s for
      "wait", which then fails with LockTimeout.
    - ``busy_delay``, ``busy_delay_max``, ``busy_limit``: for "retry", the pause before the first
      time, twice as long each time up to the longest; and how many times at most (None: no limit),
      after which the task fails with LockTimeout. Its own retries are not counted among these.
    - ``busy_result``: for "skip", the result of a task that was left undone.
    - ``on_unavailable``: what happens to a task whose backend cannot be asked for the lock: "retry"
      queues it again, after the same pauses as a busy one, "raise" fails with LockUnavailable, or
      with ValueNotAgreed because of ``slots``.
    - ``unavailable_timeout``: for "retry", the longest sum of these pauses in an outage; the task
      then fails with that error. Its own retries are not counted among these, either.
    - ``lease``, ``at_least``, ``release``: as of ``Lock``. A task runs inside a transaction of
      others where it is called directly or eagerly.
    - ``on_lost``: as of ``Lock``; or "terminate", which raises LockLost inside the task.
    - ``using``: the alias of the backend in the DISTLOCK setting.

    How far the task is, with or without a lock:

    - ``progress``: the name of the ``Progress`` under which it reports, as of ``lock``; or True,
      for one of its own: the name of the task, and its id in brackets. The task has it as its
      ``progress``. If somebody asks it to end, its next ``advance()`` raises ``Cancelled``, and for
      Celery it is then revoked.

    The lock that is held while the task is queued:

    - ``queueing_lock``: its name, as of ``lock``. The two are never the same lock.
    - ``until``: "started" frees it when the task starts, "finished" when it has ended.
    - ``on_queued``: a second call gets the result of the first ("return") or AlreadyQueued
      ("raise").
    - ``queueing_ttl``: how long after the moment at which it may start a message is waited for.
    - ``queueing_using``: the alias of the backend, if it is to be another one. It must be one
      whose holds outlive the process that took them.
    """

    lock: Template | None = None
    slots: Slots | None = None
    on_busy: TaskOnBusy = "retry"
    timeout: float | None = None
    busy_result: Any = None
    busy_delay: float = 1.0
    busy_delay_max: float = 60.0
    busy_limit: int | None = 100
    on_unavailable: OnUnavailable = "retry"
    unavailable_timeout: float = 600.0
    lease: float | None = None
    at_least: float | None = None
    on_lost: OnLost | Terminate | None = None
    release: Release | None = None
    using: str = DEFAULT_ALIAS
    progress: Template | Literal[True] | None = None
    queueing_lock: Template | None = None
    until: Until = "started"
    on_queued: OnQueued = "return"
    queueing_ttl: float = 3600.0
    queueing_using: str | None = None

    def __post_init__(self) -> None:
        _checked_template("lock", self.lock)
        _checked_template("queueing_lock", self.queueing_lock)
        if self.progress is not True:
            _checked_template("progress", self.progress)
        checked_choice("on_busy", self.on_busy, get_args(TaskOnBusy))
        checked_choice("on_unavailable", self.on_unavailable, get_args(OnUnavailable))
        checked_choice("until", self.until, get_args(Until))
        checked_choice("on_queued", self.on_queued, get_args(OnQueued))
        if self.timeout is not None:
            checked_seconds("timeout", self.timeout)
        checked_seconds("busy_delay", self.busy_delay)
        checked_seconds("busy_delay_max", self.busy_delay_max)
        checked_seconds("unavailable_timeout", self.unavailable_timeout)
        checked_seconds("queueing_ttl", self.queueing_ttl)
        if self.lease is not None:
            checked_seconds("lease", self.lease)
        if self.at_least is not None:
            checked_seconds("at_least", self.at_least)
        if self.release is not None:
            checked_release("release", self.release)
        checked_slots("slots", self.slots, at_least=self.at_least)
        if self.busy_delay > self.busy_delay_max:
            raise ValueError(
                f"busy_delay must not be longer than busy_delay_max, got {self.busy_delay!r} and"
                f" {self.busy_delay_max!r}"
            )
        _checked_count("busy_limit", self.busy_limit)
        if isinstance(self.on_lost, str):
            checked_choice("on_lost", self.on_lost, (TERMINATE,))
        else:
            checked_callback("on_lost", self.on_lost)
        _checked_alias("using", self.using)
        if self.queueing_using is not None:
            _checked_alias("queueing_using", self.queueing_using)

    def delay(self, times: int) -> float:
        """Return the longest pause before a busy task is queued again for the n-th time."""
        return float(min(self.busy_delay * 2 ** min(times - 1, 60), self.busy_delay_max))

    @property
    def waits(self) -> float | None:
        """Seconds to wait in the worker for a busy lock; None tries once."""
        return _WAIT if self.timeout is None and self.on_busy == "wait" else self.timeout

    @property
    def longest_delay(self) -> float:
        """The pauses of all times together; -1, which waits for ever, without a limit."""
        return -1.0 if self.busy_limit is None else self.delays(self.busy_limit)

    def delays(self, times: int) -> float:
        """Return the pauses of so many times together."""
        return sum(self.delay(each) for each in range(1, times + 1))


#: The tasks that not every backend can serve, by name.
_declared: dict[str, TaskOptions] = {}

#: The names of all options.
NAMES = tuple(field.name for field in fields(TaskOptions))

#: The options that say more of a lock, by the option that gives its name.
OF_LOCK = {
    "lock": ("slots", "on_busy", "timeout", "busy_result", "busy_delay", "busy_delay_max")
    + ("busy_limit", "on_unavailable", "unavailable_timeout", "lease", "at_least", "on_lost")
    + ("release",),
    "queueing_lock": ("until", "on_queued", "queueing_ttl", "queueing_using"),
}


def backend_of(task: str, option: str, alias: str) -> BaseBackend:
    """Return the backend of an alias; ImproperlyConfigured, naming the task, if there is none."""
    try:
        return locks[alias]
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(
            f"task {task}: {option}={alias!r} cannot be used: {error}"
        ) from error


def queueing_backend(task: str, locking: TaskOptions) -> BaseBackend:
    """Return the backend that keeps the place of a task in the queue.

    Raises ImproperlyConfigured if there is none, NotSupported if its holds end with the process
    that took them: the publisher may end before a worker gets the message.
    """
    option = "using" if locking.queueing_using is None else "queueing_using"
    backend = backend_of(task, option, getattr(locking, option))
    if backend.capabilities.outlives_process:
        return backend
    able = ", ".join(
        f"{each.alias!r} ({type(each).__name__})"
        for each in locks.all()
        if each.capabilities.outlives_process
    )
    if able:
        way_out = f"Set queueing_using to one of: {able}."
    else:
        way_out = "No alias of DISTLOCK can: add one for a database, and set queueing_using to it."
    raise NotSupported(
        f"task {task}: {option}={backend.alias!r} cannot keep queueing_lock: what"
        f" {type(backend).__name__} (DISTLOCK[{backend.alias!r}]) holds ends with the process that"
        f" took it. {way_out}"
    )


def _refuse_unsupported(task: str, locking: TaskOptions) -> None:
    """Raise NotSupported if a backend of the task cannot do what is asked of it."""
    if locking.queueing_lock is not None:
        queueing_backend(task, locking)
    for option in ("slots", "progress"):  # these need a backend that keeps records
        if (value := getattr(locking, option)) is not None:
            try:
                _ = backend_of(task, "using", locking.using).store
            except NotSupported as error:
                raise NotSupported(f"task {task}: {option}={value!r}: {error}") from error


def declare(task: str, locking: TaskOptions) -> None:
    """Note a task that not every backend can serve; NotSupported if its own cannot.

    Tasks may be declared before the settings or the models are ready. Then ``manage.py check``
    finds it, and the first call is refused.
    """
    _declared[task] = locking
    if settings.configured and apps.models_ready:
        with suppress(ImproperlyConfigured):  # reported by the check of the settings
            _refuse_unsupported(task, locking)


@register(TAG)
def check_tasks(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the tasks that have been imported."""
    found: list[CheckMessage] = []
    for task in sorted(_declared):
        try:
            # What else is wrong is reported by the check of the settings, or by the first call.
            with suppress(ImproperlyConfigured):
                _refuse_unsupported(task, _declared[task])
        except NotSupported as error:
            message = str(error).removeprefix(f"task {task}: ")
            found.append(Error(message, obj=f"task {task}", id="distlock.E008"))
    return found


def _checked_template(option: str, value: object) -> None:
    if value is None or (isinstance(value, str) and value):
        return
    if not callable(value) or inspect.isclass(value) or inspect.iscoroutinefunction(value):
        raise TypeError(f"{option} must be a name or a function that returns one, not {value!r}")


def _checked_alias(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{option} must be an alias of the DISTLOCK setting, not {value!r}")


def _checked_count(option: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{option} must be a whole number or None, not {value!r}")
    if value < 1:
        raise ValueError(f"{option} must be at least 1, got {value!r}")
