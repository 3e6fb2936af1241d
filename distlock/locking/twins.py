"""A method for threads and its twin for tasks, made of one body."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from keyword import iskeyword
from typing import Any, ParamSpec, TypeVar

from django.utils.asyncio import async_unsafe

from distlock.concurrency.reentry import must_leave_elsewhere, refuse_reentry
from distlock.concurrency.steps import Steps, arun, run, run_soon

P = ParamSpec("P")
T = TypeVar("T")


def twins(
    name: str, body: Callable[P, Steps[T]], *, leaves: bool = False
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the method ``name`` for threads, and its twin for tasks, whose name begins with "a".

    That of ``wait`` is ``await_``: ``await`` is a word of Python. Both have the docstring of the
    body. The first one is refused in an event loop; with ``leaves``, for a body that returns
    nothing, it may be called by a destructor, see must_leave_elsewhere()::

        put, aput = twins("put", _put)
    """

    owner = body.__qualname__.rpartition(".")[0]
    body.__qualname__ = f"{owner}.{name}"  # which Python's errors of wrong arguments tell
    shown = body.__qualname__.removeprefix("BaseLock.").lstrip("_")

    @functools.wraps(body)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        if asyncio._get_running_loop() is not None:
            refuse_in_event_loop(shown)
        if not leaves:
            refuse_reentry()
        elif must_leave_elsewhere():
            run_soon(body(*args, **kwargs))
            return None  # type: ignore[return-value]
        return run(body(*args, **kwargs))

    @functools.wraps(body)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        refuse_reentry()
        return await arun(body(*args, **kwargs))

    method.__name__, twin.__name__ = name, twin_of(name)
    twin.__qualname__ = f"{owner}.{twin_of(name)}"
    return method, twin


def twin_of(name: str) -> str:
    """Return what the async twin of a method is called."""
    return f"a{name}_" if iskeyword(f"a{name}") else f"a{name}"


def refuse_in_event_loop(method: str) -> None:
    """Raise SynchronousOnlyOperation for a method in an event loop, as the ORM does.

    ``method`` is how its users call it. The error names its async twin. Call it where a loop runs
    only: each `with Lock` comes by there, and async_unsafe() raises and catches an error for it.
    """
    of, _, name = method.rpartition(".")
    block = " or `async with`" if name in ("acquire", "release") else ""
    way = "async for … in" if name == "changes" else "await"
    twin = f"{way} {of.lower() or 'lock'}.{twin_of(name)}()"
    refused = async_unsafe(f"{method}() would block the event loop; use `{twin}`{block}.")
    refused(lambda: None)()
