"""An answer that will come, for one thread or one asyncio task; loans to a few threads.

Ctrl-C and Celery's soft time limit raise in the main thread between almost any two bytecodes, and
the garbage collector may call us in a thread that has just taken one of the package's mutexes. So
there is no Condition and no Event here, which an interrupt may leave locked, and ``Pending`` takes
no mutex: each decision is one call of ``dict.setdefault``, which is atomic. This holds without the
GIL, too: see "Without a mutex" in docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, Final, Generic, TypeVar
from weakref import ref

from distlock.concurrency.clock import clock, left
from distlock.concurrency.reentry import calls_others

T = TypeVar("T")

#: Seconds. Python can miss a Ctrl-C that comes in the moment in which it begins to sleep.
_LONGEST_SLEEP = 1.0
#: Seconds until a task looks again. The answering thread may be interrupted before waking it.
_LONGEST_TASK_SLEEP = 5.0


class Latch:
    """Is set once and then stays set; one thread can wait for that.

    It consists of one plain lock, so that an interrupt at any moment leaves it in order.
    """

    __slots__ = ("_lock", "is_set")

    def __init__(self) -> None:
        #: whether it has been set; an attribute, and no method as that of ``threading.Event``
        self.is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits. Doing it twice does no harm."""
        self.is_set = True
        with suppress(RuntimeError):  # it had been set before
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Block until it is set; False if it is not within so many ``seconds``."""
        if self.is_set:
            return True
        until = clock() + seconds
        while not self.is_set:
            # The setter may be interrupted before the lock is released: look now and then.
            if not self._lock.acquire(timeout=left(until, _LONGEST_SLEEP)) and clock() >= until:
                break
        return self.is_set


class Loan:
    """A right of one thread for a while, or its wait for that; see Loans."""

    #: is set when it is granted, if that has to be waited for
    latch: Latch | None = None


class Loans:
    """Loans to at most so many threads at a time; the others wait: first come, first served.

    A loan is known by a weak reference only. So no interrupt can keep it from ending: at the latest
    it ends with its object.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._mutex = threading.Lock()
        self._loans: set[ref[Loan]] = set()
        self._waiting: deque[ref[Loan]] = deque()
        self._waiting_first: deque[ref[Loan]] = deque()

    @property
    def busy(self) -> int:
        """How many loans there are now."""
        return len(self._loans)

    @property
    def waiting(self) -> int:
        """How many threads wait for one now."""
        return len(self._waiting) + len(self._waiting_first)

    def begin(self, loan: Loan, until: float, *, first: bool = False) -> bool:
        """Return whether it was granted, at the latest by ``until``. end() it in any case.

        With ``first`` it is granted before all others that are not.
        """
        loans = self._loans
        with self._mutex:
            if len(loans) < self.most and not self._waiting and not self._waiting_first:
                # The callback is a C function, so no signal handler runs during it.
                loans.add(ref(loan, loans.discard))
                return True
            loan.latch = Latch()
            (self._waiting_first if first else self._waiting).append(ref(loan))
        return self._is_granted(loan, loan.latch, until)

    def end(self, loan: Loan) -> None:
        """End a loan, or the wait for it, and grant the next ones."""
        own = ref(loan)
        self._loans.discard(own)
        if loan.latch is not None or self._waiting or self._waiting_first:
            with self._mutex:
                if loan.latch is not None and not loan.latch.is_set:
                    if own in self._waiting_first:
                        self._waiting_first.remove(own)
                    elif own in self._waiting:
                        self._waiting.remove(own)
                self._loans.discard(own)  # it may have been granted after a wait in vain
                self._serve()

    def _is_granted(self, loan: Loan, latch: Latch, until: float) -> bool:
        own = ref(loan)
        # The thread that granted it may have been interrupted before it could set the latch.
        while own not in self._loans:
            with self._mutex:
                self._serve()  # a loan may have ended without anybody being woken
            if not latch.wait(left(until, _LONGEST_SLEEP)) and clock() >= until:
                return False
        return True

    def _serve(self) -> None:
        """Grant what is waited for; an interrupt leaves the rest to the next call."""
        loans = self._loans
        # A loan is ended first, then the waiters are looked at. A waiter is added first, and then
        # the loans are looked at.
        # copy() takes the lock of the set, so one of the two sees the other, also without the GIL.
        while (waiting := self._waiting_first or self._waiting) and len(loans.copy()) < self.most:
            loan = waiting[0]()
            if loan is not None and loan.latch is not None and not loan.latch.is_set:
                loans.add(ref(loan, loans.discard))
                loan.latch.set()
            waiting.popleft()


class NotAnswered(Exception):
    """There is no answer to take: it has not come, was taken, or was abandoned."""


_OUTCOME: Final = "outcome"
_RECEIVER: Final = "receiver"  # the ident of the one thread that may have the answer
_WAKE: Final = "wake"  # what wakes the one who waits

#: Outcomes; until one of these an answer is the tuple (value, error).
_ABANDONED: Final = "abandoned before an answer"
_TAKEN: Final = "taken"
_RETURNED: Final = "abandoned after an answer"


class Pending(Generic[T]):
    """An answer that will come, or be refused by abandon(). What comes first decides.

    One side calls resolve() or fail(). The other side waits, in one thread or one task, as often as
    it likes, and then calls take() or abandon(). It calls abandon() in any case of doubt: that does
    nothing after take(). The answer goes to exactly one of take(), abandon() and, if the event loop
    of the task was closed, back to the caller of resolve().
    """

    __slots__ = ("__weakref__", "_decided", "_loop", "_on_abandon")

    def __init__(self, on_abandon: Callable[[], object] | None = None) -> None:
        """``on_abandon`` is called once if it is abandoned before an answer, to stop the work.

        The garbage collector may call it, so it must not take a mutex, and must not block.
        Interrupted, it is called again by the next abandon().
        """
        self._decided: dict[str, Any] = {}
        self._on_abandon = on_abandon
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def over(self) -> bool:
        """Whether it was answered, or abandoned before that."""
        return _OUTCOME in self._decided

    @property
    def answered(self) -> bool:
        """Whether there is an answer to take, or it was taken."""
        outcome = self._decided.get(_OUTCOME)
        return outcome is _TAKEN or isinstance(outcome, tuple)

    @property
    def abandoned(self) -> bool:
        """Whether nobody will take the answer: it was abandoned, or its event loop was closed."""
        outcome = self._decided.get(_OUTCOME)
        if isinstance(outcome, str):
            return outcome is not _TAKEN
        return self._loop is not None and self._loop.is_closed()

    # Who answers

    def resolve(self, value: T) -> bool:
        """Answer with a value; False if it was abandoned before, or has an answer already.

        Then the caller still owns the value, and has to undo it.
        """
        return self._answer((value, None))

    def fail(self, error: BaseException) -> bool:
        """Answer with an error, which take() raises. See resolve()."""
        return self._answer((None, error))

    @calls_others
    def settle(
        self, call: Callable[[], T], finish: Callable[[], object] = lambda: None
    ) -> tuple[T | None, BaseException | None]:
        """Answer with what ``call()`` returns or raises, whatever that is, after ``finish()``.

        Returns what was to be the answer and is nobody's, as a value and an error.
        """
        outcome: tuple[T | None, BaseException | None]
        try:
            outcome = call(), None
        except BaseException as error:  # who waits must get it; here it would end the thread
            outcome = None, error
        finish()
        try:
            return (None, None) if self._answer(outcome) else outcome
        finally:
            del outcome  # break the cycle of the error and this frame

    def _answer(self, outcome: tuple[T | None, BaseException | None]) -> bool:
        if self._decided.setdefault(_OUTCOME, outcome) is not outcome:
            return False
        # A waiter sets what wakes it, then reads the outcome. We set the outcome, then read what
        # wakes it. Both are set in one dictionary, one after the other. So no wake-up is lost.
        if (wake := self._decided.get(_WAKE)) is not None:
            try:
                wake()
            except RuntimeError:  # the event loop was closed: the task will never go on
                if self._receives():
                    self._decided[_OUTCOME] = _RETURNED
                    return False
        return True

    # Who waits

    def wait(self, deadline: float | None) -> bool:
        """Block until there is an answer; False if ``deadline`` (None: never) passed before."""
        return wait_any([self], deadline)

    async def wait_async(self, deadline: float | None) -> bool:
        """See wait()."""
        return await wait_any_async([self], deadline)

    def take(self) -> T:
        """Return the value, or raise the error, that was answered; NotAnswered if there is none.

        An interrupt in here leaves it to abandon().
        """
        outcome = self._decided.get(_OUTCOME)
        if not isinstance(outcome, tuple) or not self._receives():
            raise NotAnswered("there is no answer to take")
        value, error = outcome
        self._decided[_OUTCOME] = _TAKEN  # no call follows, so no interrupt until the caller has it
        if error is None:
            return value  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            del self, outcome, error  # break the cycle of the error and this frame

    def abandon(self) -> T | None:
        """Refuse the answer; return the value that came before but was not taken, else None.

        The caller has to undo that value. A second call, or one after take(), does nothing; but a
        second call completes a first one that was interrupted. The garbage collector may call it.
        """
        outcome = self._decided.setdefault(_OUTCOME, _ABANDONED)
        if outcome is _TAKEN or outcome is _RETURNED or not self._receives():
            return None
        if outcome is _ABANDONED:
            if self._on_abandon is not None:
                self._on_abandon()
                self._on_abandon = None
            return None
        self._decided[_OUTCOME] = _RETURNED  # no call follows, see take()
        return outcome[0]  # type: ignore[no-any-return]

    def _receives(self) -> bool:
        """Return whether this thread is the first, and so the only one, to ask for the answer.

        A thread and not a call, so that a call that was interrupted can be repeated.
        """
        own = get_ident()
        return bool(self._decided.setdefault(_RECEIVER, own) == own)


def wait_any(pendings: Sequence[Pending[Any]], deadline: float | None) -> bool:
    """Block until one of them has an answer; False if ``deadline`` (None: never) passed before."""
    latch = Latch()
    for pending in pendings:
        pending._decided[_WAKE] = latch.set
    while not any(one.over for one in pendings) and (deadline is None or clock() < deadline):
        latch.wait(left(deadline, _LONGEST_SLEEP))
    return any(pending.answered for pending in pendings)


async def wait_any_async(pendings: Sequence[Pending[Any]], deadline: float | None) -> bool:
    """See wait_any()."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    for pending in pendings:
        pending._loop = loop
        pending._decided[_WAKE] = partial(loop.call_soon_threadsafe, event.set)
    while not any(one.over for one in pendings) and (deadline is None or clock() < deadline):
        # No asyncio.timeout(): before Python 3.11.3 it ends as cancelled in a task that was
        # cancelled before and went on, as one does that waits for a lock while it cleans up.
        timer = loop.call_later(left(deadline, _LONGEST_TASK_SLEEP), event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()
        event.clear()
    return any(pending.answered for pending in pendings)
