"""One run of a locked task: its lock is taken before the body and left after it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from distlock.activity import activity
from distlock.celery import queueing
from distlock.celery.current import innermost
from distlock.celery.headers import HEADER, LockHeader
from distlock.celery.options import TERMINATE, configured
from distlock.celery.publishing import lifetime
from distlock.core.interrupters import terminator
from distlock.exceptions import LockError, LockTimeout, LockUnavailable
from distlock.lock import Lock

logger = logging.getLogger("distlock.celery")


class DeliveryLock(Lock):
    """A lock whose claim is named by the worker that received the task's message.

    That worker can thus take back what was granted to a process of its pool that was killed.
    """

    def __init__(self, name: str, *, claim: str | None, **terms: Any) -> None:
        super().__init__(name, **terms)
        self._claim_nonce = claim


class NotQueued(Reject, Ignore):  # type: ignore[misc]
    """A task that was to be put off could not be queued again.

    To Celery it is a Reject; ``autoretry_for`` lets only those pass that are an Ignore.
    """


class Run:
    """What goes on between the moment a worker calls a task and the moment the task returns.

    ``request`` is Celery's request, None for a task that was called as a plain function.
    """

    def __init__(self, task: Any, request: Any) -> None:
        self.task = task
        self.request = request
        self.task_id: str | None = request.id if request is not None else None
        self.lock: Lock | None = None
        self.begun = False  # whether the lock has been asked for
        self.republished = False  # whether the task has been queued anew from within this run
        self._note = LockHeader.read(request.headers, request.id) if request is not None else None
        self._kept: queueing.Kept | None = None
        self._queue_left = False

    def __str__(self) -> str:
        return f"{self.task.name}[{self.task_id}]" if self.task_id else f"{self.task.name}()"

    def perform(self, run: Callable[[], Any]) -> Any:
        """Run what runs the task :meth:`under_lock`; returns its result, or that of a skipped task.

        Raises what the body raises, Retry for a task that has been queued again because its lock
        was busy or could not be asked for, LockTimeout or LockUnavailable for one that has not,
        LockLost if the lock was lost.
        """
        outer = innermost.set(self)
        ended_by: BaseException | None = None
        try:
            with activity(f"Celery task {self}"):
                return run()
        except BaseException as error:
            ended_by = error
            raise
        finally:
            innermost.reset(outer)
            self._leave_queue(ended_by)

    def under_lock(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Take the task's lock, call the body, leave the lock; see perform()."""
        self.begun = True
        options = self.task.locking
        if self.task.lock_name is None:
            self._start()
            return body(*args, **kwargs)
        with ExitStack() as around:
            on_lost = options.on_lost
            if on_lost == TERMINATE:
                ending = around.enter_context(terminator())
                on_lost = ending.on_lost
            using = configured(self.task.name, "using", options.using)
            terms = {"using": using, "lease": options.lease, "on_lost": on_lost}
            if options.at_least is not None:
                terms["at_least"] = options.at_least
            claim = self._note.claim if self._note else None
            lock = DeliveryLock(self.task.lock_name(args, kwargs), claim=claim, **terms)
            return self._under(lock, partial(body, *args, **kwargs))

    def _under(self, lock: Lock, body: Callable[[], Any]) -> Any:
        """Run the body while the lock is held, and leave it, wherever an interrupt comes.

        A time limit of Celery's may be over between any two steps, and the process goes on: what it
        did not leave, it would keep.
        """
        outside = lock.held  # by a task that runs this one in place
        entered = False
        try:
            try:
                if not self._taken(lock):
                    return self.task.locking.busy_result
            except LockUnavailable as error:
                self._missed(lock, error)
                raise
            entered = True
            self.lock = lock
            self._told(lock)
            self._start()
            result = body()
            entered = False  # from here on, leaving sees to it
            _leave(lock)
            return result
        except BaseException as error:
            if entered or (lock.held and not outside):
                lock.__exit__(type(error), error, error.__traceback__)
            raise

    def replaced_by(self, task: Any, args: Any, kwargs: Any) -> LockHeader | None:
        """Return what to note on the message of a task that takes this one's place, and its id.

        That is what ``Task.replace()`` does. None if it is not queued under the same lock, so that
        this one's may be freed.
        """
        ticket = self._note.ticket if self._note else None
        if ticket is None or task.queueing_name is None:
            return None
        return self._note if task.queueing_name(args, kwargs) == ticket.name else None

    def hand_over(self) -> None:
        """Leave it to the next message of the same task to free the queueing lock."""
        if self._kept is not None:
            self._kept.end()
            self._kept = None

    # The lock

    def _taken(self, lock: Lock) -> bool:
        """Take the lock; False if the task is to be skipped."""
        options = self.task.locking
        if options.on_busy == "wait":
            if lock.acquire(timeout=options.busy_timeout):
                return True
            raise LockTimeout(self._busy(lock, f" and was, for {options.busy_timeout:g} s"))
        if options.on_busy == "retry" and not self._requeueable:
            # There is no queue to be put back into: wait as long as that would have taken.
            limit = options.longest_delay
            if lock.acquire(timeout=-1 if limit == float("inf") else limit):
                return True
            raise LockTimeout(self._busy(lock, f" and was, for {limit:g} s"))
        if lock.acquire(blocking=False):
            return True
        if options.on_busy == "retry":
            self._put_off_busy(self._busy(lock))
        if options.on_busy == "raise":
            raise LockTimeout(self._busy(lock))
        self._skip(lock)
        return False

    @property
    def _requeueable(self) -> bool:
        return self.request is not None and not self.request.is_eager

    def _busy(self, lock: Lock, since: str = "") -> str:
        """Say who has the lock, as far as that can be found out."""
        try:
            info = lock.info()
        except LockError:
            holder = "someone else"
        else:
            holder = info.description or str(info.owner or "someone else")
            if info.token is not None:
                holder += f" (token {info.token})"
        return f"lock {lock.name!r} on {lock.using!r} is held by {holder}{since}"

    def _put_off_busy(self, reason: str) -> NoReturn:
        """Queue a busy task again and say so to Celery; LockTimeout after the last time."""
        limit = self.task.locking.busy_limit
        note = self._note or LockHeader(self.request.id)
        times = note.busy + 1
        if limit is not None and times > limit:
            raise LockTimeout(f"{reason}, each of {times} times that the task was to start")
        self._event("task-busy", reason=reason, times=times)
        self._put_off(LockTimeout(reason), times, replace(note, busy=times, unavailable=0))

    def _missed(self, lock: Lock, error: LockUnavailable) -> None:
        """Queue a task again whose lock could not be asked for, unless it is to fail now."""
        options = self.task.locking
        if options.on_unavailable == "raise" or not self._requeueable:
            return
        note = self._note or LockHeader(self.request.id)
        times = note.unavailable + 1
        if options.delays(times) > options.unavailable_timeout:
            return
        reason = f"lock {lock.name!r} on {lock.using!r} cannot be asked for: {error}"
        self._event("task-unavailable", reason=reason, times=times)
        self._put_off(LockUnavailable(reason), times, replace(note, unavailable=times))

    def _put_off(self, reason: LockError, times: int, note: LockHeader) -> NoReturn:
        """Queue the task again, for the n-th time for this reason, and say so to Celery."""
        request = self.request
        countdown = self.task.locking.delay(times) * random.uniform(0.5, 1.0)
        again = self.task.signature_from_request(
            request,
            countdown=countdown,
            retries=request.retries,
            headers={**(request.headers or {}), HEADER: note.header()},
        )
        level = logging.WARNING if isinstance(reason, LockUnavailable) else logging.INFO
        logger.log(level, "Task %s is put off for %.1f s: %s", self, countdown, reason)
        try:
            # As a child of its own its result would live on in a reference cycle, until the garbage
            # collector unsubscribes from it: anywhere, under gevent even where nothing may block.
            again.apply_async(add_to_parent=False)
        except Exception as error:  # as Task.retry() does; unless the broker still has the message
            raise NotQueued(error, requeue=bool(self.task.acks_late)) from error
        raise Retry(str(reason), exc=reason, when=countdown, sig=again)

    def _skip(self, lock: Lock) -> None:
        reason = self._busy(lock)
        logger.info("Task %s is skipped: %s", self, reason)
        self._event("task-skipped", lock=lock.name, using=lock.using, reason=reason)
        if self.request is not None:
            self.request.distlock_skipped = reason

    def _told(self, lock: Lock) -> None:
        logger.info(
            "Task %s runs under lock %r on %r, token %s", self, lock.name, lock.using, lock.token
        )
        self._event("task-locked", lock=lock.name, using=lock.using, token=lock.token)

    def _event(self, kind: str, **fields: Any) -> None:
        if self._note is None or not self._note.events or not self.task.send_events:
            return
        try:
            self.task.send_event(kind, retry=False, **fields)
        except Exception as error:  # nobody's work depends on what monitors are told
            logger.warning("could not send the event %s of task %s: %s", kind, self, error)

    # The queueing lock

    def _start(self) -> None:
        """Free the queueing lock, or keep it until the end."""
        if self._note is None or self._note.ticket is None:
            return
        if self.task.locking.until == "finished":
            self._kept = queueing.keep(self._note.ticket, self._note.queueing_claim, self)
        else:
            self._queue_left = True
            queueing.free(self._note.ticket)

    def _leave_queue(self, error: BaseException | None) -> None:
        """Free the queueing lock at the end, unless the same task comes again."""
        if self._note is None or self._note.ticket is None:
            return
        ticket = self._note.ticket  # as it is on the message
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.end()
        if self._queue_left or self.republished:
            return
        if self._comes_again(error):
            try:
                seconds = lifetime(self.task, {"expires": self.request.expires})
                queueing.again(ticket, seconds, str(self))
            except LockError as failure:
                logger.warning(
                    "queueing lock %r may end before its task comes again: %s",
                    ticket.name,
                    failure,
                )
        else:
            queueing.free(ticket if kept is None else kept.ticket)

    def _comes_again(self, error: BaseException | None) -> bool:
        """Return whether the broker will deliver the same message again, or Celery call again."""
        if isinstance(error, Reject):
            return bool(error.requeue)
        if isinstance(error, Retry):
            return bool(self.request.is_eager)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            return bool(self.task.acks_late)  # the worker is being shut down
        return False


def _leave(lock: Lock) -> None:
    """Leave the lock after its body; LockLost if it was lost.

    What has been done under the lock stays done when the backend cannot be told of its end.
    """
    try:
        lock.release()
    except LockUnavailable as error:
        logger.warning("after the task under lock %r: %s", lock.name, error)
