"""The one registry of what to do in the child when the process has forked.

The child of a fork has only the thread that forked. Mutexes that other threads had stay locked in
it, and connections are still the parent's. So whatever has a mutex, a thread or a connection is
made anew there.

Hooks run in the order of their registration, but all functions come before all objects: an object
that forgets its connections needs them to be the parent's alone by then. An error in one hook keeps
no other from running; the first one is written to ``sys.stderr``.

Python runs them after ``os.fork()``. A C extension or an embedding server, such as uWSGI, calls
fork(2) itself, and no hook of Python's is called. Only the pid tells such a child, so
ensure_reset() compares it wherever distlock is entered: where an owner is determined, a backend is
looked up, or what this process holds is read; before another fork, and before the process ends.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from threading import TIMEOUT_MAX, get_ident
from typing import Any, Protocol, TypeVar

from distlock.concurrency.pending import Latch
from distlock.concurrency.reentry import calls_others

Hook = Callable[[], object]
H = TypeVar("H", bound=Hook)


class ResetInChild(Protocol):
    """Something that has to be made anew in the child of a fork."""

    def after_fork_in_child(self) -> object: ...


class _Process:
    """The process that everything here was made for."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        #: By the pid of a child that was forked without hooks: the thread that resets all there,
        #: and whether it has. It is empty in this process itself.
        self.resets: dict[int, tuple[int, Latch]] = {}


_process = _Process()
_functions: list[Hook] = []
#: Objects by the number of their registration. Who deletes one takes no mutex for that, so it may
#: be the garbage collector.
_objects: weakref.WeakValueDictionary[int, ResetInChild] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_after_hooks: list[Hook] = []
#: threads of the parent, where it has forked without hooks
_threads_of_parent: list[threading.Thread] = []


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


def at_exit(hook: H) -> H:
    """Call a function when the process ends, which it does not do to what is the parent's.

    Usable as a decorator. See atexit.register().
    """

    @calls_others
    def call() -> None:
        ensure_reset()
        hook()

    atexit.register(call)
    return hook


def children_run() -> bool:
    """Return whether processes of multiprocessing run, for which Python waits when this one ends.

    It may do so after the hooks of at_exit(), and what is held around them has to last until then.
    """
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.active_children())


def ensure_reset() -> None:
    """Run the hooks first if this process is the child of a fork that called none.

    The first thread that comes here runs them, the others wait for it. Costs one look at the pid.
    """
    if os.getpid() != _process.pid:
        _reset_once()


def _reset_once() -> None:
    parent, pid, own = _process, os.getpid(), (get_ident(), Latch())
    if parent.pid == pid:  # another thread was faster
        return
    try:
        # No mutex: a thread of the parent may have held it at the fork. This is one atomic step.
        runner, done = parent.resets.setdefault(pid, own)
        if done is own[1]:
            _keep_threads()
            _run_in_child()
        elif runner != own[0]:  # else a hook has called this
            done.wait(TIMEOUT_MAX)
            ensure_reset()
    except Exception:  # as Python does after os.fork()
        traceback.print_exc()
    finally:
        if parent.resets.get(pid) is own:
            if _process is parent:  # interrupted: the next one begins anew
                del parent.resets[pid]
            own[1].set()


def _keep_threads() -> None:
    """Keep the objects of the parent's threads, also of those that nobody has joined.

    From Python 3.13 on their deletion asks the system to forget the thread, whose memory the child
    may have given back: that crashes the process. os.fork() prevents it.
    """
    if sys.version_info >= (3, 13):
        found = (one for one in gc.get_objects() if issubclass(type(one), threading.Thread))
        _threads_of_parent.extend(found)


def _run_in_child() -> None:
    global _process
    objects = list(_objects.values())
    first: BaseException | None = None
    hooks = iter([*_functions, *(obj.after_fork_in_child for obj in objects)])
    while hook := next(hooks, None) or (_after_hooks.pop(0) if _after_hooks else None):
        try:
            hook()
        except BaseException as error:  # the other hooks must be called, too
            first = first or error
    _process = _Process()
    if first is not None:
        raise first


os.register_at_fork(after_in_child=_reset_once)
