"""What all recipes over records do: look at a directory, change it, wait for a change of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from json import JSONEncoder
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from django.utils.asyncio import async_unsafe

from distlock import audit
from distlock.backends import reading
from distlock.backends.store import (
    MAX_VALUE,
    KeyRange,
    Peek,
    Put,
    Record,
    RecordStore,
    Snapshot,
    TooLarge,
)
from distlock.concurrency.clock import backoff, clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.reentry import must_leave_elsewhere, refuse_reentry
from distlock.concurrency.steps import Call, Sleep, Steps, WaitAny, arun, run, run_soon
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import BodyEnded, LockError, LockUnavailable, NotPermitted
from distlock.locking.blocks import add_leave_error
from distlock.records.recipe_records import ANSWER, Decide, Plan
from distlock.records.shared_backend import SharedBackend, shared_locks
from distlock.types.lease import Kind, LockKey, new_nonce
from distlock.types.owners import new_owner
from distlock.types.values import (
    check_value,
    checked_flag,
    checked_name,
    not_json,
    plain,
    shortened,
    waiting_limit,
)

T = TypeVar("T")

#: Writes what JSON cannot say by itself, as that of Django's JSONField.
Encoder: TypeAlias = type[JSONEncoder]

#: Seconds between two attempts to ask a backend that does not answer one who waits.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: More records than a directory can have.
ALL_RECORDS = 2**31 - 1


class Recipe:
    """A coordination primitive with a name, whose state is the records of one directory.

    Blocking methods are made of steps, see distlock.concurrency.steps: ``run()`` makes them for a
    thread, ``arun()`` for a task.
    """

    #: what it is; a part of the directory's name
    kind: ClassVar[Kind]

    def __init__(self, name: str, using: str = DEFAULT_ALIAS) -> None:
        """Describe it; nothing is asked yet.

        ``name`` and ``using`` are as for a Lock. Raises TypeError or ValueError that names the
        argument and its value.
        """
        self.name = checked_name(name)
        if not isinstance(using, str):
            raise TypeError(f"using must be an alias of the DISTLOCK setting, not {using!r}")
        self.using = using

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} using={self.using!r}>"

    # Inside

    @property
    def _backend(self) -> SharedBackend:
        return shared_locks(locks[self.using])

    @property
    def _store(self) -> RecordStore:
        return locks[self.using].store

    @cached_property
    def _directory(self) -> str:
        return self._key.directory

    @property
    def _key(self) -> LockKey:
        return LockKey(self.using, self.kind, self.name)

    def _ask(
        self, question: Callable[[float | None], object], deadline: float | None = None
    ) -> Call:
        """See SharedBackend.asking()."""
        return self._backend.asking(question, deadline)

    def _read(self, deadline: float | None = None, *, keys: Collection[str] | None = None) -> Call:
        """Return the step that reads the directory, or these records; its result is a Snapshot."""
        look = partial(reading.read, self._store, self._directory, keys=keys or ())
        return self._ask(look, deadline)

    def _keys(self, listed: KeyRange, deadline: float | None) -> Sequence[str]:
        """Return the keys of some records. This blocks."""
        return self._store.peek(self._directory, Peek(listed=listed), deadline).keys

    def _change(
        self,
        decide: Decide,
        deadline: float | None = None,
        *,
        keys: Collection[str] | None = None,
        found: Snapshot | None = None,
    ) -> Call:
        """Return the step that changes the directory by a plan; its result is a Done.

        With ``keys`` only these records are read for it. The first plan is made of what the caller
        has ``found``, and must have conditions for all that it depends on.
        """
        directory, first = self._directory, [found] if found else []
        ask = partial(self._store.look, keys=keys) if keys else self._store.read

        def read(deadline: float | None) -> Snapshot:
            return first.pop() if first else ask(directory, deadline=deadline)

        change = partial(self._backend.records.change, directory, decide, read=read)
        return self._ask(change, deadline)

    def _change_once(
        self, key: str, become: Callable[[Record | None], tuple[Any, Any] | None]
    ) -> Steps[Any]:
        """Change a record exactly once, also if an answer is lost; return the result.

        ``become`` returns what the record is to say, and the result; None changes nothing. It is
        called again if others were faster.

        Beside the record the change puts one that says which change it was, bound to the session of
        the process: after a lost answer that tells whether it was made. LockUnavailable with
        ``maybe_applied`` if nobody could be asked for half a lease, as it may be gone by then.
        """
        change, number, doubt, is_over = new_nonce(), _take_number(), False, False
        answer = f"{ANSWER}{new_owner().key.partition(':')[0]}:{number}"
        until = clock() + self._backend.settings.lease / 2

        def decide(found: Snapshot) -> Plan:
            if is_over:  # a call that was given up goes on, and the answer is another one's by now
                return Plan()
            told = found.records.get(answer)
            if told is not None and told.value["change"] == change:
                return Plan(result=told.value["result"])
            if doubt and clock() >= until:
                raise LockUnavailable(f"{self!r}: it is unknown whether a change was made")
            if (new := become(found.records.get(key))) is None:
                return Plan()
            value, result = new
            said = {"change": change, "result": result}
            return Plan(
                [Put(key, value)], [found.unchanged(key)], result, member_records={answer: said}
            )

        def is_in_doubt(error: LockUnavailable) -> bool:
            nonlocal doubt
            doubt = doubt or error.maybe_applied
            return doubt

        try:
            ask = partial(self._change, decide, keys=[key, answer])
            return (yield from self._patiently(ask, until, is_in_doubt)).result
        except LockUnavailable as error:
            error.maybe_applied = doubt
            raise
        finally:
            is_over = True
            _free_numbers.append(number)

    def _record(self, action: str, text: str, reason: str, who: str) -> None:
        """Write to the audit log what somebody did to this; a task does not wait for that."""
        audit.record(self._key, action, text, reason=reason, who=who)

    @contextmanager
    def _recording(self, action: str, text: str, reason: str, who: str) -> Iterator[list[int]]:
        """Write to the audit log how many things were changed, also if it fails on the way.

        The block adds these to a list; ``text`` has a place for their sum.
        """
        changed = list[int]()
        try:
            yield changed
        except GeneratorExit:  # nothing can be waited for any more
            changed.clear()
            raise
        finally:
            if count := sum(changed):
                self._record(action, text.format(count), reason, who)

    def _until(
        self,
        look: Callable[[Snapshot], T | None],
        deadline: float | None,
        key: str | None = None,
        ask: Callable[[float | None], Call] | None = None,
    ) -> Steps[T | None]:
        """Return what ``look`` returns as soon as that is not None; None at the deadline.

        It looks whenever the directory changes, or with ``key`` at that record only, when that
        changes; and now and then. ``ask`` is the step that reads other records beside that of the
        key: then the first of these is watched, too. Raises LockUnavailable if the backend does not
        answer by the deadline, and without one if it does not for the length of a lease.
        """
        ask = ask or partial(self._read, keys=None if key is None else [key])
        while True:
            snapshot: Snapshot = yield from self._patiently(ask, deadline)
            found = look(snapshot)
            if found is not None or (deadline is not None and clock() >= deadline):
                return found
            keys = [key, *(one for one in snapshot.records if one != key)][:2] if key else None
            yield from self._wait_for_change(snapshot, deadline, keys)

    def _wait_for_change(
        self,
        seen: Snapshot,
        deadline: float | None = None,
        keys: Sequence[str] | None = None,
        *others: Pending[Any],
    ) -> Steps[None]:
        """Wait until there may have been a change after a snapshot, or one of the others came.

        It is that of the directory, or with ``keys`` that of one of these records.
        """
        until = clock() + self._backend.pause
        hint, hints = self._backend.hint, list[Pending[Any]]()
        try:
            hints.extend(hint(self._directory, seen.revision, each) for each in keys or (None,))
            yield WaitAny([*hints, *others], until if deadline is None else min(until, deadline))
        finally:
            for one in hints:
                one.abandon()

    def _patiently(
        self,
        ask: Callable[[float | None], Call],
        deadline: float | None,
        asks_again: Callable[[LockUnavailable], bool] = lambda error: True,
    ) -> Steps[Any]:
        """Return the result of a step that does no harm twice.

        LockUnavailable if there is none by the deadline, or without one for the length of a lease;
        and at once if ``asks_again`` says so of it.
        """
        gives_up = clock() + self._backend.settings.lease if deadline is None else deadline
        for pause in backoff(FIRST_PAUSE, LONGEST_PAUSE):
            try:
                return (yield ask(deadline))
            except LockUnavailable as error:
                again = asks_again(error) and not isinstance(error, NotPermitted)
                if not again or clock() + pause >= gives_up:
                    raise
            yield Sleep(pause)
        raise AssertionError("backoff() goes on forever")


class Block(ABC):
    """Has a ``with`` block: what it enters there, it leaves at the end."""

    @abstractmethod
    def _entering(self) -> Steps[object]:
        """Return the steps of entering."""

    @abstractmethod
    def _leaving(self) -> Steps[object]:
        """Return the steps of leaving; what cannot be left now is left later, with an error."""

    def _failing(self, error: BaseException) -> Steps[object]:
        """Return the steps of leaving after an error of the body."""
        return self._leaving()

    def _exiting(self, error: BaseException | None) -> Steps[None]:
        """Return the steps at the end of the block; its own error is what the caller must see."""
        try:
            yield from self._leaving() if error is None else self._failing(error)
        except LockError as failed:
            # The loss of another lock, in whose body this block is, is to end that.
            if error is None or isinstance(failed, BodyEnded):
                raise
            add_leave_error(error, failed)

    @async_unsafe("`with` would block the event loop; use `async with`.")
    def __enter__(self) -> Self:
        refuse_reentry()
        run(self._entering())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._ends_elsewhere(error):
            return
        if must_leave_elsewhere():
            run_soon(self._exiting(error))
        else:
            run(self._exiting(error))

    async def __aenter__(self) -> Self:
        refuse_reentry()
        await arun(self._entering())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not self._ends_elsewhere(error):
            refuse_reentry()
            await arun(self._exiting(error))

    def _ends_elsewhere(self, error: BaseException | None) -> bool:
        """Leave on another thread if the block is closed from outside; return whether it is.

        The garbage collector may close it, and cannot wait.
        """
        if isinstance(error, GeneratorExit):
            run_soon(self._exiting(error))
        return isinstance(error, GeneratorExit)


#: The numbers that changes of this process have had, see Recipe._change_once(), and those of them
#: that no change has now. A change that is interrupted may keep its number.
_numbers, _free_numbers = dict[int, object](), list[int]()


def _take_number() -> int:
    """Return a number that no other change of this process has now."""
    with suppress(IndexError):
        return _free_numbers.pop()
    own, number = object(), len(_numbers)
    while _numbers.setdefault(number, own) is not own:
        number += 1
    return number


def deadline_of(timeout: float | None, *, blocking: bool = True) -> float | None:
    """Return until when to wait by the local clock; None and -1 wait forever, 0 does not wait.

    TypeError, ValueError, OverflowError for others, see waiting_limit().
    """
    wait, seconds = waiting_limit(checked_flag("blocking", blocking), timeout)
    return None if wait and seconds is None else clock() + (seconds or 0.0)


def checked_json(argument: str, value: object, record: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError that names the argument unless a record can be kept.

    ``record`` is what is to be written, with ``value`` in it.
    """
    try:
        check_value(value, record, Put(argument, record).text)
    except TooLarge as error:
        raise ValueError(
            f"{argument} must have at most {MAX_VALUE} bytes in JSON, with the values beside it,"
            f" got {shortened(value)}: {error}"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise not_json(argument, value, error) from error


def encoded_by(encoder: Encoder | None, argument: str, value: Any) -> Any:
    """Return a value as an encoder writes it, and as it is without one.

    Raises TypeError or ValueError that names the argument.
    """
    if encoder is None:
        return value
    try:
        return plain(value, encoder)
    except (TypeError, ValueError, RecursionError) as error:
        raise not_json(argument, value, error) from error


def checked_encoder(encoder: Any) -> Encoder | None:
    """Return a subclass of json.JSONEncoder, or None; TypeError for anything else."""
    if encoder is not None and not (isinstance(encoder, type) and issubclass(encoder, JSONEncoder)):
        raise TypeError(f"encoder must be a subclass of json.JSONEncoder, not {encoder!r}")
    return encoder


def names_of(kind: Kind, using: str = DEFAULT_ALIAS, prefix: str = "") -> list[str]:
    """Return the names, sorted, under which a backend has something of a kind."""
    start, store = LockKey(using, kind, "").directory, locks[using].store
    found = [one.removeprefix(start) for one in store.directories(start + prefix)]
    if not found:
        store.read(start)  # unlike the question above this fails if there are no tables yet
    return found
