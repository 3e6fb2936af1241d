"""The audit log: operations of people on locks and on the coordination family, with time and
reason.

It is a table of the Django database, for the locks of all backends. Writing it is best effort: an
operation on ZooKeeper or etcd is done also while that database is down, and the log says so.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from getpass import getuser
from typing import Any, TypeVar
from weakref import WeakSet

from django.apps import apps
from django.db import connections, router, transaction
from django.utils import timezone

from distlock.backends.base import BaseBackend
from distlock.backends.open_transactions import (
    TransactionOutcomeHook,
    blocks_of_test_case,
    call_at_end,
)
from distlock.concurrency import fork
from distlock.concurrency.clock import clock, left
from distlock.concurrency.threads import start, thread_logger
from distlock.concurrency.workers import WorkerThreads
from distlock.conf import audit_days, locks
from distlock.exceptions import BodyEnded
from distlock.records.shared_backend import sweep_every_kind
from distlock.types.lease import Kind, Lease, LockKey, SweepResult
from distlock.types.values import escaped

T = TypeVar("T")

#: Seconds that an operation waits for its entry, and the end of the process for all of them.
_LIMIT = 2.0

_threads = fork.PerProcess(lambda: WorkerThreads(2, "distlock-audit"))
#: those that write what a rollback has left
_late: fork.PerProcess[WeakSet[threading.Thread]] = fork.PerProcess(WeakSet)


@fork.at_exit
def _settle() -> None:
    until = clock() + _LIMIT
    for thread in [*_late()]:
        thread.join(left(until, _LIMIT))
    _threads().drain(left(until, _LIMIT))


def record(key: LockKey, action: str, text: str, *, reason: str = "", who: str = "") -> None:
    """Record an operation on a name, or with "" on a whole backend.

    ``action`` is a word for scripts,
    ``text`` for people; ``who`` is the system's user by default. An error is logged, not raised,
    together with the entry that could not be written.
    """
    using, kind, name = key
    text = escaped(f"{text} Reason: {reason}" if reason else text)
    who = escaped(str(who) or system_user())[:255]
    at = timezone.now()  # it may be written much later
    values = {"using": using, "kind": kind, "name": name, "action": action, "text": text}
    what = f"; to be written: {kind} {name!r} on {using!r}, {action} by {who}: {text}"

    def write() -> None:
        _ask(lambda model: model.objects.create(at=at, who=who, **values), None, what)

    around = _transaction_around(using, kind)
    if around is None:
        write()
    else:
        call_at_end(around, TransactionOutcomeHook(write, partial(_write_soon, write)))


def record_break(backend: BaseBackend, lease: Lease, reason: str, who: str) -> None:
    """Write down that a hold was broken."""
    text = f"Force released: token {lease.token}, owner {lease.owner}."
    record(lease.claim.key(backend.alias), "release", text, reason=reason, who=who)


def entries(using: str, kind: Kind, name: str, limit: int = 20) -> list[dict[str, Any]]:
    """Return the latest entries about a name, newest first: at, who, action, text.

    - ``using``: the alias of the backend.
    - ``kind``, ``name``: what they are about.
    - ``limit``: how many at most.

    There are none if they cannot be read, and in a coroutine, which must not wait for a database.
    """

    def read(model: Any) -> list[dict[str, Any]]:
        found = model.objects.filter(using=using, kind=kind, name=name).order_by("-at", "-pk")
        rows = list(found.values("at", "who", "action", "text")[:limit])
        for row in rows:
            if timezone.is_naive(row["at"]):  # USE_TZ is False
                row["at"] = timezone.make_aware(row["at"])
        return rows

    return _ask(read, [])


def sweep(backend: BaseBackend) -> SweepResult:
    """Sweep a backend, record it if leases had expired, and remove old entries."""
    swept = sweep_every_kind(backend)
    if swept.expired:
        text = f"Swept: {swept.expired} expired, {swept.removed} removed."
        record(LockKey(backend.alias, Kind.LOCK, ""), "sweep", text)
    remove_old()
    return swept


def remove_old() -> None:
    """Remove the entries that are older than ``DISTLOCK_AUDIT_DAYS``; an error is logged."""

    def remove(model: Any) -> None:
        if (days := audit_days()) is not None:
            model.objects.filter(at__lt=timezone.now() - timedelta(days)).delete()

    _ask(remove, None)


def system_user() -> str:
    """Return who runs this process, for people: the system's user and the host."""
    try:
        return f"{getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container may have no name for its user
        return f"?@{socket.gethostname()}"


def _transaction_around(using: str, kind: Kind) -> Any:
    """Return the connection in whose open transaction an entry would be undone, None if none is.

    On SQLite only that transaction can write the entry before it ends. A rollback also undoes the
    recorded operation if that changed a lock in the same database, and no other one. The
    transaction around a test case never ends.
    """
    try:
        database = router.db_for_write(apps.get_model("distlock", "AuditEntry"))
        connection: Any = connections[database]
        if not connection.in_atomic_block or connection.vendor != "sqlite":
            return None
        if blocks_of_test_case(connection):
            return None
        together = kind is Kind.LOCK and locks[using].frees_inside(database)
        return None if together else connection
    except BodyEnded:
        raise
    except Exception:  # write() finds the same, and logs it
        return None


def _write_soon(write: Callable[[], object]) -> None:
    """Write an entry on another thread: the garbage collector may call this, and must not wait."""
    _late().add(start(write, "distlock-rollback"))


def _ask(call: Callable[[Any], T], default: T, what: str = "") -> T:
    """Return what the model is asked for; the default if it does not answer in time.

    ``what`` ends the line that says so in the log.

    On a thread: what was done in a backend is not undone by a rollback of the caller, a silent
    database is not waited for, and in a coroutine nothing is. But on SQLite another connection
    would wait for the caller's transaction, and that of a test case never commits.
    """
    try:
        model: Any = apps.get_model("distlock", "AuditEntry")
        database = router.db_for_write(model)
        connection: Any = connections[database]
        inside = connection.vendor == "sqlite" or blocks_of_test_case(connection)
        if connection.in_atomic_block and inside:
            return _attempt(call, model, database, default, what)
        job = _threads().submit(partial(_attempt, call, model, database, default, what))
    except BodyEnded:
        raise
    except Exception as error:  # Django may not be set up, or no more threads can be started
        thread_logger.warning("the audit log could not be asked: %s%s", error, what)
        return default
    if asyncio._get_running_loop() is None:
        # An error of this is the caller's: the loss of a lock around it, a time limit.
        if job.wait(clock() + _LIMIT):
            return job.take()
        # It may answer yet; but this process may end before.
        text = "the audit log, in the database %r, has not answered in time%s"
        thread_logger.warning(text, database, what)
    return default


def _attempt(call: Callable[[Any], T], model: Any, database: str, default: T, what: str) -> T:
    try:
        try:
            # Without a transaction of the caller this is one statement.
            inside = connections[database].in_atomic_block
            with transaction.atomic(database) if inside else nullcontext():
                return call(model)
        finally:
            if not connections[database].in_atomic_block:  # that of a thread of its own
                connections[database].close()
    except BodyEnded:
        raise
    except Exception as error:
        text = "the audit log, in the database %r, failed: %s%s"
        thread_logger.warning(text, database, error, what)
        return default
