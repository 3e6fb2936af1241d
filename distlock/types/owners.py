"""The owner of a lock: the current thread or asyncio task, under an identity never used again."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from distlock.concurrency import fork
from distlock.types.lease import Owner

#: A named owner's key begins with this; a nonce is hexadecimal and never does.
NAMED = "@"
#: The key of the placeholder owner of a reserved lock begins with this.
RESERVED = "~"

_MAX_LABEL = 255

_process_nonce = uuid.uuid4().hex
_serials = itertools.count(1)
_thread = threading.local()
_task_serials: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Liveness:
    """The run of one task, thread or greenlet; two that are of the same one are equal."""

    _who: weakref.ref[Any]
    _runs: Callable[[Any], bool]

    def __call__(self) -> bool:
        """Return whether it goes on."""
        return (living := self._who()) is not None and self._runs(living)


class Actor(NamedTuple):
    """The task, thread or greenlet that runs now: as an owner, and whether it still runs."""

    owner: Owner
    liveness: Liveness


def current_actor(name: str | None = None) -> Actor:
    """Return who takes a lock here and now; see current_owner() for ``name``."""
    loop = asyncio._get_running_loop()  # get_running_loop() would raise an error for nearly all
    if name is not None or (loop is not None and asyncio.current_task(loop) is not None):
        return Actor(_new_owner(name), current_liveness())
    # Nearly every call is of a thread that has been here before. A fork changes the nonce, and
    # anyone may rename a thread.
    thread = threading.current_thread()
    known: _KnownThread | None = getattr(_thread, "known", None)
    if (
        known is None
        or known.process is not _process_nonce
        or known.thread() is not thread
        or known.label != thread.name
    ):
        actor = Actor(_new_owner(None), current_liveness())
        _thread.known = known = _KnownThread(
            _process_nonce, weakref.ref(thread), thread.name, actor
        )
    return known.actor


class _KnownThread(NamedTuple):
    process: str
    thread: weakref.ref[threading.Thread]
    label: str
    actor: Actor


def current_owner(name: str | None = None) -> Owner:
    """Return who holds what is taken here and now.

    With ``name`` the owner is everyone who says this name; else it is the current asyncio task, or
    the current thread (or greenlet) where no task runs.
    """
    return current_actor(name).owner


def new_owner() -> Owner:
    """Return an owner that is nobody else: for an object that any thread or task may use."""
    return replace(current_owner(), key=f"{_process_nonce}:{next(_serials)}")


def _new_owner(name: str | None) -> Owner:
    task = current_task()
    label = task.get_name() if task else threading.current_thread().name
    key = f"{NAMED}{name}" if name is not None else f"{_process_nonce}:{_serial(task)}"
    return Owner(key, _host(), os.getpid(), _printable(label))


def _printable(label: str) -> str:
    # Hosts, threads and tasks may have names that no database can store.
    if not label.isprintable():
        label = "".join(character if character.isprintable() else "?" for character in label)
    return label[:_MAX_LABEL]


@functools.cache
def _host() -> str:
    # Asking each time would hand the interpreter to other threads each time.
    return _printable(socket.gethostname())


def is_named(owner: Owner) -> bool:
    """Return whether the owner was named by the caller and may be in several places at once."""
    return owner.key.startswith(NAMED)


def reserved_owner(owner: Owner, nonce: str) -> Owner:
    """Return the placeholder owner of a reserved lock. Host, pid, thread are those of ``owner``."""
    return replace(owner, key=f"{RESERVED}{nonce}")


def is_reserved(owner: Owner) -> bool:
    """Return whether the holder has left, and nobody can enter until the rest of its time is over.

    See ``Lock``, ``at_least``.
    """
    return owner.key.startswith(RESERVED)


def current_liveness() -> Liveness:
    """Return what tells whether the current task, thread or greenlet still runs."""
    if task := current_task():
        return Liveness(weakref.ref(task), _task_runs)
    if greenlet := _current_greenlet():
        return Liveness(weakref.ref(greenlet), _greenlet_runs)
    return Liveness(weakref.ref(threading.current_thread()), _thread_runs)


def current_task() -> asyncio.Task[Any] | None:
    """Return the running asyncio task, None outside of asyncio."""
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)


def gevent_patched() -> bool:
    """Return whether gevent has replaced threads by greenlets in this process."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


#: Modules that were imported before threads were replaced go on with the old ones.
_patched_when_imported = gevent_patched()


def host_problem() -> str | None:
    """Return why no lock can be used in this process; None if locks can."""
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return (
            "eventlet has replaced the threads of this process, and offers no poll() to wait with:"
            " use threads, processes or gevent"
        )
    if gevent_patched() and not _patched_when_imported:
        return (
            "gevent has replaced the threads of this process after distlock was imported (gunicorn"
            " does so with --preload): do not preload, or put"
            " `from gevent import monkey; monkey.patch_all()` into gunicorn.conf.py"
        )
    return None


def _serial(task: asyncio.Task[Any] | None) -> int:
    # Ids of threads and tasks are used again after their death; these numbers never are.
    if task is not None:
        serial = _task_serials.get(task)
        if serial is None:
            serial = _task_serials[task] = next(_serials)
        return serial
    try:
        return int(_thread.serial)
    except AttributeError:
        _thread.serial = next(_serials)
        return int(_thread.serial)


def _task_runs(task: asyncio.Task[Any]) -> bool:
    # The loop may have been closed before the task was done: nobody will ever go on with it.
    return not task.done() and not task.get_loop().is_closed()


def _thread_runs(thread: threading.Thread) -> bool:
    return thread.is_alive()


def _greenlet_runs(greenlet: Any) -> bool:
    return not greenlet.dead


def _current_greenlet() -> Any:
    if not gevent_patched():
        return None
    return sys.modules["greenlet"].getcurrent()


@fork.in_child
def _after_fork() -> None:
    global _process_nonce
    _process_nonce = uuid.uuid4().hex
