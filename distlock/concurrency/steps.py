"""One body for synchronous and asynchronous callers.

A body is a generator that yields what it waits for, and gets back what came of it. run() drives it
in a thread, arun() in an asyncio task::

    def acquire(pending: Pending[Lease], deadline: float | None) -> Steps[Lease | None]:
        try:
            if not (yield Wait(pending, deadline)):
                return None
            return pending.take()
        finally:
            undo(pending.abandon())

    lease = run(acquire(pending, deadline))
    lease = await arun(acquire(pending, deadline))

Errors of a step are raised at its ``yield``, also Ctrl-C, a soft time limit, and the
cancellation of a task. In the child of a fork that goes on with its parent's body the step raises
a LockError there. So is an interrupt between two steps: the step may or may not have been
done. A coroutine that is collected as garbage, or a second interrupt between two steps, arrives
there as GeneratorExit: then the body must not yield again, so it leaves a clean-up that has to wait
to another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from os import getpid
from typing import Any, Protocol, TypeAlias, TypeVar

from distlock.concurrency import fork
from distlock.concurrency.pending import Pending, wait_any, wait_any_async
from distlock.concurrency.reentry import calls_others
from distlock.concurrency.threads import start, undo
from distlock.exceptions import BodyEnded, LockError

T = TypeVar("T")


class Step(Protocol):
    """Something that a body waits for: once for a thread, once for a task."""

    def run(self) -> Any: ...

    async def arun(self) -> Any: ...


#: A body with ``T`` as its result; the type of a step's result is not checked.
Steps: TypeAlias = Generator[Step, Any, T]


def run(steps: Steps[T]) -> T:
    """Run a body in this thread, and return what it returns."""
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    pid = getpid()
    try:
        while True:
            try:
                step, value = resume(value), None
                while True:  # with its end inside the `try`: an interrupt may come there, too
                    value = step.run()
                    if getpid() != pid:
                        pid = getpid()
                        raise _went_on_in_child()
                    step, value = steps.send(value), None
            except BaseException as error:  # the body decides what ends it
                if steps.gi_frame is None:  # type: ignore[attr-defined]  # it has ended
                    # No call from here on, so no interrupt until the caller has the result.
                    if error.__class__ is StopIteration:
                        return error.value  # type: ignore[no-any-return]
                    raise
                resume, value = steps.throw, error
    finally:
        value = None  # the error's traceback has this frame: a cycle would keep both
        if steps.gi_frame is not None:  # type: ignore[attr-defined]
            steps.close()


def _went_on_in_child() -> LockError:
    """Return what ends a body in the child of a fork: what it asks for would be granted to both."""
    return LockError(
        "this process was forked in the middle of an operation of distlock, which goes on in its"
        " parent; this process has acquired nothing"
    )


def run_soon(steps: Steps[object]) -> None:
    """Run a body on another thread, without making the caller wait; a LockError is for nobody.

    The garbage collector may call this, in a thread that has a mutex of ours.
    """
    start(_run_quietly, "distlock-undo", steps)


def _run_quietly(steps: Steps[object]) -> None:
    with suppress(LockError):
        run(steps)


@contextmanager
def despite(*errors: type[Exception]) -> Iterator[None]:
    """Go on after one of these errors; but not after the loss of a lock in whose body this is."""
    try:
        yield
    except BodyEnded:
        raise
    except errors:
        pass


async def arun(steps: Steps[T]) -> T:
    """Run a body in this task, and return what it returns."""
    resume: Callable[[Any], Step] = steps.send
    value: Any = None
    pid = getpid()
    try:
        while True:
            try:
                step, value = resume(value), None
                while True:
                    value = await step.arun()
                    if getpid() != pid:
                        pid = getpid()
                        raise _went_on_in_child()
                    step, value = steps.send(value), None
            except GeneratorExit:  # nothing can be awaited any more
                fork.current()  # the request may be the parent's, which goes on with it
                raise
            except BaseException as error:  # see run()
                if steps.gi_frame is None:  # type: ignore[attr-defined]
                    if error.__class__ is StopIteration:
                        return error.value  # type: ignore[no-any-return]
                    raise
                resume, value = steps.throw, error
    finally:
        value = None
        if steps.gi_frame is not None:  # type: ignore[attr-defined]
            steps.close()


def or_undo(steps: Steps[T], clean_up: Callable[[BaseException], object]) -> Steps[T]:
    """Make the steps of a body, and return what it returns; call ``clean_up(error)`` if it fails.

    This is what protects where a lock granted twice, or someone who waits forever, would follow.
    Nothing comes between: the body has either returned to the caller, or ``clean_up`` was called
    to its end, if at any bytecode there is an interrupt, and at any later one a second one. So
    ``clean_up`` may be called twice. If the body was collected as garbage it is called on another
    thread, or on this one where no more threads can be started.

    A ``with`` block could not do it: an interrupt may come before the first line of __exit__().
    """
    try:
        return (yield from steps)
    except BaseException as error:  # also an interrupt, and GeneratorExit
        is_clean = False
        try:
            undo(error, clean_up, error)
            is_clean = True
        finally:
            if not is_clean:  # a second interrupt: signals often come in twos
                undo(error, clean_up, error)
        raise


class Executor(Protocol):
    """Runs blocking calls for tasks, on threads of its own."""

    async def run(
        self,
        call: Callable[[float | None], T],
        deadline: float | None = None,
        *,
        undo: Callable[[], object] | None = None,
    ) -> T:
        """Run ``call(deadline)``; with ``undo``, undo it if the caller waits for it no more."""


class Call:
    """A blocking call ``function(deadline)``, and what it returns.

    A thread makes it itself. For a task ``executor`` makes it, which is given ``undo``: it is
    called if the task is cancelled after the call has begun, unless that returns None. A thread's
    interrupt may come at any moment of the call, so the body has to undo it then.
    """

    __slots__ = ("_deadline", "_executor", "_function", "_undo", "run")

    def __init__(
        self,
        function: Callable[[float | None], object],
        deadline: float | None = None,
        undo: Callable[[], object] | None = None,
        *,
        executor: Executor,
    ) -> None:
        self._function = function
        self._deadline = deadline
        self._undo = undo
        self._executor = executor
        self.run = partial(function, deadline)

    async def arun(self) -> object:
        return await self._executor.run(self._function, self._deadline, undo=self._undo)


class Either:
    """The result of ``function()`` for a thread, of ``await async_function()`` for a task."""

    __slots__ = ("_async_function", "_function")

    def __init__(
        self, function: Callable[[], object], async_function: Callable[[], Awaitable[object]]
    ) -> None:
        self._function = function
        self._async_function = async_function

    def run(self) -> object:
        return self._function()

    async def arun(self) -> object:
        return await self._async_function()


class Nested(Either):
    """See Either; the functions may take and leave locks themselves, or are other people's."""

    __slots__ = ()

    @calls_others
    def run(self) -> object:
        return self._function()

    @calls_others
    async def arun(self) -> object:
        return await self._async_function()


class Sleep(Either):
    """A pause in seconds."""

    __slots__ = ()

    def __init__(self, seconds: float) -> None:
        super().__init__(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))


class Wait(Either):
    """Whether a Pending has an answer to take by ``deadline`` (None: however late)."""

    __slots__ = ()

    def __init__(self, pending: Pending[Any], deadline: float | None) -> None:
        super().__init__(partial(pending.wait, deadline), partial(pending.wait_async, deadline))


class WaitAny(Either):
    """Whether one of several Pendings has an answer by ``deadline`` (None: however late)."""

    __slots__ = ()

    def __init__(self, pendings: Sequence[Pending[Any]], deadline: float | None) -> None:
        super().__init__(
            partial(wait_any, pendings, deadline), partial(wait_any_async, pendings, deadline)
        )
