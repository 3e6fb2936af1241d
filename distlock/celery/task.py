"""The task class whose tasks run under a lock, and are queued under another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, TypeVar, overload

from celery import shared_task
from celery.app.task import Task
from celery.contrib.django.task import DjangoTask
from django.utils.asyncio import async_unsafe

from distlock.celery import checks, queueing, signal_handlers
from distlock.celery.current import innermost
from distlock.celery.execution import Run
from distlock.celery.naming import CallName
from distlock.celery.options import (
    NAMES,
    OF_LOCK,
    OnBusy,
    OnQueued,
    OnUnavailable,
    Options,
    Template,
    Terminate,
    Until,
    queueing_backend,
)
from distlock.celery.publishing import publish
from distlock.celery.results import LockedResult, SkippedBackend
from distlock.celery.typed import TypedTask
from distlock.core.held import OnLost
from distlock.core.queueing_owners import task_id_of
from distlock.exceptions import LockNotHeld
from distlock.lock import Lock

P = ParamSpec("P")
R = TypeVar("R")


class LockedTask(DjangoTask):  # type: ignore[misc]
    """A base class for tasks that do not overlap, or are not queued twice.

    Its options are attributes, as Celery's own are: those of
    :class:`~distlock.celery.options.Options`, given to ``@app.task(base=LockedTask, ...)`` or
    written in a subclass, whose subclasses and tasks inherit them.
    """

    abstract = True
    Request = "distlock.celery.requests:LockedRequest"

    #: the options, checked
    locking: ClassVar[Options] = Options()
    #: how the two locks are named for a call; None where there is no such lock
    lock_name: ClassVar[CallName | None] = None
    queueing_name: ClassVar[CallName | None] = None

    _autoretried: Callable[..., Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._take_options()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """See Task.on_bound(); the task_annotations setting has set attributes by now."""
        super().on_bound(app)
        cls._take_options()

    @classmethod
    def _take_options(cls) -> None:
        given = {name: cls.__dict__[name] for name in NAMES if name in cls.__dict__}
        if cls is not LockedTask:
            for name in given:
                delattr(cls, name)  # `lock` is what a running task holds
        else:
            given = {}
        body = _body_of(cls)
        if given or "run" in cls.__dict__:
            task = cls.name or cls.__qualname__
            cls.locking = checked(task, cls.locking, given)
            cls.lock_name = _named(task, "lock", cls.locking, body)
            cls.queueing_name = _named(task, "queueing_lock", cls.locking, body)
            if cls.queueing_name is not None:
                checks.declare(task, cls.locking)

    @property
    def lock(self) -> Lock:
        """The lock that this run of the task holds; LockNotHeld if there is none."""
        run = innermost.get()
        if run is None or run.task is not self or run.lock is None:
            raise LockNotHeld(f"task {self.name} holds no lock here")
        return run.lock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task under its lock."""
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected:
            run = Run(self, None)
            return run.perform(partial(run.under_lock, super().__call__, *args, **kwargs))
        # Celery's own __call__ would put an empty request above the one that the worker has made.
        request._protected = 1
        request.distlock_ran = True
        run = Run(self, request)
        if self._autoretried is not None:
            return run.perform(partial(self.run, *args, **kwargs))
        return run.perform(partial(run.under_lock, self.run, *args, **kwargs))

    @property
    def _orig_run(self) -> Callable[..., Any]:
        """What Celery's ``autoretry_for`` wraps and calls: the body, and the lock around it."""
        if self._autoretried is None:
            raise AttributeError("_orig_run")  # so Celery sees that nothing is wrapped yet
        run = innermost.get()
        if run is None or run.task is not self or run.begun:
            return self._autoretried
        return partial(run.under_lock, self._autoretried)

    @_orig_run.setter
    def _orig_run(self, body: Callable[..., Any]) -> None:
        self._autoretried = body

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> Any:
        """See Task.apply_async(). A call that is queued already queues nothing.

        It then returns the result of the one that is queued or raises AlreadyQueued, as the task's
        ``on_queued`` says; LockUnavailable is raised if the lock cannot be asked.
        """
        return publish(self, super().apply_async, args, kwargs, task_id, options)

    def AsyncResult(self, task_id: str, **kwargs: Any) -> LockedResult:
        """See Task.AsyncResult()."""
        result = LockedResult(
            task_id, app=self._get_app(), backend=self.backend, task_name=self.name, **kwargs
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
        LockUnavailable if the lock's backend cannot be asked.
        """
        if self.queueing_name is None:
            raise TypeError(f"task {self.name} has no queueing_lock")
        backend = queueing_backend(self.name, self.locking)
        info = queueing.unqueue(backend, self.queueing_name(args, kwargs))
        task_id = task_id_of(info) if info is not None else None
        if task_id is not None:
            self._get_app().control.revoke(task_id)
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


@overload
def locked_task(
    *,
    bind: Literal[True],
    lock: Template | None = ...,
    on_busy: OnBusy = ...,
    busy_result: Any = ...,
    busy_timeout: float = ...,
    busy_delay: float = ...,
    busy_delay_max: float = ...,
    busy_limit: int | None = ...,
    on_unavailable: OnUnavailable = ...,
    unavailable_timeout: float = ...,
    lease: float | None = ...,
    at_least: float | None = ...,
    on_lost: OnLost | Terminate | None = ...,
    using: str = ...,
    queueing_lock: Template | None = ...,
    until: Until = ...,
    on_queued: OnQueued = ...,
    queueing_ttl: float = ...,
    queueing_using: str | None = ...,
    base: type[LockedTask] = ...,
    **options: Any,
) -> Callable[[Callable[Concatenate[Any, P], R]], TypedTask[P, R]]: ...


@overload
def locked_task(
    *,
    bind: Literal[False] = ...,
    lock: Template | None = ...,
    on_busy: OnBusy = ...,
    busy_result: Any = ...,
    busy_timeout: float = ...,
    busy_delay: float = ...,
    busy_delay_max: float = ...,
    busy_limit: int | None = ...,
    on_unavailable: OnUnavailable = ...,
    unavailable_timeout: float = ...,
    lease: float | None = ...,
    at_least: float | None = ...,
    on_lost: OnLost | Terminate | None = ...,
    using: str = ...,
    queueing_lock: Template | None = ...,
    until: Until = ...,
    on_queued: OnQueued = ...,
    queueing_ttl: float = ...,
    queueing_using: str | None = ...,
    base: type[LockedTask] = ...,
    **options: Any,
) -> Callable[[Callable[P, R]], TypedTask[P, R]]: ...


def locked_task(*args: Any, **options: Any) -> Any:
    """Make a ``shared_task`` that runs under a lock, or is queued under one, or both.

    Takes the options of :class:`~distlock.celery.options.Options` and those of Celery's tasks.
    Raises TypeError or ValueError that names the task, the option and its value; NotSupported if
    the backend of the queueing lock cannot keep it.
    """
    if args:
        raise TypeError(
            "locked_task takes options by name: @locked_task(lock=...) or"
            " @locked_task(queueing_lock=...)"
        )

    def make(function: Callable[..., Any]) -> Any:
        task = str(options.get("name") or getattr(function, "__qualname__", repr(function)))
        base = options.get("base", LockedTask)
        if not (inspect.isclass(base) and issubclass(base, LockedTask)):
            raise TypeError(f"task {task}: base must be a subclass of LockedTask, not {base!r}")
        given = {name: options[name] for name in NAMES if name in options}
        locking = checked(task, base.locking, given)
        if locking.lock is None and locking.queueing_lock is None:
            raise TypeError(f"task {task}: give it lock=, queueing_lock=, or both")
        for lock, others in OF_LOCK.items():
            for option in others:
                if option in given and getattr(locking, lock) is None:
                    raise TypeError(f"task {task}: {option} has no meaning without {lock}")
        body = MethodType(function, object()) if options.get("bind") else function
        for option in ("lock", "queueing_lock"):
            _named(task, option, locking, body)
        if locking.queueing_lock is not None:
            named = str(options.get("name") or f"{function.__module__}.{function.__name__}")
            checks.declare(named, locking)
        return shared_task(**{**options, "base": base})(function)

    return make


def checked(task: str, inherited: Options, given: dict[str, Any]) -> Options:
    """Return the options of a task; TypeError or ValueError that names the task."""
    for option in ("lock", "queueing_lock"):
        if isinstance(given.get(option), staticmethod):
            given = {**given, option: given[option].__func__}
    try:
        return replace(inherited, **given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"task {task}: {error}") from None


def _named(
    task: str, option: str, locking: Options, body: Callable[..., Any] | None
) -> CallName | None:
    template = getattr(locking, option)
    if template is None or body is None:
        return None
    return CallName(task, option, template, body)


def _body_of(cls: type[Any]) -> Callable[..., Any] | None:
    """Return the body of a task's class as its callers see it, without ``self``."""
    run = inspect.getattr_static(cls, "run", None)
    if run is None or run is Task.run:
        return None
    if isinstance(run, staticmethod):
        return run.__func__
    return MethodType(run, object())


signal_handlers.watch()
