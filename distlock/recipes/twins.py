"""A blocking method and its async twin, made of one body of steps."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from distlock.concurrency.steps import Steps, arun, run
from distlock.core.section import refuse_in_event_loop, twin_of

P = ParamSpec("P")
T = TypeVar("T")


def twins(
    name: str, body: Callable[P, Steps[T]]
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the method ``name`` for threads, and its twin for tasks, whose name begins with "a".

    That of ``wait`` is ``await_``: ``await`` is a word of Python. Both have the docstring of the
    body. The first one is refused in an event loop::

        put, aput = twins("put", _put)
    """

    @wraps(body)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(body(*args, **kwargs))

    @wraps(body)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(body(*args, **kwargs))

    owner = body.__qualname__.rpartition(".")[0]
    method.__name__, twin.__name__ = name, twin_of(name)
    method.__qualname__, twin.__qualname__ = f"{owner}.{name}", f"{owner}.{twin_of(name)}"
    return refuse_in_event_loop(method), twin
