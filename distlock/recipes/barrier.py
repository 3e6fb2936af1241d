"""Barriers: nobody goes on before all have come, and one outcome holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.core.manager import undo
from distlock.exceptions import LockError, LockNotHeld
from distlock.recipes.generations import BaseBarrier
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import deadline_of
from distlock.recipes.twins import twins
from distlock.types.arguments import checked_callback
from distlock.types.lease import Kind
from distlock.types.owners import current_liveness


class Barrier(BaseBarrier):
    """So many wait for each other, over all processes and machines, as ``threading.Barrier``.

    ::

        Barrier("import", 5).wait()     # returns when five have called it

    It can be used again and again. If one of those who wait gives up, is interrupted or dies, it is
    broken for all of them: ``threading.BrokenBarrierError``. It stays so until reset(), or until
    none of the Barrier objects that were told so is left: so what a program left broken does not
    stop its next run.
    """

    kind = Kind.BARRIER
    _last_decides = True

    def __init__(
        self,
        name: str,
        parties: int | None = None,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
        *,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe a barrier; nothing is asked yet.

        - ``name``, ``using``: as of a Lock.
        - ``parties``: how many it is for, at most 500. All must say the same number; None takes
          that of the others.
        - ``action``: what the last one to come calls before anyone passes; for a task, on another
          thread. Give it to all. If it raises, the barrier is broken.
        - ``timeout``: for how many seconds wait() waits if it is not told; None for ever.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, parties, using)
        checked_callback("action", action)
        deadline_of(timeout)
        self._action, self._timeout = action, timeout

    def _wait(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all parties have come; return a number, 0 to parties - 1, other for each.

        ``timeout`` is for the others to come. When all have, each says that it is still there, and
        the last one calls the action. For that they have the length of a lease at the least.
        A task that is cancelled breaks the barrier.

        Raises BrokenBarrierError if the barrier is broken, is reset, or this has waited for too
        long; ValueNotAgreed if others say another number of parties; LockUnavailable if the backend
        cannot be asked; LockLost if this process was stopped for so long that the outcome is not
        known any more.
        """
        deadline = deadline_of(self._timeout if timeout is None else timeout)
        party = Membership(self, self._come)

        def steps() -> Steps[int]:
            yield from self._coming(party, deadline)
            place = yield from self._meeting(party, deadline, to_pass=True)
            yield from self._leave(party)
            return place

        return (yield from self._guarded(party, steps()))

    wait, await_ = twins("wait", _wait)


class DoubleBarrier(BaseBarrier):
    """So many begin something together and end it together::

        with DoubleBarrier("measuring", 5):     # begins when five have come
            measure()                           # is left when all five have ended it

    Each party has an object of its own. One that dies inside, or whose body fails, breaks it for
    all: leave() raises ``threading.BrokenBarrierError``. See Barrier for the rest.
    """

    kind = Kind.DOUBLE_BARRIER
    _party: Membership | None = None

    def __init__(
        self, name: str, parties: int | None = None, *, using: str = DEFAULT_ALIAS
    ) -> None:
        """See Barrier; a barrier of one kind has nothing to do with one of the other."""
        super().__init__(name, parties, using)

    def __del__(self) -> None:
        super().__del__()
        if self._party is not None:
            self._party.abandon()

    def _enter(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all parties have come; return a number as Barrier.wait(). See there."""
        if self._party is not None and self._party.lease is not None:
            raise LockError(f"{self}: this object has entered already; each party has its own")
        deadline, runs = deadline_of(timeout), current_liveness()
        party = Membership(self, self._come, is_alive=lambda: party is self._mark or runs())

        def steps() -> Steps[int]:
            yield from self._coming(party, deadline)
            return (yield from self._meeting(party, deadline, to_pass=False))

        place = yield from self._guarded(party, steps())
        self._party = party
        return place

    def _exit(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all who entered leave; return a number as enter().

        Raises LockNotHeld if this object has not entered, and what Barrier.wait() raises.
        """
        deadline = deadline_of(timeout)
        party, self._party = self._party, None
        if party is None or party.lease is None:
            raise LockNotHeld(f"{self}: this object has not entered")
        place = yield from self._guarded(party, self._meeting(party, deadline, to_pass=True))
        yield from self._leave(party)
        return place

    enter, aenter = twins("enter", _enter)
    leave, aleave = twins("leave", _exit)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.leave()
        else:
            self._fail(error)

    async def __aenter__(self) -> Self:
        await self.aenter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            await self.aleave()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Break it for the others in the background; the error is what the caller sees."""
        party, self._party = self._party, None
        if party is not None:
            undo(error, self._leave_soon, party)
