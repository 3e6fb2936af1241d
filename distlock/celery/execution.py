"""One execution of a locked task: its lock is taken before the body and left after it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NoReturn

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from distlock.activity import activity
from distlock.celery import queueing
from distlock.celery.messages import HEADER, LockHeader, RunningTask, lifetime, running_task
from distlock.celery.queueing import QueueLockHandle
from distlock.celery.task_options import TERMINATE, backend_of, raise_interrupt
from distlock.exceptions import (
    BodyEnded,
    Cancelled,
    LockBusy,
    LockError,
    LockTimeout,
    LockUnavailable,
    ValueNotAgreed,
)
from distlock.locking.base_lock import BaseLock
from distlock.locking.run_under import body_interrupter, busy_error, lock_or_slot, run_under
from distlock.recipes.progress import Progress
from distlock.recipes.rate_limiter import RateLimiter
from distlock.types.lease import log_fields
from distlock.types.owners import current_owner
from distlock.types.values import checked_rate

logger = logging.getLogger("distlock.celery")

#: The state of a task that was not run because its lock was busy. For Celery it has succeeded: its
#: result is there, chains go on and chords are complete, which no state of another name would give.
SKIPPED = "SKIPPED"
#: A traceback that begins with this tells that a task was skipped, and why.
SKIPPED_MARK = f"{SKIPPED}: "


class NotRequeued(Reject, Ignore):
    """A task that was to be requeued could not be published.

    Celery treats it as a Reject. It is an Ignore, too, because ``autoretry_for`` retries after a
    Reject but not after an Ignore.
    """


class Skipped(Exception):
    """The task does not run, because its lock is busy."""


class TaskExecution(RunningTask):
    """One execution of a task, from the call to the return."""

    def __init__(self, task: Any, request: Any) -> None:
        """``request`` is Celery's; None for a task that was called as a plain function."""
        header = LockHeader("")
        if request is not None:
            header = LockHeader.read(request.headers, request.id) or LockHeader(request.id)
        super().__init__(header)
        self.task = task
        self.request = request
        self._requeueable = request is not None and not request.is_eager
        self.progress: Progress | None = None
        self.begun = False  # whether the lock has been asked for

    def __str__(self) -> str:
        task_id = self.header.task_id
        return f"{self.task.name}[{task_id}]" if task_id else f"{self.task.name}()"

    def run(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call ``body``, which is or calls :meth:`under_lock`; free the queueing lock at the end.

        Returns what the task returned, ``busy_result`` if it was skipped.

        Raises the error of the body, or Retry for a task that was requeued because its lock was
        busy or unavailable. If it was not requeued, raises LockBusy, LockUnavailable or
        ValueNotAgreed; LockLost if the lock was lost.
        """
        outer = running_task.get()
        ended_by: BaseException | None = None
        try:
            running_task.set(self)
            with activity(f"Celery task {self}"):
                return body(*args, **kwargs)
        except (Reject, Retry, SystemExit, KeyboardInterrupt) as error:
            ended_by = error  # it may come again
            raise
        finally:
            # An interrupt may come before the end of this. Then messages._on_postrun() frees the
            # queueing lock, unless another message of the task has it.
            if self.request is not None:
                self.request.distlock_settled = self.republished
            running_task.set(outer)
            self._free_queue_lock(ended_by)
            if self.request is not None:
                self.request.distlock_settled = True

    def under_lock(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Take the task's lock, call the body, leave the lock; see run()."""
        self.begun = True
        try:
            return self._under_lock(body, args, kwargs)
        except Skipped:
            return self.task.locking.busy_result

    def _under_lock(
        self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        options = self.task.locking
        if self.task.lock_name is None:
            return self._start(body, args, kwargs)
        with body_interrupter() if options.on_lost == TERMINATE else nullcontext() as interrupter:
            lock = lock_or_slot(
                self.task.lock_name(args, kwargs),
                options.slots,
                using=backend_of(self.task.name, "using", options.using).alias,
                lease=options.lease,
                at_least=options.at_least,
                on_lost=options.on_lost if interrupter is None else interrupter.on_lost,
                release=options.release,
            )
            lock.claim_nonce = self.header.claim_nonce

            def locked_body() -> Any:
                # The body may take another seat with it, which must have a nonce of its own.
                lock.claim_nonce = ""
                self.lock = lock
                name, using, token = lock.name, lock.using, lock.token
                kind = options.kind
                logger.info(
                    "Task %s runs under %s %r on %r, token %s", self, kind, name, using, token,
                    extra=log_fields(using, name, kind, token, current_owner()),
                )  # fmt: skip
                self._event("task-locked", lock=name, using=using, token=token)
                return self._start(body, args, kwargs)

            acquire, leave_failed = partial(self._acquire, lock), partial(self._leave_failed, lock)
            return run_under(lock, acquire, locked_body, leave_failed)

    def _start(
        self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the body, once the rate allows it; report how far it is if that is wanted."""
        task = self.task
        if task.locking.rate is not None:
            name = task.name if task.limiter_name is None else task.limiter_name(args, kwargs)
            alias = backend_of(task.name, "using", task.locking.using).alias
            rate = checked_rate("rate", task.locking.rate)
            self._acquire(RateLimiter(name, *rate, using=alias, on_busy="raise"))
        self._start_queue_lock()
        self.body_begun = True
        if task.locking.progress is None:
            return body(*args, **kwargs)
        name = str(self) if task.progress_name is None else task.progress_name(args, kwargs)
        backend = backend_of(task.name, "using", task.locking.using)
        try:
            with Progress(name, using=backend.alias) as self.progress:
                return body(*args, **kwargs)
        except Cancelled as error:
            if self.request is None:
                raise
            stored = not (self.request.ignore_result or task.ignore_result)
            task.backend.mark_as_revoked(
                self.request.id, str(error), request=self.request, store_result=stored
            )
            raise Ignore(str(error)) from error

    # The lock

    def _acquire(self, lock: BaseLock | RateLimiter) -> None:
        """Take the lock, or a permit.

        Raises Skipped, Retry, LockBusy, LockUnavailable or ValueNotAgreed.
        """
        options = self.task.locking
        seconds = options.patience(self._requeueable)
        try:
            if lock.acquire(blocking=seconds is not None, timeout=seconds):
                return
        except (LockUnavailable, ValueNotAgreed) as error:
            self._requeue_unavailable(lock, error)
            raise
        busy = lock.busy() if isinstance(lock, RateLimiter) else busy_error(lock)
        if options.on_busy == "retry" and self._requeueable:
            self._requeue_busy(busy)
        if options.on_busy != "skip":
            raise busy if seconds is None else _timeout(busy, f"the task waited for {seconds:g} s")
        reason = str(busy)
        logger.info("Task %s is skipped: %s", self, reason)
        self._event("task-skipped", lock=lock.name, using=lock.using, reason=reason)
        if self.request is not None:
            self.request.distlock_skipped = reason
        raise Skipped(reason)

    def _leave_failed(self, lock: BaseLock, error: LockError) -> None:
        if not isinstance(error, LockUnavailable):
            raise error
        # The task's work is done, so this is no failure of the task.
        text = "lock %r is freed after its task, or when its lease ends: %s"
        fields = log_fields(lock.using, lock.name, self.task.locking.kind)
        logger.warning(text, lock.name, error, extra=fields)

    def _requeue_busy(self, busy: LockBusy) -> NoReturn:
        """Requeue a busy task and tell Celery; LockTimeout after the last time."""
        limit = self.task.locking.busy_limit
        times = self.header.busy + 1
        if limit is not None and times > limit:
            raise _timeout(busy, f"so it was each of {times} times that the task started")
        self._event("task-busy", reason=str(busy), times=times)
        self._requeue(busy, times, replace(self.header, busy=times, unavailable=0))

    def _requeue_unavailable(
        self, lock: BaseLock | RateLimiter, error: LockUnavailable | ValueNotAgreed
    ) -> None:
        """Requeue a task that could not ask for its lock, or a permit, unless it is to fail now.

        The backend did not answer, or others use another number of slots, as during a deploy.
        """
        options = self.task.locking
        if options.on_unavailable == "raise" or not self._requeueable:
            return
        times = self.header.unavailable + 1
        if options.delays(times) > options.unavailable_timeout:
            return
        reason = str(error)
        if isinstance(error, LockUnavailable):
            kind = lock.kind if isinstance(lock, RateLimiter) else options.kind
            where = f"{kind} {lock.name!r} on {lock.using!r}"
            reason = f"{where} cannot be asked for: {error}"
        self._event("task-unavailable", reason=reason, times=times)
        self._requeue(type(error)(reason), times, replace(self.header, unavailable=times))

    def _requeue(self, reason: LockError, times: int, header: LockHeader) -> NoReturn:
        """Requeue the task, for the n-th time for this reason, and tell Celery by Retry."""
        request = self.request
        countdown = self.task.locking.delay(times) * random.uniform(0.5, 1.0)
        again = self.task.signature_from_request(
            request,
            countdown=countdown,
            retries=request.retries,
            headers={**(request.headers or {}), HEADER: asdict(header)},
        )
        level = logging.INFO if isinstance(reason, LockBusy) else logging.WARNING
        logger.log(level, "Task %s is requeued for %.1f s later: %s", self, countdown, reason)
        try:
            # As a child of this task its result would be in a reference cycle. The garbage
            # collector would unsubscribe from it anywhere, also where gevent must not block.
            again.apply_async(add_to_parent=False)
        except BodyEnded:
            raise
        except Exception as error:  # Task.retry() rejects, too; late acks: the message comes again
            raise NotRequeued(error, requeue=bool(self.task.acks_late)) from error
        raise Retry(str(reason), exc=reason, when=countdown, sig=again)

    def _event(self, kind: str, **fields: Any) -> None:
        if not self.header.events or not self.task.send_events:
            return
        try:
            self.task.send_event(kind, retry=False, **fields)
        except Exception as error:  # events are for monitors only
            raise_interrupt(error)
            logger.warning("could not send the event %s of task %s: %s", kind, self, error)

    # The queueing lock

    def _start_queue_lock(self) -> None:
        """Free the queueing lock, or renew it until the end."""
        handle = self.header.queue_lock
        if handle is None:
            return
        if self.task.locking.until == "finished":
            self.renewed = queueing.renew(handle, self.header.queue_claim_nonce, self)
        else:
            self.queue_lock_freed = True
            try:
                queueing.release(handle)
            except BaseException:  # perhaps an interrupt at its first line
                queueing.release_soon(handle)
                raise

    def _free_queue_lock(self, error: BaseException | None) -> None:
        """Free the queueing lock at the end, unless the same task comes again."""
        handle = self.header.queue_lock  # as it is on the message
        renewed = self.renewed
        self.stop_renewal()
        if handle is None or self.queue_lock_freed or self.republished:
            return
        if self._comes_again(error):
            seconds = lifetime(self.task, {"expires": self.request.expires})
            queueing.reacquire(handle, seconds, str(self))
        else:
            held = handle if renewed is None else QueueLockHandle.of(renewed.lease, handle.using)
            queueing.release(held)

    def _comes_again(self, error: BaseException | None) -> bool:
        """Return whether the broker will deliver the same message again, or Celery call again."""
        if isinstance(error, Reject):
            return bool(error.requeue)  # type: ignore[attr-defined]
        if isinstance(error, Retry):
            return bool(self.request.is_eager)
        shuts_down = isinstance(error, (SystemExit, KeyboardInterrupt))
        return shuts_down and bool(self.task.acks_late)


def _timeout(busy: LockBusy, how_long: str) -> LockTimeout:
    error = LockTimeout(f"{busy}; {how_long}")
    error.holder = busy.holder
    return error


class SkippedBackend:
    """A result backend for the one request that was skipped: it stores why along with the result.

    Celery stores a result with its state in one go, after the task has returned; what is stored
    before or later would be lost, or refused.
    """

    def __init__(self, backend: Any, reason: str) -> None:
        self._backend = backend
        self._traceback = SKIPPED_MARK + reason

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True
    ) -> None:
        """See celery.backends.base.Backend.mark_as_done()."""
        if store_result:
            self._backend.store_result(
                task_id, result, states.SUCCESS, traceback=self._traceback, request=request
            )
        self._backend.mark_as_done(task_id, result, request=request, store_result=False)
