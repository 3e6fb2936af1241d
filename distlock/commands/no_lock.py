"""What a command has for a lock when it was told to run without one."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from django.db import DEFAULT_DB_ALIAS, transaction

from distlock.exceptions import LockNotHeld
from distlock.lock import Lock

T = TypeVar("T")


class NoLock(Lock):
    """Stands in for a command's lock with --no-lock: whoever has the real one, the work goes on.

    Entering, leaving, ``check()`` and ``verify()`` do nothing, and ``atomic()`` is a transaction
    and no more. It claims nothing either: ``held`` is False, and ``token`` and ``remaining`` raise
    LockNotHeld, because without a grant there is no token to write under. ``locked()``, ``info()``
    and ``force_release()`` are about the real lock.
    """

    def acquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """Return True, and take nothing."""
        return True

    async def aacquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """See acquire()."""
        return True

    def release(self) -> None:
        """Do nothing."""

    async def arelease(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._areturn(self)

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        return self._areturn(None)

    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Run a transaction; by default on the database that would have the lock."""
        options = self._backend.settings.options
        with transaction.atomic(using or options.get("database", DEFAULT_DB_ALIAS)):
            yield self

    @property
    def held(self) -> bool:
        """False: nothing is held."""
        return False

    @property
    def token(self) -> int:
        """Raises LockNotHeld: nothing was granted."""
        self._refuse("token")

    @property
    def remaining(self) -> float:
        """Raises LockNotHeld: nothing was granted."""
        self._refuse("remaining time")

    def check(self) -> None:
        """Do nothing."""

    def verify(self) -> None:
        """Do nothing."""

    async def averify(self) -> None:
        """Do nothing."""

    def _refuse(self, what: str) -> NoReturn:
        raise LockNotHeld(
            f"lock {self.name!r} has no {what} here: with --no-lock the command runs without it"
        )

    async def _areturn(self, value: T) -> T:
        return value
