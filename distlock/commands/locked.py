"""A management command that runs once, or in a limited number, at a time over all machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import getattr_static
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast, get_args

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser
from django.db import DEFAULT_DB_ALIAS, transaction

from distlock.activity import activity
from distlock.commands.arguments import busy_code, waiting_time
from distlock.commands.exit_codes import (
    BUSY,
    DONE,
    FAILED,
    LOST,
    UNAVAILABLE,
    USAGE,
    epilog,
    fail,
    from_command_line,
    run_command,
    stay,
)
from distlock.commands.output import escaped
from distlock.concurrency.clock import clock
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import BodyEnded, LockLost, LockNotHeld
from distlock.locking.base_lock import BaseLock
from distlock.locking.lock import Lock
from distlock.locking.run_under import BodyInterrupter, Slots, body_interrupter, lock_or_slot
from distlock.locking.shared import Semaphore
from distlock.recipes.progress import track
from distlock.runtime.name_template import NameTemplate
from distlock.supervisor.processes import ended_by_signals
from distlock.types.lease import Owner
from distlock.types.values import OnBusy, Release, checked_choice, waiting_limit

T = TypeVar("T")

_COMMANDS = ".management.commands."

EPILOG = epilog(DONE, FAILED, USAGE, UNAVAILABLE, BUSY, LOST, meanings={FAILED: "another error"})


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
    #: how many instances may run at a time, in the seats of a ``Semaphore`` with the lock's name;
    #: "agreed" takes the number that ``manage.py locks resize`` has set last. None for one, under
    #: a ``Lock``
    lock_slots: ClassVar[Slots | None] = None
    #: seconds of a lease, which is renewed; None takes the backend's
    lock_lease: ClassVar[float | None] = None
    #: seconds for which the lock stays taken after it was granted, even if the command ends earlier
    #: (not with ``lock_slots``)
    lock_at_least: ClassVar[float | None] = None
    #: shown to those who look at the lock; by default the command's own name
    lock_description: ClassVar[str] = ""
    #: what happens if someone else has the lock: "wait" for it, "raise" CommandError with the code
    #: for that, or "skip" the work, which is no failure; --busy-code changes the exit code of each
    lock_on_busy: ClassVar[OnBusy] = "raise"
    #: seconds to wait for the lock before that, where --lock-timeout is not given; with None "wait"
    #: waits forever, and the others try once
    lock_timeout: ClassVar[float | None] = None
    #: when the lock is freed if ``call_command()`` runs it inside a transaction: "now" or "commit",
    #: as for ``Lock``; None takes the backend's ``RELEASE``
    lock_release: ClassVar[Release | None] = None
    #: whether ``handle()`` is ended with LockLost, as soon as Python can, when the lock is lost;
    #: else it finds out by ``self.lock.check()``, or when it has ended
    lock_terminates: ClassVar[bool] = True

    #: the lock while ``handle()`` runs; with --no-lock one that takes nothing, see ``NoLock``. With
    #: ``lock_slots`` a Semaphore, which has all of a Lock but ``atomic()``
    lock: Lock

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise ImproperlyConfigured for an attribute ``lock_…`` that there is not.

        A misspelt one would be ignored, and the command would run otherwise than was meant. Methods
        and properties of the command may have such names.
        """
        super().__init_subclass__(**options)
        known = [name for name in vars(LockedCommand) if name.startswith("lock_")]
        for name in dir(cls):
            value = getattr_static(cls, name)
            is_code = callable(value) or hasattr(value, "__get__")  # a method, a property
            if name.startswith("lock_") and name not in known and not is_code:
                (nearest,) = get_close_matches(name, known, n=1, cutoff=0)
                raise ImproperlyConfigured(
                    f"{cls.__module__}: {cls.__qualname__} sets {name}, which LockedCommand does"
                    f" not know; did you mean {nearest}?"
                )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """See BaseCommand."""
        kwargs.setdefault("epilog", EPILOG)
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        group = parser.add_argument_group("lock")
        help = "Wait for the lock no longer than that; 0 tries once."
        group.add_argument("--lock-timeout", type=waiting_time, metavar="SECONDS", help=help)
        busy_code(self._busy_code)(group)
        help = "Run without the lock, even if it is held."
        group.add_argument("--no-lock", action="store_true", help=help)
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        """See BaseCommand; run it under the lock.

        Raises ImproperlyConfigured if ``lock_name`` or another attribute cannot be right.
        """
        with activity(f"manage.py {_name_of(type(self))}"):
            if options.get("no_lock"):
                stand_in = NoLock if self.lock_slots is None else NoSlot
                self.lock = cast(Lock, stand_in(self._lock_name(options), using=self.lock_using))
                return super().execute(*args, **options)
            with ended_by_signals():
                return self._execute_locked(args, options)

    def track(
        self, iterable: Iterable[T], total: float | None = None, *, unit: str = ""
    ) -> Iterator[T]:
        """Yield what ``iterable`` has, and report how far that is under the name of the lock.

        ``total`` and ``unit`` are as of ``distlock.recipes.track()``.
        """
        return track(iterable, self.lock.name, total, unit=unit, using=self.lock_using)

    def _execute_locked(self, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        interrupter = body_interrupter()
        lock = self._checked_lock(self._lock_name(options), interrupter)
        self.lock = cast(Lock, lock)

        def body() -> str | None:
            granted_at = clock()
            try:
                with interrupter:
                    lock.check()  # from here on a loss ends what runs
                    result = super(LockedCommand, self).execute(*args, **options)
            except Exception as error:
                lost = _loss(lock)
                self._stay(lock, granted_at)
                is_around = isinstance(error, BodyEnded) and error is not interrupter.loss
                if lost and isinstance(error, LockLost) and not is_around:
                    fail(LOST, f"ended: {escaped(lost)}")
                raise
            self._stay(lock, granted_at)
            return result

        def on_lost(error: LockLost) -> None:
            fail(LOST, f"it ran to its end, but {escaped(str(error))}")

        return run_command(
            self,
            lock,
            body,
            on_lost,
            timeout=self._waits(options.get("lock_timeout")),
            busy_code=options.get("busy_code", self._busy_code),
            verbosity=options.get("verbosity", 1),
        )

    def _checked_lock(self, name: str, interrupter: BodyInterrupter) -> BaseLock:
        """Return the lock as the attributes want it; ImproperlyConfigured if one is wrong."""
        try:
            checked_choice("lock_on_busy", self.lock_on_busy, get_args(OnBusy))
            waiting_limit(True, self.lock_timeout)
            lock = lock_or_slot(
                name,
                self.lock_slots,
                using=self.lock_using,
                lease=self.lock_lease,
                at_least=self.lock_at_least,
                description=self.lock_description,
                on_lost=interrupter.on_lost if self.lock_terminates else None,
                release=self.lock_release,
            )
            _ = locks[lock.using]
        except (TypeError, ValueError, ImproperlyConfigured) as error:
            raise ImproperlyConfigured(f"{type(self).__module__}: {error}") from error
        return lock

    def _waits(self, timeout: float | None) -> float | None:
        """Return the seconds to wait, by the value of --lock-timeout; None waits forever."""
        timeout = self.lock_timeout if timeout is None else timeout
        return 0 if timeout is None and self.lock_on_busy != "wait" else timeout

    @property
    def _busy_code(self) -> int:
        return DONE if self.lock_on_busy == "skip" else BUSY

    def _stay(self, lock: BaseLock, granted_at: float) -> None:
        if self.lock_at_least and from_command_line(self):
            stay(lock, granted_at + self.lock_at_least)

    def _lock_name(self, options: dict[str, Any]) -> str:
        if self.lock_name is None:
            return f"command:{_name_of(type(self))}"
        template = f"lock_name={self.lock_name!r}"
        try:
            names = NameTemplate(self.lock_name, options, ("option", "the command"))
        except (TypeError, ValueError) as error:
            message = f"{type(self).__module__}: {template}: {error}"
            raise ImproperlyConfigured(message) from error
        try:
            return names.fill_in(options)
        except (TypeError, ValueError) as error:
            fail(USAGE, f"{template} has no name for these options: {error}")


def _name_of(command: type[BaseCommand]) -> str:
    """Return ``app.command`` for a command of an app, else where its class is."""
    module = command.__module__
    app = apps.get_containing_app_config(module)
    if app is None or _COMMANDS not in module:
        return f"{module}.{command.__qualname__}"
    return f"{app.label}.{module.rpartition('.')[2]}"


def _loss(lock: BaseLock) -> str:
    """Return why the lock was lost, if it was."""
    try:
        lock.check()
    except BodyEnded:  # of a lock around this one
        raise
    except LockLost as error:
        return str(error)
    except LockNotHeld:
        pass
    return ""


class _TakesNothing(BaseLock):
    """Stands in for a command's lock with --no-lock: the work goes on without the real one.

    Entering, leaving, ``check()`` and ``verify()`` do nothing. It claims nothing either: ``held``
    is False, and ``token`` and ``remaining`` raise LockNotHeld, because without a grant there is
    no token to write under. ``locked()``, ``info()`` and ``force_release()`` are about the real
    lock.
    """

    def _acquire(self, *args: Any, **kwargs: Any) -> Owner:
        """Take nothing."""
        return self._current_owner

    async def _aacquire(self, *args: Any, **kwargs: Any) -> Owner:
        """See _acquire()."""
        return self._current_owner

    def release(self) -> None:
        """Do nothing."""

    async def arelease(self) -> None:
        """Do nothing."""

    check = verify = release
    averify = arelease

    def _leave(self, *args: object, **kwargs: object) -> None:
        pass

    async def _aleave(self, *args: object, **kwargs: object) -> None:
        pass

    @property
    def held(self) -> bool:
        """False: nothing is held."""
        return False

    @property
    def _hold(self) -> NoReturn:
        raise LockNotHeld(
            f"lock {self.name!r} is not held here: with --no-lock the command runs without it"
        )


class NoLock(_TakesNothing, Lock):
    """A lock that takes nothing; ``atomic()`` is a transaction and no more."""

    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Run a transaction; by default on the database that would have the lock."""
        options = locks[self.using].settings.options
        with transaction.atomic(using or options.get("database", DEFAULT_DB_ALIAS)):
            yield self


class NoSlot(_TakesNothing, Semaphore):
    """A semaphore of which nothing is taken."""
