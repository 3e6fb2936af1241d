"""The owner of a lock, under an identity that is never used again.

It is the current asyncio task, or the current thread and the piece of work that this is doing: a
request, a job of an executor, a Celery task.
"""

from __future__ import annotations

import asyncio
import functools
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
from distlock.concurrency.work import Strand, Work, current_work
from distlock.types.lease import Owner

#: A named owner's key begins with this; a nonce is hexadecimal and never does.
NAMED = "@"
#: The key of the placeholder owner of a reserved lock begins with this.
RESERVED = "~"

_MAX_LABEL = 255

_nonce = fork.PerProcess(lambda: uuid.uuid4().hex)
_task_keys: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Liveness:
    """The run of one task, piece of work, thread or greenlet; two that are of one are equal."""

    _who: weakref.ref[Any]
    _runs: Callable[[Any], bool]

    def __call__(self) -> bool:
        """Return whether it goes on."""
        return (living := self._who()) is not None and self._runs(living)

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task, if it is the run of one that is not gone."""
        return self._who() if self._runs is _task_runs else None


class Actor(NamedTuple):
    """Who takes a lock: as an owner, whether that goes on, and the piece of work it is, if any."""

    owner: Owner
    liveness: Liveness
    work: Work | None = None


class _KnownActor(NamedTuple):
    process: str
    label: str
    key: str
    actor: Actor


def current_actor(name: str | None = None) -> Actor:
    """Return who takes a lock here and now; see current_owner() for ``name``."""
    nonce = _nonce()
    loop = asyncio._get_running_loop()  # get_running_loop() would raise an error for nearly all
    if loop is not None and (task := asyncio.current_task(loop)) is not None:
        key = f"{nonce}:{_key_of(task)}"
        actor = Actor(_owner(key, task.get_name()), Liveness(weakref.ref(task), _task_runs))
    else:
        strand, work = current_work()
        known: _KnownActor | None = strand.known if work is None else work.known
        # Nearly every call is of a thread and a piece that have been here before. A fork changes
        # the nonce, and anyone may rename a thread.
        label = threading.current_thread().name
        if known is None or known.process is not nonce or known.label != label:
            known = _known(strand, work, label, nonce)
        actor = known.actor
    if name is None:
        return actor
    return actor._replace(owner=_owner(f"{NAMED}{name}", actor.owner.thread))


def _known(strand: Strand, work: Work | None, label: str, nonce: str) -> _KnownActor:
    """Return who a thread is in a piece of work; None stands for what is outside of all."""
    bearer = strand if work is None else work
    known: _KnownActor | None = bearer.known
    key = _new_key() if known is None else known.key
    within: tuple[str, ...] = ()
    if work is not None:
        outer = _known(strand, work.outer, label, nonce).actor.owner
        within = (outer.key, *outer.within)
    owner = _owner(f"{nonce}:{key}", label, within)
    actor = Actor(owner, _liveness_of(strand, work), work)
    bearer.known = known = _KnownActor(nonce, label, key, actor)
    return known


def current_owner(name: str | None = None) -> Owner:
    """Return who holds what is taken here and now.

    With ``name`` the owner is everyone who says this name; else it is the current asyncio task, or,
    where no task runs, the present piece of work of the current thread (or greenlet).
    """
    return current_actor(name).owner


def new_owner() -> Owner:
    """Return an owner that is nobody else: for an object that any thread or task may use."""
    return replace(current_owner(), key=f"{_nonce()}:{_new_key()}", within=())


def _new_key() -> str:
    # A number of a counter would do, if Python promised that no two threads get the same one. Two
    # owners with one key would hold a lock together.
    return os.urandom(8).hex()


def _owner(key: str, label: str, within: tuple[str, ...] = ()) -> Owner:
    return Owner(key, _host(), os.getpid(), _printable(label), within=within)


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
    """Return what tells whether the current task, piece of work, thread or greenlet goes on."""
    return current_actor().liveness


def _liveness_of(strand: Strand, work: Work | None) -> Liveness:
    if work is not None:
        return Liveness(weakref.ref(work), _work_goes_on)
    if greenlet := _current_greenlet():
        return Liveness(weakref.ref(greenlet), _greenlet_runs)
    return Liveness(strand.thread, _thread_runs)


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


def _key_of(task: asyncio.Task[Any]) -> str:
    # Ids of tasks are used again after their death; these keys never are.
    key = _task_keys.get(task)
    if key is None:
        key = _task_keys[task] = _new_key()
    return key


def _task_runs(task: asyncio.Task[Any]) -> bool:
    # The loop may have been closed before the task was done: nobody will ever go on with it.
    return not task.done() and not task.get_loop().is_closed()


def _work_goes_on(work: Work) -> bool:
    return not work.over


def _thread_runs(thread: threading.Thread) -> bool:
    return thread.is_alive()


def _greenlet_runs(greenlet: Any) -> bool:
    return not greenlet.dead


def _current_greenlet() -> Any:
    if not gevent_patched():
        return None
    return sys.modules["greenlet"].getcurrent()
