"""The one registry of what to do in the child when the process has forked.

The child of a fork has only the thread that forked. Mutexes that other threads had stay locked in
it, and connections are still the parent's. So whatever has a mutex, a thread or a connection is
made anew there.

Hooks run in the order of their registration, but all functions come before all objects: an object
that forgets its connections needs them to be the parent's alone by then. An error in one hook keeps
no other from running; Python writes the first one to ``sys.stderr``.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

Hook = Callable[[], object]
H = TypeVar("H", bound=Hook)


class ResetInChild(Protocol):
    """Something that has to be made anew in the child of a fork."""

    def after_fork_in_child(self) -> object: ...


_functions: list[Hook] = []
#: Objects by the number of their registration. Who deletes one takes no mutex for that, so it may
#: be the garbage collector.
_objects: weakref.WeakValueDictionary[int, ResetInChild] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_after_hooks: list[Hook] = []


def in_child(hook: H) -> H:
    """Call a function in the child after each fork. Usable as a decorator.

    For functions of modules; of objects that come and go, see reset_in_child().
    """
    _functions.append(hook)
    return hook


def reset_in_child(obj: ResetInChild) -> None:
    """Call ``obj.after_fork_in_child()`` in the child after each fork, for as long as it lives.

    It is known by a weak reference. All such objects are kept alive in the child until the last
    hook has run, so that none of them is deleted for another one's hook before its own has run.
    """
    _objects[next(_numbers)] = obj


def after_hooks(hook: Hook) -> None:
    """Call a function when all hooks of the child have run; for one of these that starts a thread.

    What the thread uses may not have been made anew before.
    """
    _after_hooks.append(hook)


def _run_in_child() -> None:
    objects = list(_objects.values())
    first: BaseException | None = None
    hooks = iter([*_functions, *(obj.after_fork_in_child for obj in objects)])
    while hook := next(hooks, None) or (_after_hooks.pop(0) if _after_hooks else None):
        try:
            hook()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


os.register_at_fork(after_in_child=_run_in_child)
