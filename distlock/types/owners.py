"""The owner of a lock, under an identity that is never used again, and the line where it asks.

It is the current asyncio task, or the current thread and the piece of work that this is doing: a
request, a job of an executor, a Celery task. The owner of a queueing lock is a queued call: its
name contains the id of the Celery task.
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
from types import FrameType
from typing import Any, NamedTuple

from distlock.concurrency import fork
from distlock.concurrency.work import JOB_FUNCTIONS, Strand, Work, current_work, runs_a_job
from distlock.types.lease import MAX_DESCRIPTION, LockInfo, Owner, State
from distlock.types.values import checked_label, escaped

#: A named owner's key begins with this; a nonce is hexadecimal and never does.
NAMED = "@"
#: The key of the placeholder owner of a reserved lock begins with this.
RESERVED = "~"

#: The names of all queueing locks begin with this, so that no running task has the same lock.
QUEUEING = "queueing:"
#: The names of owners of queueing locks begin with this; the id of the queued task follows.
_QUEUED = "celery:"

_MAX_LABEL = 255

#: Code between a user's line and a lock; none of it is what people look for.
_BETWEEN = (
    "distlock.",
    "asgiref.",
    "asyncio.",
    "billiard.",
    "celery.",
    "concurrent.futures.",
    "contextlib",
    "contextvars",
    "django.core.management",
    "django.utils.asyncio",
    "functools",
    "multiprocessing.",
    "threading",
)
#: Code between a user's line and a warning about it.
_INSIDE = ("distlock.", "django.utils.asyncio", "contextlib")
#: Methods that take a lock and leave it to their caller to release it.
_DOORS = frozenset({"acquire", "__enter__"})

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
    if gevent_patched():
        return Liveness(weakref.ref(sys.modules["greenlet"].getcurrent()), _greenlet_runs)
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


@functools.cache
def _between(module: str) -> str:
    """Return which of the packages of _BETWEEN a module is in, "" for others."""
    return next((name for name in _BETWEEN if module.startswith(name)), "")


def call_site(description: str) -> tuple[str, str, bool]:
    """Return the user's line that asks for a lock, as ``shop/views.py:42``, "" if there is none.

    Also its label, and whether the asking is all that a job of an executor does, as in
    ``asyncio.to_thread(lock.acquire)``: then nobody could release the lock.
    """
    frame: FrameType | None = sys._getframe(2)
    outermost = ""
    while frame is not None:
        package = _between(frame.f_globals.get("__name__", ""))
        if not package:
            site = f"{shortened(frame.f_code.co_filename)}:{frame.f_lineno}"
            label = f"{description} (at {site})" if description else f"(at {site})"
            return site, label if len(label) <= MAX_DESCRIPTION else description, False
        if package == "distlock.":
            outermost = frame.f_code.co_name
        elif frame.f_code.co_name in JOB_FUNCTIONS and runs_a_job(frame):
            return "", description, outermost in _DOORS
        frame = frame.f_back
    return "", description, False


def callers_level() -> int:
    """Return the ``stacklevel`` of a warning that is to name the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level


@functools.lru_cache(512)
def shortened(path: str) -> str:
    """Return a file and its folder: enough to find it, and short."""
    return escaped("/".join(path.replace("(", "").replace(")", "").split("/")[-2:]))


def queued_owner_name(task_id: str) -> str:
    """Return a name for the owner of a queued call; each call of this function makes another.

    An id that is too long for it, or that no database can store, is left out, and then not known.
    """
    begins = f"{_QUEUED}{uuid.uuid4().hex}:"
    try:
        return checked_label("owner", begins + task_id)
    except ValueError:
        return begins


def describe_queued(task: str, *, running: bool = False) -> str:
    """Return the description of a queueing lock; ``task`` is the name and the id of its task."""
    state = ", running" if running else ", queued"
    return escaped(f"Celery task {task}")[: MAX_DESCRIPTION - len(state)] + state


def is_queued(info: LockInfo) -> bool:
    """Return whether the lock's owner, or last owner, is a queued call that has not started yet."""
    return (
        info.state is not State.FREE
        and info.owner is not None
        and info.owner.key.startswith(NAMED + _QUEUED)
        and not info.renews  # it is renewed from the start of its task on
    )


def task_id_of(info: LockInfo) -> str | None:
    """Return the id of the task that has a lock; None if there is none or it is unknown."""
    if info.owner is None or not info.owner.key.startswith(NAMED + _QUEUED):
        return None
    return info.owner.key.removeprefix(NAMED + _QUEUED).partition(":")[2] or None
