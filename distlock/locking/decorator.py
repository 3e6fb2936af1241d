"""Runs a function under a lock of its own for every call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from distlock.locking.options import LockOptions
from distlock.runtime.name_template import CallName

F = TypeVar("F", bound=Callable[..., Any])


def decorate(
    function: F, templates: Sequence[str], new_lock: Callable[..., Any], options: LockOptions
) -> F:
    """Return ``function`` run under ``new_lock(*names)``, a new lock for each call.

    The names are ``templates`` filled in with the call's arguments. ``options`` say whether calls
    that find the lock busy are skipped. TypeError for what cannot be run under a lock, ValueError
    if a template mentions an argument the function does not have.
    """
    _refuse_undecoratable(function)
    names = [CallName(template, function) for template in templates]
    skips = options.on_busy == "skip"

    if _is_async(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            lock = new_lock(*[name(args, kwargs) for name in names])
            async with lock.attempt() if skips else lock as acquired:
                return await function(*args, **kwargs) if acquired else options.busy_result

        return run_async  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        lock = new_lock(*[name(args, kwargs) for name in names])
        with lock.attempt() if skips else lock as acquired:
            return function(*args, **kwargs) if acquired else options.busy_result

    return run  # type: ignore[return-value]


def _is_async(function: Callable[..., Any]) -> bool:
    # sync_to_async() makes objects that only asgiref recognizes on every Python.
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _refuse_undecoratable(function: object) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"put the lock below @{type(function).__name__}, nearer to the function")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"a lock decorates functions, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"a lock cannot decorate the generator {function!r}: it would be released before the"
            " body runs; use `with` inside"
        )
