"""Which process this is: what must not survive a fork hangs on it, and a child is another one.

The child of a fork has only the thread that forked. Mutexes that other threads had stay locked in
it, and connections are still the parent's. So it uses nothing of the parent's. State that exists
once in a process, and work that an object has begun in one, is a PerProcess: the child has one of
its own, made when it is first used. The parent's stays in memory, and is never looked at again.

Before the child sees anything of its own, its copies of the parent's connections are dropped
without a word to the servers, and then the few functions of in_child() are called. An error in one
keeps no other from being called; the first one is written to ``sys.stderr``.

Python tells of a fork by ``os.fork()``. A C extension or an embedding server, such as uWSGI, calls
fork(2) itself, and no hook of Python's is called. Only the pid tells such a child, so it is
compared with each look at what is of the process: wherever an owner is determined, a backend is
looked up, or what this process holds is read; before another fork, and before the process ends.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from os import getpid
from threading import get_ident
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from distlock.concurrency.pending import Latch
from distlock.concurrency.reentry import calls_others

#: Seconds between two looks of a thread that waits for another one.
_LONGEST_SLEEP = 1.0

Hook = Callable[[], object]
H = TypeVar("H", bound=Hook)
T = TypeVar("T")


class Connected(Protocol):
    """Something that a child of a fork must not use, nor close as one does."""

    def leave_to_parent(self) -> object:
        """In the child: drop the copies of what is the parent's; twice does no harm."""


class Process:
    """A process. Objects that remember in which one they began can compare it with current()."""

    def __init__(self) -> None:
        self.pid = getpid()
        #: what is connected to a server, or to a file
        self.connections: WeakSet[Connected] = WeakSet()
        #: By the pid of a child that is about to begin: the thread that sees to it, what the child
        #: is, and whether that has begun. It is empty in this process itself.
        self.children: dict[int, tuple[int, Process, Latch]] = {}


_process = Process()
_hooks: list[Hook] = []
#: threads of the parent, where it has forked without hooks
_threads_of_parent: list[threading.Thread] = []


def current() -> Process:
    """Return this process. Costs one look at the pid.

    In a new child of a fork the first thread that comes here drops what is the parent's, and the
    others wait for it.
    """
    process = _process
    return process if getpid() == process.pid else _begin_in_child()


class PerProcess(Generic[T]):
    """State of each process: ``manager = PerProcess(Manager)``, then ``manager()``.

    It takes no mutex. Two threads that come first at the same time may make one each, and both get
    the same one: so making it must have no effect.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        """``make`` gets what the call is given; of an object's own, it must not keep that alive."""
        self._make = make
        self._made: dict[Process, T] = {}

    def __call__(self, *args: Any) -> T:
        """Return that of this process."""
        process = _process
        if getpid() != process.pid:
            process = _begin_in_child()
        made = self._made.get(process)
        return self._made.setdefault(process, self._make(*args)) if made is None else made


def in_child(hook: H) -> H:
    """Call a function in the child after each fork; usable as a decorator.

    For work that goes on there by itself. State of the process needs none: see PerProcess.
    If an interrupt ends the function, it is called once more.
    """
    _hooks.append(hook)
    return hook


def at_exit(hook: H) -> H:
    """Call a function when the process ends, which it does not do to what is the parent's.

    Usable as a decorator. See atexit.register().
    """

    @calls_others
    def call() -> None:
        current()
        hook()

    atexit.register(call)
    return hook


def children_run() -> bool:
    """Return whether processes of multiprocessing run, for which Python waits when this one ends.

    It may do so after the hooks of at_exit(), and what is held around them has to last until then.
    """
    processes: Any = sys.modules.get("multiprocessing.process")
    return processes is not None and bool(processes.active_children())


def _begin_in_child() -> Process:
    parent, pid, own = _process, getpid(), (get_ident(), Process(), Latch())
    if parent.pid == pid:  # another thread was faster
        return parent
    try:
        # No mutex: a thread of the parent may have held it at the fork. This is one atomic step.
        runner, child, begun = parent.children.setdefault(pid, own)
        if begun is own[2]:
            _leave_to_parent(parent, child)
        elif runner != own[0]:
            _wait(parent, begun)
            return current()
        return child  # or a hook has called this
    finally:
        try:
            _end_beginning(parent, pid, own)
        finally:  # a second interrupt: signals often come in twos
            _end_beginning(parent, pid, own)


def _end_beginning(parent: Process, pid: int, own: tuple[int, Process, Latch]) -> None:
    if _process is parent and parent.children.get(pid) is own:
        del parent.children[pid]  # interrupted: the next one begins again
    own[2].set()


def _wait(parent: Process, begun: Latch) -> None:
    while _process is parent and not begun.wait(_LONGEST_SLEEP):
        pass  # who was to set it may have been interrupted


def _leave_to_parent(parent: Process, child: Process) -> None:
    """Begin in the child. After an interrupt the next one who looks does all of it once more."""
    global _process
    first: Exception | None = None
    # All connections are kept alive until the last one was dropped: a destructor says goodbye.
    dropped = [one.leave_to_parent for one in parent.connections]
    for hook in (_keep_threads, *dropped, *_hooks):
        try:
            hook()
        except Exception as error:
            first = first or error
    _process = child
    if first is not None:  # as Python does after os.fork()
        traceback.print_exception(first)


def _keep_threads() -> None:
    """Keep the objects of the parent's threads, also of those that nobody has joined.

    From Python 3.13 on their deletion asks the system to forget the thread, whose memory the child
    may have given back: that crashes the process. os.fork() prevents it.
    """
    if sys.version_info >= (3, 13):
        found = (one for one in gc.get_objects() if issubclass(type(one), threading.Thread))
        _threads_of_parent.extend(found)


os.register_at_fork(after_in_child=_begin_in_child)
