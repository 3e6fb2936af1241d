"""The task class whose tasks run under a lock, and are queued under another."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from celery import shared_task, states
from celery.app.task import Task
from celery.contrib.django.task import DjangoTask
from celery.result import AsyncResult
from django.utils.asyncio import async_unsafe

from distlock.celery import queueing
from distlock.celery.execution import SKIPPED, SKIPPED_MARK, SkippedBackend, TaskExecution
from distlock.celery.messages import publish, running_task
from distlock.celery.task_options import (
    NAMES,
    OF_LOCK,
    OF_RATE,
    OnQueued,
    OnUnavailable,
    ReceivedArguments,
    TaskOnBusy,
    TaskOptions,
    Terminate,
    Until,
    declare,
    queueing_backend,
)
from distlock.exceptions import BodyEnded, LockError, LockNotHeld
from distlock.locking.lock import Lock
from distlock.locking.run_under import Slots
from distlock.recipes.progress import Progress
from distlock.recipes.report import Report
from distlock.runtime.hold import OnLost
from distlock.runtime.name_template import CallName, Template
from distlock.types.owners import QUEUEING
from distlock.types.values import Release

if TYPE_CHECKING:
    from distlock.celery.typed_tasks import Bind, TaskMaker  # a stub

logger = logging.getLogger("distlock.celery")

_NOT_BOUND: Any = False
#: An option that was not given is as the base class has it.
_OF_BASE: Any = object()
#: what somebody may expect of Lock or acquire(), and Celery would take for an attribute
_OF_LOCKS_ONLY = {"blocking", "description", "owner", "renew"}

#: The options that name something, the attributes that have the name for a call, and how it begins.
_NAMED = (
    ("lock", "lock_name", ""),
    ("rate_name", "limiter_name", ""),
    ("queueing_lock", "queueing_name", QUEUEING),
    ("progress", "progress_name", ""),
)


class LockedResult(AsyncResult):  # type: ignore[type-arg]
    """An ``AsyncResult`` whose ``state`` is ``"SKIPPED"`` for a task that was skipped."""

    #: the task, where it is known
    task: Any = None

    def revoke(self, *args: Any, **kwargs: Any) -> None:
        """See AsyncResult.revoke(). The next call does not find this one queued any more.

        This reads all queueing locks of the task's backend.
        """
        super().revoke(*args, **kwargs)
        if self.task is None or self.task.queueing_name is None:
            return
        try:
            queueing.unqueue_task(queueing_backend(self.task.name, self.task.locking), self.id)
        except BodyEnded:
            raise
        except LockError as error:
            logger.warning("the queueing lock of task %s is freed later: %s", self.id, error)

    @property
    def skipped(self) -> bool:
        """Whether the task was not run, because its lock was busy."""
        return self.state == SKIPPED

    @property
    def state(self) -> str:  # type: ignore[override]
        """See AsyncResult.state."""
        meta = self._meta()
        if meta["status"] == states.SUCCESS and str(meta.get("traceback")).startswith(SKIPPED_MARK):
            return SKIPPED
        return str(meta["status"])

    status = state  # type: ignore[assignment]

    def _meta(self) -> Any:
        return self._get_task_meta()  # type: ignore[attr-defined]

    def progress(self) -> Report | None:
        """Return how far the task is, with ``progress=True``; None if it has not begun.

        LockUnavailable if the backend does not answer; TypeError without that option.
        """
        if self.task is None or self.task.locking.progress is not True:
            raise TypeError(f"task {self.name or self.id} was not made with progress=True")
        return Progress.get(f"{self.task.name}[{self.id}]", using=self.task.locking.using)

    def ready(self) -> bool:
        """See AsyncResult.ready()."""
        return self._meta()["status"] in self.backend.READY_STATES

    def successful(self) -> bool:
        """See AsyncResult.successful(); nothing is wrong with a task that was skipped."""
        return bool(self._meta()["status"] == states.SUCCESS)


class LockedTask(DjangoTask):  # type: ignore[type-arg]
    """The base class of tasks that do not overlap, or are not queued twice.

    Its options are attributes, as Celery's own are: those of
    :class:`~distlock.celery.task_options.TaskOptions`, given to
    ``@app.task(base=LockedTask, ...)`` or written in a subclass, whose subclasses and tasks
    inherit them.
    """

    abstract = True
    Request = "distlock.celery.messages:LockedRequest"

    #: the options, checked
    locking: ClassVar[TaskOptions] = TaskOptions()
    #: How the two locks, the rate limiter and the progress are named for a call; None where there
    #: is no such name.
    lock_name: ClassVar[CallName | None] = None
    limiter_name: ClassVar[CallName | None] = None
    queueing_name: ClassVar[CallName | None] = None
    progress_name: ClassVar[CallName | None] = None

    _autoretried: Callable[..., Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._set_options()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """See Task.on_bound(); the task_annotations setting has set attributes by now."""
        super().on_bound(app)
        cls._set_options()

    @classmethod
    def _set_options(cls) -> None:
        """Move the options of this class into ``locking``: ``lock`` is a running task's lock."""
        given: dict[str, Any] = {}
        for name in NAMES:
            if cls is not LockedTask and name in vars(cls):
                value = vars(cls)[name]
                given[name] = value.__func__ if isinstance(value, staticmethod) else value
                delattr(cls, name)
        # Names are made of what the serializer gives back, which binding to an app has set.
        if not given and not {"run", "serializer"} & vars(cls).keys():
            return
        task = cls.name or cls.__qualname__
        try:
            cls.locking = replace(cls.locking, **given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"task {task}: {error}") from None
        run = inspect.getattr_static(cls, "run")
        if run is Task.run:
            return  # a base class
        body = run.__get__(object(), cls)  # as its callers see it, without `self`
        received = ReceivedArguments(cls, body)
        for option, attribute, prefix in _NAMED:
            template = getattr(cls.locking, option)
            what = f"task {task}: {option}={template!r}"
            if template is None or template is True:
                setattr(cls, attribute, None)
            else:
                setattr(cls, attribute, CallName(template, body, what, prefix, received))
        locking = cls.locking
        needs = locking.queueing_lock, locking.slots, locking.rate, locking.progress
        if any(each is not None for each in needs):
            declare(task, locking)

    @property
    def lock(self) -> Lock:
        """The lock that this execution of the task holds; LockNotHeld if there is none.

        With ``slots`` it is a Semaphore, which has all of a Lock but ``atomic()``.
        """
        execution = self._execution
        if execution is None or execution.lock is None:
            raise LockNotHeld(f"task {self.name} holds no lock here")
        return cast("Lock", execution.lock)

    @property
    def progress(self) -> Progress:
        """The progress of this execution of the task, with the option of that name."""
        execution = self._execution
        if execution is None or execution.progress is None:
            raise RuntimeError(f"task {self.name} reports no progress here: give it progress=True")
        return execution.progress

    @property
    def _execution(self) -> TaskExecution | None:
        """The run of this task in the current thread or greenlet."""
        running = running_task.get()
        return running if isinstance(running, TaskExecution) and running.task is self else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under its lock."""
        request: Any = self.request_stack.top
        run = self.run
        if request is None or request.called_directly or request._protected:
            request, run = None, super().__call__  # called as a plain function
        else:
            # Celery's own __call__ would put an empty request above the one that the worker made.
            request._protected = 1
        execution = TaskExecution(self, request)
        if self._autoretried is None:  # else the lock is taken by _orig_run
            run = partial(execution.under_lock, run)
        return execution.run(run, *args, **kwargs)

    @property
    def _orig_run(self) -> Callable[..., Any]:
        """What Celery's ``autoretry_for`` wraps and calls: the body, and the lock around it."""
        if self._autoretried is None:
            raise AttributeError("_orig_run")  # so Celery sees that nothing is wrapped yet
        execution = self._execution
        if execution is None or execution.begun:
            return self._autoretried
        return partial(execution.under_lock, self._autoretried)

    @_orig_run.setter
    def _orig_run(self, body: Callable[..., Any]) -> None:
        self._autoretried = body

    def apply_async(  # type: ignore[override]
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> Any:
        """See Task.apply_async(). A call that is queued already queues nothing.

        It then returns the result of the one that is queued or raises AlreadyQueued, as the task's
        ``on_queued`` says; LockUnavailable is raised if its backend does not answer.
        """
        return publish(self, super().apply_async, args, kwargs, task_id, options)

    def AsyncResult(self, task_id: str, **kwargs: Any) -> LockedResult:
        """See Task.AsyncResult()."""
        result = LockedResult(
            task_id, app=self.app, backend=self.backend, task_name=self.name, **kwargs
        )
        result.task = self
        return result

    @async_unsafe(
        "unqueue() would block the event loop here; use `await sync_to_async(task.unqueue)(...)`."
    )
    def unqueue(self, *args: Any, **kwargs: Any) -> str | None:
        """Take the call with these arguments out of the queue: it is revoked, its lock is free.

        Returns its task id, or None if no such call is queued; one that has started goes on.
        Raises TypeError if the task has no queueing lock or cannot be called like this,
        LockUnavailable if the lock's backend does not answer.
        """
        if self.queueing_name is None:
            raise TypeError(f"task {self.name} has no queueing_lock")
        backend = queueing_backend(self.name, self.locking)
        task_id = queueing.unqueue(backend, self.queueing_name(args, kwargs))
        if task_id is not None:
            self.app.control.revoke(task_id)
        return task_id

    @property
    def backend(self) -> Any:
        """See Task.backend."""
        backend = super().backend
        reason = getattr(self.request_stack.top, "distlock_skipped", None)
        return backend if reason is None else SkippedBackend(backend, reason)

    @backend.setter
    def backend(self, value: Any) -> None:
        self._backend = value


def locked_task(
    function: None = None,
    /,
    *,
    bind: Bind = _NOT_BOUND,
    lock: Template | None = _OF_BASE,
    slots: Slots | None = _OF_BASE,
    on_busy: TaskOnBusy = _OF_BASE,
    timeout: float | None = _OF_BASE,
    busy_result: Any = _OF_BASE,
    busy_delay: float = _OF_BASE,
    busy_delay_max: float = _OF_BASE,
    busy_limit: int | None = _OF_BASE,
    on_unavailable: OnUnavailable = _OF_BASE,
    unavailable_timeout: float = _OF_BASE,
    lease: float | None = _OF_BASE,
    at_least: float | None = _OF_BASE,
    on_lost: OnLost | Terminate | None = _OF_BASE,
    release: Release | None = _OF_BASE,
    using: str = _OF_BASE,
    rate: str | None = _OF_BASE,
    rate_name: Template | None = _OF_BASE,
    progress: Template | Literal[True] | None = _OF_BASE,
    queueing_lock: Template | None = _OF_BASE,
    until: Until = _OF_BASE,
    on_queued: OnQueued = _OF_BASE,
    queueing_ttl: float = _OF_BASE,
    queueing_using: str | None = _OF_BASE,
    base: type[LockedTask] = LockedTask,
    **options: Any,
) -> TaskMaker[Bind]:
    """Make a ``shared_task`` that runs under a lock or a semaphore, or is queued under a lock.

    It may also run at most so often, see ``rate``, and report how far it is, see ``progress``.

    Use it as ``@locked_task(...)``; it returns what makes a task of the function. ``bind`` is as of
    Celery. ``options`` are those of :class:`~distlock.celery.task_options.TaskOptions` and those of
    Celery's tasks. Options that are not given are those of ``base``.
    Raises TypeError or ValueError that names the task, the option and its value; NotSupported if
    the backend of the queueing lock cannot keep it.
    """
    arguments = locals()
    given = {name: arguments[name] for name in NAMES if arguments[name] is not _OF_BASE}
    if function is not None:
        raise TypeError(
            "locked_task takes options by name: @locked_task(lock=...) or"
            " @locked_task(queueing_lock=...)"
        )
    return cast("TaskMaker[Bind]", partial(_make_task, bind, base, given, options))


def _make_task(
    bind: bool,
    base: type[LockedTask],
    given: dict[str, Any],
    options: dict[str, Any],
    function: Callable[..., Any],
) -> Any:
    """Return the task of a function; ``given`` are our options, ``options`` Celery's."""
    name = str(options.get("name") or f"{function.__module__}.{function.__name__}")
    for option in _OF_LOCKS_ONLY & options.keys():  # Celery would take any
        raise TypeError(
            f"task {name}: {option}={options[option]!r} is not an option of a task;"
            " see on_busy, timeout and lease"
        )
    if not (inspect.isclass(base) and issubclass(base, LockedTask)):
        raise TypeError(f"task {name}: base must be a subclass of LockedTask, not {base!r}")
    # Celery makes the task's class later, for each app. Making one now finds what is wrong.
    run = function if bind else staticmethod(function)
    checked: Any = type(name, (base,), {**given, "name": name, "run": run})
    if all(getattr(checked.locking, option) is None for option in (*OF_LOCK, "progress")):
        raise TypeError(f"task {name}: give it lock=, rate=, queueing_lock=, progress=, or several")
    for option, others in OF_LOCK.items():
        for other in others:
            of = (option, "rate") if other in OF_RATE else (option,)
            if other in given and all(getattr(checked.locking, each) is None for each in of):
                raise TypeError(f"task {name}: {other} has no meaning without {' or '.join(of)}")
    return shared_task(bind=bind, base=base, **given, **options)(function)
