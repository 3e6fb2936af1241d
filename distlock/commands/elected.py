"""An election in the shape of a lock, so that a program runs while its candidate leads."""

from __future__ import annotations

from types import FrameType, TracebackType

from distlock.lock import Lock
from distlock.recipes.election import Election
from distlock.types.lease import Owner


class ElectedLock(Lock):
    """The lock of an election: who takes it stands, and has it while its candidate leads."""

    def __init__(self, election: Election) -> None:
        super().__init__(election._directory, using=election.using)
        self._election = election

    def _acquire(self, blocking: bool | None = None, timeout: float | None = None) -> Owner | None:
        """Stand, and wait until the candidate leads."""
        leads = self._election.campaign(blocking is not False, timeout)
        return self._current_owner if leads else None

    def release(self) -> None:
        """Resign."""
        self._election.resign()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType | None = None,
    ) -> None:
        self._election.__exit__(exc_type, exc, traceback)

    def check(self) -> None:
        """Raise LockLost also if the leader was asked to step down."""
        self._election.check()

    @property
    def _current_owner(self) -> Owner:
        return self._election._candidacy.lock.owner
