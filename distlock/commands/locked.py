"""A management command that runs once at a time, over all machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser

from distlock.activity import activity
from distlock.clock import clock, left
from distlock.commands import text
from distlock.commands.acquire import Busy, has_entered, take
from distlock.commands.arguments import add_busy_code, patience
from distlock.commands.exit_codes import BUSY, DONE, FAILED, LOST, UNAVAILABLE, USAGE, epilog, leave
from distlock.commands.lock_names import check_template, filled_in, own_name
from distlock.commands.no_lock import NoLock
from distlock.commands.signals import ended_by_signals
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.core.interrupters import terminator
from distlock.exceptions import LockError, LockLost, LockNotHeld
from distlock.lock import Lock

_LONGEST_SLEEP = 60.0

EPILOG = epilog(DONE, FAILED, USAGE, UNAVAILABLE, BUSY, LOST, failed="another error")


class LockedCommand(BaseCommand):
    """Base class of commands of which one instance runs at a time. Write ``handle()`` as always.

    The lock is called ``command:app.name``, or as ``lock_name`` says. Projects that keep their
    locks in one database or below one ZooKeeper root share all names: choose ``lock_name`` where
    two of them have a command of the same app and name.

    A command that finds its lock busy, cannot ask for it or loses it raises CommandError, whose
    ``returncode`` is the exit code; see ``distlock.commands.exit_codes``. SIGTERM and SIGHUP end it
    with SystemExit, unless the project handles them, so that the lock is freed.
    """

    #: the lock's name; a template over the command's options: ``"report:{account_id}"``
    lock_name: ClassVar[str | None] = None
    #: the alias of the backend in the ``DISTLOCK`` setting
    lock_using: ClassVar[str] = DEFAULT_ALIAS
    #: seconds of a lease, which is renewed; None takes the backend's
    lock_lease: ClassVar[float | None] = None
    #: seconds for which the lock stays taken after it was granted, even if the command ends earlier
    lock_at_least: ClassVar[float | None] = None
    #: shown to those who look at the lock; by default the command's own name
    lock_description: ClassVar[str] = ""
    #: seconds to wait for the lock where --lock-timeout is not given; None waits for ever
    lock_timeout: ClassVar[float | None] = 0
    #: whether ``handle()`` is ended with LockLost, as soon as Python can, when the lock is lost;
    #: else it finds out by ``self.lock.check()``, or when it has ended
    lock_terminates: ClassVar[bool] = True

    #: the lock while ``handle()`` runs; with --no-lock one that takes nothing, see ``NoLock``
    lock: Lock

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if iscoroutinefunction(cls.handle):
            raise TypeError(
                f"{cls.__qualname__}.handle() cannot be a coroutine function: Django calls it"
                " without awaiting it"
            )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """See BaseCommand. Raises ImproperlyConfigured if lock_name names no option."""
        kwargs.setdefault("epilog", EPILOG)
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        if self.lock_name is not None:
            check_template(self.lock_name, type(self), parser)
        group = parser.add_argument_group("lock")
        group.add_argument(
            "--lock-timeout",
            type=patience,
            metavar="SECONDS",
            default=self.lock_timeout,
            help="Wait for the lock no longer than that; 0 tries once (%(default)s).",
        )
        add_busy_code(group)
        group.add_argument(
            "--no-lock",
            action="store_true",
            help="Run without the lock, whoever has it.",
        )
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        """See BaseCommand; run it under the lock."""
        with activity(f"manage.py {own_name(type(self))}"):
            if options.get("no_lock"):
                self.lock = NoLock(self._name(options), using=self.lock_using)
                return super().execute(*args, **options)
            with ended_by_signals():
                return self._execute_locked(args, options)

    def _execute_locked(self, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        ending = terminator()
        try:
            lock = self.lock = Lock(
                self._name(options),
                using=self.lock_using,
                lease=self.lock_lease,
                at_least=self.lock_at_least,
                description=self.lock_description,
                on_lost=ending.on_lost if self.lock_terminates else None,
            )
            _ = locks[lock.using]
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"{type(self).__module__}: {error}") from error
        timeout = options.get("lock_timeout", self.lock_timeout)
        try:
            with self._taken(lock, timeout), ending:
                lock.check()  # from here on a loss ends what runs
                return super().execute(*args, **options)
        except Busy as busy:
            busy.leave(self, options.get("busy_code", BUSY), options.get("verbosity", 1))
            return None

    @contextmanager
    def _taken(self, lock: Lock, timeout: float | None) -> Iterator[None]:
        """Hold the lock; whatever comes, it is left in the end, and a loss is told."""
        outer, granted_at = has_entered(lock), clock()
        try:
            try:
                take(lock, timeout)
            except (TypeError, ValueError, OverflowError) as error:
                leave(USAGE, f"--lock-timeout: {error}")
            outer, granted_at = False, clock()
            yield
        except BaseException as error:
            lost = _loss(lock)
            if isinstance(error, Exception):  # who interrupts it does not want to wait
                self._stay(lock, granted_at)
            if not outer:
                _leave_after(error, lock)
            if lost and isinstance(error, LockLost):
                leave(LOST, f"ended: {text.escaped(lost)}")
            raise
        self._stay(lock, granted_at)
        try:
            lock.release()
        except LockLost as error:
            leave(LOST, f"it ran to its end, but {text.escaped(str(error))}")
        except LockError as error:
            self.stderr.write(f"the lock is freed when its lease ends: {error}")

    def _stay(self, lock: Lock, granted_at: float) -> None:
        """Hold the lock for the rest of its time where it would end with this process."""
        if (
            self.lock_at_least is None
            or locks[lock.using].capabilities.outlives_process
            or not getattr(self, "_called_from_command_line", False)
        ):
            return
        until = granted_at + self.lock_at_least
        while (rest := left(until, min(_LONGEST_SLEEP, self.lock_at_least))) and lock.held:
            time.sleep(rest)

    def _name(self, options: dict[str, Any]) -> str:
        if self.lock_name is None:
            return f"command:{own_name(type(self))}"
        return filled_in(self.lock_name, options)


def _loss(lock: Lock) -> str:
    """Return why the lock was lost, if it was."""
    try:
        lock.check()
    except LockLost as error:
        return str(error)
    except LockNotHeld:
        pass
    return ""


def _leave_after(error: BaseException, lock: Lock) -> None:
    """Leave the lock, if it was had, after an error that the caller must see."""
    try:
        lock.release()
    except LockNotHeld:
        pass
    except LockError as problem:
        error.add_note(f"besides, leaving the lock failed: {problem}")
