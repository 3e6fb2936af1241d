"""The one registry of what to do before and after the process forks.

The child of a fork has only the thread that forked. Mutexes that other threads had stay locked in
it, and connections are still the parent's. So whatever has a mutex, a thread or a connection is
made anew there.

In the child, and in the parent, hooks run in the order of their registration; those before the
fork in the reverse order, as with ``os.register_at_fork``. An error in one keeps no other from
running; Python then writes the first one to ``sys.stderr``.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

Hook = Callable[[], object]
H = TypeVar("H", bound=Hook)


class ResetInChild(Protocol):
    """Something that has to be made anew in the child of a fork."""

    def after_fork_in_child(self) -> object: ...


_before: list[Hook] = []
_in_parent: list[Hook] = []
#: Functions, and weak references to objects, by the number of their registration.
_in_child: dict[int, Hook | weakref.ref[ResetInChild]] = {}
_numbers = itertools.count()


def before(hook: H) -> H:
    """Call a function before each fork, in the thread that forks. Usable as a decorator."""
    _before.append(hook)
    return hook


def in_parent(hook: H) -> H:
    """Call a function in the parent after each fork. Usable as a decorator."""
    _in_parent.append(hook)
    return hook


def in_child(hook: H) -> H:
    """Call a function in the child after each fork. Usable as a decorator.

    For functions of modules; of objects that come and go, see reset_in_child().
    """
    _in_child[next(_numbers)] = hook
    return hook


def reset_in_child(obj: ResetInChild) -> None:
    """Call ``obj.after_fork_in_child()`` in the child after each fork, for as long as it lives.

    It is known by a weak reference. All such objects are kept alive in the child until the last
    hook has run, so that none of them is deleted for another one's hook before its own has run.
    """
    number = next(_numbers)
    # Called by the garbage collector: this is one atomic step without a mutex.
    _in_child[number] = weakref.ref(obj, lambda _: _in_child.pop(number, None))


def _run(hooks: Iterable[Hook]) -> None:
    first: BaseException | None = None
    for hook in hooks:
        try:
            hook()
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first


def _run_in_child() -> None:
    hooks: list[Hook] = []
    for hook in _in_child.copy().values():
        if not isinstance(hook, weakref.ref):
            hooks.append(hook)
        elif (obj := hook()) is not None:
            hooks.append(obj.after_fork_in_child)
    _run(hooks)


os.register_at_fork(
    before=lambda: _run(_before[::-1]),
    after_in_parent=lambda: _run(_in_parent.copy()),
    after_in_child=_run_in_child,
)
