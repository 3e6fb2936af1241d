"""The options of a locked task, and the arguments of a call that its names are made from.

Options are checked when the task is made and by ``manage.py check``.

The caller and the worker must find one name for one call, however an argument was spelled: an enum
member arrives as its value, a tuple as a list, a pydantic model as the model that Celery validates.
So names are made from the arguments as the task's body gets them from a worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from types import CellType, FunctionType
from typing import Any, Literal, get_args

from celery.app import base as celery_base
from celery.exceptions import SoftTimeLimitExceeded
from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from kombu.serialization import dumps, loads

from distlock.apps import CHECKS_TAG
from distlock.backends.base import BaseBackend
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import BodyEnded, LockError, NotSupported
from distlock.locking.run_under import Slots, checked_slots
from distlock.runtime.hold import OnLost
from distlock.runtime.name_template import Template
from distlock.types.lease import Kind
from distlock.types.values import (
    Release,
    checked_callback,
    checked_choice,
    checked_rate,
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


def _checked_template(option: str, value: object) -> None:
    if (isinstance(value, str) and value) or (value is True and option == "progress"):
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


def _checked_on_lost(option: str, value: object) -> None:
    if isinstance(value, str):
        checked_choice(option, value, (TERMINATE,))
    else:
        checked_callback(option, value)


#: The check of each option that is not at its default.
_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(("lock", "rate_name", "queueing_lock", "progress"), _checked_template),
    "rate": checked_rate,
    **dict.fromkeys(("timeout", "lease", "at_least", "queueing_ttl"), checked_seconds),
    **dict.fromkeys(("busy_delay", "busy_delay_max", "unavailable_timeout"), checked_seconds),
    **dict.fromkeys(("using", "queueing_using"), _checked_alias),
    "on_busy": partial(checked_choice, allowed=get_args(TaskOnBusy)),
    "on_unavailable": partial(checked_choice, allowed=get_args(OnUnavailable)),
    "until": partial(checked_choice, allowed=get_args(Until)),
    "on_queued": partial(checked_choice, allowed=get_args(OnQueued)),
    "release": checked_release,
    "busy_limit": _checked_count,
    "on_lost": _checked_on_lost,
}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a locked task; times are in seconds.

    The lock that is held while the task runs:

    - ``lock``: its name: a template that is filled in from the arguments of the call by name,
      defaults included (``"report:{account_id}"``), or a callable that gets them and returns it.
    - ``slots``: how many tasks may run at a time under that name; None for one, under a Lock. With
      a number it is a ``Semaphore``, of which each task takes one seat; "agreed" takes the number
      that ``manage.py locks resize`` has set last. A task with another number than those
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
    - ``on_unavailable``: what happens to a task whose backend does not answer for the lock: "retry"
      queues it again, after the same pauses as a busy one, "raise" fails with LockUnavailable, or
      with ValueNotAgreed because of ``slots``.
    - ``unavailable_timeout``: for "retry", the longest sum of these pauses in an outage; the task
      then fails with that error. Its own retries are not counted among these, either.
    - ``lease``, ``at_least``, ``release``: as for ``Lock``. A task runs inside a transaction of
      others where it is called directly or eagerly.
    - ``on_lost``: as for ``Lock``; or "terminate", which raises LockLost inside the task.
    - ``using``: the alias of the backend in the DISTLOCK setting.

    How often the task runs, with or without a lock:

    - ``rate``: a maximum of runs in any period, over all workers: "30/m", "5/s", "100/h",
      "10/30s". Each takes a permit of a ``RateLimiter`` before it begins. ``on_busy`` and all that
      follows it up to ``unavailable_timeout`` say what becomes of a run that gets none.
    - ``rate_name``: the name of the limiter, as for ``lock``; by default that of the task.

    How far the task is, with or without a lock:

    - ``progress``: the name of the ``Progress`` under which it reports, as for ``lock``; or True,
      for one of its own: the name of the task, and its id in brackets. The task has it as its
      ``progress``. If somebody asks it to end, its next ``advance()`` raises ``Cancelled``, and for
      Celery it is then revoked.

    The lock that is held while the task is queued:

    - ``queueing_lock``: its name, as for ``lock``. The two are never the same lock.
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
    rate: str | None = None
    rate_name: Template | None = None
    progress: Template | Literal[True] | None = None
    queueing_lock: Template | None = None
    until: Until = "started"
    on_queued: OnQueued = "return"
    queueing_ttl: float = 3600.0
    queueing_using: str | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not option.default and option.name in _CHECKS:
                _CHECKS[option.name](option.name, value)
        checked_slots("slots", self.slots, at_least=self.at_least)
        if (first := self.busy_delay) > (longest := self.busy_delay_max):
            got = f"got {first!r} and {longest!r}"
            raise ValueError(f"busy_delay must not be longer than busy_delay_max, {got}")

    def delay(self, times: int) -> float:
        """Return the longest pause before a busy task is queued again for the n-th time."""
        return float(min(self.busy_delay * 2 ** min(times - 1, 60), self.busy_delay_max))

    def delays(self, times: int) -> float:
        """Return the sum of these pauses for the first ``times`` times."""
        return sum(self.delay(each) for each in range(1, times + 1))

    def patience(self, requeueable: bool) -> float | None:
        """Return the seconds to wait in the worker for a busy lock: None tries once, -1 forever.

        A task that cannot be requeued waits for as long as it would have been.
        """
        if self.on_busy == "retry" and not requeueable:
            return -1.0 if self.busy_limit is None else self.delays(self.busy_limit)
        return _WAIT if self.timeout is None and self.on_busy == "wait" else self.timeout

    @property
    def kind(self) -> Kind:
        """The kind of lock under which the task runs."""
        return Kind.LOCK if self.slots is None else Kind.SEMAPHORE


#: The tasks that not every backend can serve, by name.
_declared: dict[str, TaskOptions] = {}

#: The names of all options.
NAMES = tuple(field.name for field in fields(TaskOptions))

#: The options that say more of a lock, by the option that gives its name, which they follow above.
OF_LOCK = {
    "lock": NAMES[NAMES.index("lock") + 1 : NAMES.index("using")],
    "rate": ("rate_name",),
    "queueing_lock": NAMES[NAMES.index("queueing_lock") + 1 :],
}
#: those of a lock that are also of a rate
OF_RATE = NAMES[NAMES.index("on_busy") : NAMES.index("lease")]


def backend_of(task: str, option: str, alias: str) -> BaseBackend:
    """Return the backend of an alias; ImproperlyConfigured, naming the task, if there is none."""
    try:
        return locks[alias]
    except ImproperlyConfigured as error:
        message = f"task {task}: {option}={alias!r} cannot be used: {error}"
        raise ImproperlyConfigured(message) from error


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
    way_out = "No alias of DISTLOCK can: add one for a database, and set queueing_using to it."
    if able:
        way_out = f"Set queueing_using to one of: {able}."
    raise NotSupported(
        f"task {task}: {option}={backend.alias!r} cannot keep queueing_lock: what"
        f" {type(backend).__name__} (DISTLOCK[{backend.alias!r}]) holds ends with the process that"
        f" took it. {way_out}"
    )


def _refuse_unsupported(task: str, locking: TaskOptions) -> None:
    """Raise NotSupported if a backend of the task cannot do what is asked of it."""
    if locking.queueing_lock is not None:
        queueing_backend(task, locking)
    for option in ("slots", "rate", "progress"):  # these need a backend that keeps records
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


@register(CHECKS_TAG)
def check_tasks(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the tasks that have been imported."""
    found: list[CheckMessage] = []
    for task in sorted(_declared):
        try:
            # The check of the settings, or the first call, reports other errors.
            with suppress(ImproperlyConfigured):
                _refuse_unsupported(task, _declared[task])
        except NotSupported as error:
            message = str(error).removeprefix(f"task {task}: ")
            found.append(Error(message, obj=f"task {task}", id="distlock.E008"))
    return found


#: Serializers return these as they are.
_PLAIN = frozenset({bool, float, int, str, type(None)})

#: Errors that other code raises inside of whatever runs, and that kombu wraps into one of its own.
_INTERRUPTS: tuple[type[Exception], ...] = (SoftTimeLimitExceeded, BodyEnded)


def raise_interrupt(error: Exception, *more: type[Exception]) -> None:
    """Raise the interrupt, or one of ``more``, that this error is, or that it was made of."""
    for interrupt in (error, error.__context__):
        if isinstance(interrupt, _INTERRUPTS + more):
            raise interrupt from None


#: Validates the arguments of a call and returns them.
Validation = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


class ReceivedArguments:
    """Makes, from the arguments of a call, those that the body of a task gets in a worker.

    A caller's arguments become the same as the worker's, and those of the worker stay as they are:

    1. where Celery validates (``pydantic=True``), a model is dumped, as Celery does;
    2. each value goes through the serializer of the task and back; one that the serializer refuses,
       which only a direct or an eager call can have, stays as it is;
    3. dictionaries get one order;
    4. where Celery validates, it does so.
    """

    def __init__(self, task: Any, body: Callable[..., Any]) -> None:
        """``task`` is a class of tasks, ``body`` what its callers call.

        TypeError if Celery validates arguments in a way that is not known here.
        """
        self._task = task
        self._signature = inspect.signature(body)
        self._validate = _validation(body)

    def __call__(
        self, bound: inspect.BoundArguments, fields: Collection[str] | None
    ) -> inspect.BoundArguments:
        """Return the arguments with defaults; only ``fields`` need to be right, None for all.

        Raises what the validation raises.
        """
        if self._validate is None:
            bound.apply_defaults()
            self._convert(bound, fields)
            return bound
        args, kwargs = bound.args, bound.kwargs
        # Celery before 5.7 cannot send models: there is nothing to dump.
        if dump := getattr(self._task, "_dump_pydantic_arguments", None):
            args, kwargs = dump(args, kwargs)
        bound = self._signature.bind(*args, **kwargs)
        self._convert(bound, None)
        args, kwargs = self._validate(*bound.args, **bound.kwargs)
        bound = self._signature.bind(*args, **kwargs)
        given = set(bound.arguments)
        bound.apply_defaults()  # Celery does not validate these
        self._convert(bound, bound.arguments.keys() - given)
        return bound

    def _convert(self, bound: inspect.BoundArguments, fields: Collection[str] | None) -> None:
        for name, value in bound.arguments.items():
            if fields is not None and name not in fields:
                continue
            match self._signature.parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    value = tuple(map(self._received, value))
                case inspect.Parameter.VAR_KEYWORD:
                    value = _in_order({key: self._received(each) for key, each in value.items()})
                case _:
                    value = self._received(value)
            bound.arguments[name] = value

    def _received(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        serializer = self._task.serializer or self._task._get_app().conf.task_serializer
        try:
            kind, encoding, message = dumps(value, serializer)
            value = loads(message, kind, encoding, accept=[kind])
        except Exception as error:
            raise_interrupt(error, LockError)
        return _in_order(value)


def _in_order(value: Any) -> Any:
    """Return the value with its dictionaries in the order of their keys."""
    if type(value) is dict:
        return {key: _in_order(value[key]) for key in sorted(value, key=repr)}
    if type(value) in (list, tuple):
        return type(value)(map(_in_order, value))
    return value


def _validation(body: Callable[..., Any]) -> Validation | None:
    """Return what Celery's ``pydantic=True`` does before it calls the body; None without it.

    Celery has wrapped the function of the task. This is the wrapper with another function inside,
    which returns its arguments.
    """
    wrapper: Any = getattr(body, "__func__", body)
    if getattr(wrapper, "__globals__", None) is not vars(celery_base):
        return None
    function, cells = wrapper.__wrapped__, wrapper.__closure__
    replaced = tuple(CellType(_given) if cell.cell_contents is function else cell for cell in cells)
    if replaced == cells:
        raise TypeError("pydantic=True works in another way in this version of Celery")
    validate = FunctionType(wrapper.__code__, wrapper.__globals__, closure=replaced)
    if wrapper is body:
        return validate

    def validate_bound(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = validate(None, *args, **kwargs)
        return args[1:], kwargs

    return validate_bound


def _given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs
