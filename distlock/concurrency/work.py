"""Which piece of work a thread is doing now, and who cannot go on before it has ended.

It is a request, a job of an executor, a Celery task. A thread of a server or a pool does many, one
after the other. A lock that one of them has left behind must not pass to the next one. Pieces of
work nest: asgiref runs a synchronous view as a job inside the middleware that waits for it on the
same thread.

Some pieces are marked: Work.begin() and Work.end() are called around them. Jobs of executors are
found on the stack, because executors have no hooks.

``await sync_to_async(save)()`` and ``async_to_sync(save)()`` make one piece of work of two: the one
that calls stands still until the other one returns. Neither asyncio nor asgiref says who waits for
what, so this reads their callbacks. An unknown waiter counts as none.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import Future as TaskFuture
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, ref

from asgiref.current_thread_executor import CurrentThreadExecutor
from asgiref.sync import AsyncToSync


class Work:
    """A piece of work of one thread (or greenlet), from its begin to its end."""

    __slots__ = ("__weakref__", "_ended", "_job", "_strand", "_unfinished", "known", "outer")

    def __init__(self, strand: Strand, outer: Work | None) -> None:
        self._strand = strand
        #: the piece of work on the same thread that cannot go on before this one has ended
        self.outer = outer
        #: the nearest job of an executor around it
        self._job: Work | None = None
        if outer is not None:
            self._job = outer if isinstance(outer, Job | PoolJob) else outer._job
        self._ended = False
        self._unfinished: dict[Any, Callable[[Work], object]] = {}
        #: for any state that belongs to it
        self.known: Any = None

    @property
    def over(self) -> bool:
        """Whether it has ended: it, the job of an executor around it, or its thread."""
        return (
            self._ended
            or not self._strand.runs()
            or (self._job is not None and self._job.over)
            or self._is_done()
        )

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that does it, None if that is gone."""
        return self._strand.thread()

    @property
    def is_here(self) -> bool:
        """Whether it is of the current thread."""
        return self._strand is current_work()[0]

    def is_inside(self, other: Work) -> bool:
        """Return whether ``other`` is this one, or around it."""
        work: Work | None = self
        while work is not None and work is not other:
            work = work.outer
        return work is not None

    def futures(self) -> list[Future[Any]]:
        """Return the futures of the jobs of executors that it is, or is inside of."""
        found = []
        work: Work | None = self
        while work is not None:
            if isinstance(work, Job) and (future := work._future()) is not None:
                found.append(future)
            work = work.outer
        return found

    def begin(self) -> None:
        """Begin it, if it was not found on the stack; the caller then calls end()."""
        self._strand.marks.append(self)

    def end(self) -> None:
        """Note its end, and call what add() was given for what is not finished. Once is enough."""
        self._ended = True
        while self._unfinished:
            try:
                _, at_end = self._unfinished.popitem()
            except KeyError:  # another thread has finished the last one
                return
            at_end(self)

    def add(self, thing: Any, at_end: Callable[[Work], object]) -> None:
        """Have ``at_end(work)`` called at the end, unless ``thing`` is finished() before."""
        self._unfinished[thing] = at_end

    def finished(self, thing: Any) -> None:
        """Forget what add() was given for ``thing``."""
        self._unfinished.pop(thing, None)

    def _is_done(self) -> bool:
        return False


class Job(Work):
    """A job of an executor, which is over when its future is done."""

    __slots__ = ("_future", "_is_followed")

    def __init__(self, strand: Strand, outer: Work | None, future: Future[Any]) -> None:
        super().__init__(strand, outer)
        self._future = ref(future)  # its result may be large
        self._is_followed = False

    def is_of(self, future: object) -> bool:
        return self._future() is future

    def is_answered(self) -> bool:
        future = self._future()
        return future is None or future.done()

    def add(self, thing: Any, at_end: Callable[[Work], object]) -> None:
        super().add(thing, at_end)
        if not self._is_followed and (future := self._future()) is not None:
            self._is_followed = True
            future.add_done_callback(lambda _: self.end())

    _is_done = is_answered


class PoolJob(Work):
    """A job of a ``multiprocessing.pool.ThreadPool``; of ``map()`` a chunk is one job.

    Its end is seen from the stack of its thread, as there is no future.
    """

    __slots__ = ("_key",)

    def __init__(self, strand: Strand, outer: Work | None, key: object) -> None:
        super().__init__(strand, outer)
        self._key = key

    def is_of(self, key: object) -> bool:
        return bool(self._key == key)

    def is_answered(self) -> bool:
        return False  # it is on the stack

    def _is_done(self) -> bool:
        thread = self._strand.thread()
        frame = None if thread is None else sys._current_frames().get(thread.ident or 0)
        while frame is not None:
            _, key, frame = _nearest_job(frame)
            if key == self._key:
                return False
        return True


class Strand:
    """The state of one thread, or of one greenlet where gevent has replaced threads."""

    __slots__ = ("__weakref__", "jobs", "known", "marks", "thread")

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = ref(thread)
        #: jobs and marked pieces of work, the innermost last; those that are over may be among them
        self.jobs: list[Job | PoolJob] = []
        self.marks: list[Work] = []
        #: for any state that belongs to it
        self.known: Any = None

    def runs(self) -> bool:
        """Return whether the thread goes on."""
        thread = self.thread()
        return thread is not None and thread.is_alive()

    def mark(self) -> Work | None:
        """Return the innermost marked piece of work that is not over."""
        marks = self.marks
        while marks:
            if not marks[-1].over:
                return marks[-1]
            marks.pop()
        return None

    def job(self, frame: FrameType | None) -> Work | None:
        """Return the innermost job of an executor on the stack of this thread, from a frame on."""
        kind, key, outside = _nearest_job(frame)
        if kind is None:
            return None
        job = next((known for known in reversed(self.jobs) if known.is_of(key)), None)
        if job is None:
            self.jobs[:] = [job for job in self.jobs if not job.over]
            job = kind(self, _inner(self.mark(), self.job(outside)), key)
            self.jobs.append(job)
        # The callbacks of a future run after its job, in the same frame.
        return self.job(outside) if job.is_answered() else job


_local = threading.local()


def current_work() -> tuple[Strand, Work | None]:
    """Return what is known of the thread, or greenlet, that runs this, and its piece of work.

    That is None outside of all.
    """
    # Not only by the local: it is of all greenlets of a thread if gevent came after this import.
    # Not only by the thread: Python 3.11 and 3.12 give a thread that is not theirs the object of an
    # earlier one, which had the same ident.
    thread = threading.current_thread()
    strand: Strand | None = getattr(_local, "strand", None)
    if strand is None or strand.thread() is not thread:
        strands: WeakKeyDictionary[threading.Thread, Strand] | None
        strands = getattr(_local, "strands", None)
        if strands is None:
            strands = _local.strands = WeakKeyDictionary()
        strand = strands.get(thread)
        if strand is None:
            strand = strands[thread] = Strand(thread)
        _local.strand = strand
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in JOB_FUNCTIONS:
        frame = frame.f_back
    if frame is None and not strand.marks:
        return strand, None  # the usual case
    return strand, _inner(strand.mark(), strand.job(frame))


def new_work() -> Work:
    """Return a piece of work of the current thread that is to begin."""
    return Work(*current_work())


def _inner(mark: Work | None, job: Work | None) -> Work | None:
    """Return which of the two is inside the other one."""
    if mark is None or (job is not None and not mark.is_inside(job)):
        return job
    return mark


# Jobs on the stack


def _future_of(names: Mapping[str, Any]) -> object:
    # An executor's own code lets go of its job when that has failed.
    return getattr(names.get("self"), "future", None)


def _task_of(names: Mapping[str, Any]) -> object:
    task = names.get("task")
    return task[:2] if task is not None else None  # the numbers of the job and of its part


#: By the name of the module and that of the function that runs one job: how to tell which one.
_JOBS: dict[tuple[str, str], tuple[type[Job | PoolJob], Callable[[Mapping[str, Any]], object]]] = {
    ("concurrent.futures.thread", "run"): (Job, _future_of),
    ("asgiref.current_thread_executor", "run"): (Job, _future_of),
    ("multiprocessing.pool", "worker"): (PoolJob, _task_of),
}
#: the names of these functions, to tell most frames apart at once
JOB_FUNCTIONS = frozenset(function for _, function in _JOBS)


def runs_a_job(frame: FrameType) -> bool:
    """Return whether this is the frame in which an executor runs one job."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _JOBS


def _nearest_job(
    frame: FrameType | None,
) -> tuple[Callable[..., Job | PoolJob] | None, object, FrameType | None]:
    """Return the class and the key of the nearest job on the stack, and the frame outside of it."""
    while frame is not None:
        function = frame.f_code.co_name
        if function in JOB_FUNCTIONS:
            found = _JOBS.get((frame.f_globals.get("__name__", ""), function))
            if found is not None and (key := found[1](frame.f_locals)) is not None:
                return found[0], key, frame.f_back
        frame = frame.f_back
    return None, None, None


# The waiters for a job, or a task


def awaits(task: asyncio.Task[Any], outcome: Future[Any] | asyncio.Task[Any]) -> bool:
    """Return whether a task awaits a job or another task, be it through other tasks and jobs."""
    found: list[Future[Any] | asyncio.Task[Any]] = [outcome]
    for one in found:  # it grows meanwhile
        found += [each for each in tasks_awaiting(one) if each not in found]
        if isinstance(one, asyncio.Task):
            found += [each for each in jobs_awaiting(one) if each not in found]
    return task in found[1:]


def tasks_awaiting(job: Future[Any] | asyncio.Task[Any]) -> list[asyncio.Task[Any]]:
    """Return the tasks that await a job of an executor, as ``asyncio.to_thread()`` does, or a task.

    They go on before it has ended only if they are cancelled, or another job of a gather() fails.
    """
    seen: set[int] = set()
    futures: list[Any] = [job]
    tasks: list[asyncio.Task[Any]] = []
    while futures:
        future = futures.pop()
        if id(future) in seen:
            continue
        seen.add(id(future))
        for callback in _callbacks(future):
            waiting = getattr(callback, "__self__", None)
            if isinstance(waiting, asyncio.Task):
                tasks.append(waiting)
                continue
            if isinstance(waiting, asyncio.TaskGroup):  # at its end it waits for all
                futures.append(getattr(waiting, "_on_completed_fut", None))
            # A future whose outcome is passed on to another one, as by asyncio.shield().
            futures.extend(
                value
                for value in _passed_on_to(callback)
                if isinstance(value, Future | TaskFuture) and not isinstance(value, asyncio.Task)
            )
    return tasks


def runs_the_loop(task: asyncio.Task[Any]) -> bool:
    """Return whether the current thread runs its event loop until this very task is done."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is asyncio.BaseEventLoop.run_until_complete.__code__:
            return frame.f_locals.get("future") is task
        frame = frame.f_back
    return False


def thread_awaiting(task: asyncio.Task[Any]) -> threading.Thread | None:
    """Return the thread that waits in async_to_sync() for a task or for its whole event loop."""
    executor = _executor_awaiting(task)
    return None if executor is None else executor._work_thread


def jobs_awaiting(task: asyncio.Task[Any]) -> list[Future[Any]]:
    """Return the jobs that wait for a task in async_to_sync(), or by running its event loop.

    A thread that waits in async_to_sync() runs other jobs meanwhile, which are not among them.
    """
    if executor := _executor_awaiting(task):
        thread = executor._work_thread.ident
    else:
        thread = getattr(task.get_loop(), "_thread_id", None)
    waits: dict[CodeType, tuple[str, object]] = {
        CurrentThreadExecutor.run_until_future.__code__: ("self", executor),
        asyncio.BaseEventLoop.run_until_complete.__code__: ("future", task),
    }
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        name, awaited = waits.get(frame.f_code, ("", task))
        if name and frame.f_locals.get(name) is awaited:
            break
        frame = frame.f_back
    jobs = []
    while frame is not None:
        _, job, frame = _nearest_job(frame)
        if isinstance(job, Future):
            jobs.append(job)
    return jobs


def _executor_awaiting(task: asyncio.Task[Any]) -> CurrentThreadExecutor | None:
    executor: CurrentThreadExecutor | None
    if executor := AsyncToSync.loop_thread_executors.get(task.get_loop()):
        return executor
    # In the loop of a server: the task is the call itself.
    frame = getattr(task.get_coro(), "cr_frame", None)
    if frame is None or frame.f_code is not AsyncToSync.main_wrap.__code__:
        return None
    for callback in _callbacks(frame.f_locals["call_result"]):
        for value in _closed_over(callback).values():
            if isinstance(value, CurrentThreadExecutor):
                return value
    return None


def _callbacks(future: Any) -> list[Any]:
    if isinstance(future, Future):
        return list(getattr(future, "_done_callbacks", ()))
    return [callback for callback, _ in getattr(future, "_callbacks", None) or ()]


def _passed_on_to(callback: Any) -> list[Any]:
    """Return what asyncio passes an outcome on to, and nothing else makes go on."""
    known = _closed_over(callback)
    waits_for_all = known.get("return_when", asyncio.ALL_COMPLETED) == asyncio.ALL_COMPLETED
    if (
        getattr(callback, "__module__", None) in ("asyncio.futures", "asyncio.tasks")
        and waits_for_all
        and known.get("timeout_handle") is None
    ):
        return list(known.values())
    return []


def _closed_over(callback: Any) -> dict[str, Any]:
    values = {}
    names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(callback, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not set yet
            values[name] = cell.cell_contents
    return values
