"""The locks that are held together, and how they are left whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Self, TypeVar

from distlock.backends.background import answer_due
from distlock.concurrency.steps import Steps, run
from distlock.concurrency.threads import call_elsewhere
from distlock.exceptions import BodyEnded, LockError, LockLost, NotSupported
from distlock.locking.base_lock import BaseLock
from distlock.locking.blocks import add_leave_error
from distlock.locking.lock import Lock
from distlock.locking.until_commit import warn_if_uncommitted
from distlock.runtime.hold import Left
from distlock.types.lease import LockKey, Owner
from distlock.types.owners import is_named

T = TypeVar("T")

#: of the arguments of Lock
_DEFAULTS: Mapping[str, object] = Lock.__init__.__kwdefaults__ or {}
#: How often leaving begins again after an interrupt, or a cancellation.
_TRIES = 5


def checked_part(part: object) -> str | BaseLock:
    """Return a name or a lock; TypeError for anything else."""
    if isinstance(part, (str, BaseLock)):
        return part
    raise TypeError(
        f"names_or_locks must be names and locks, not {part!r}; give each as an argument of its"
        " own, and of a read/write lock its reader() or its writer()"
    )


def refuse_needless(given: Sequence[str | BaseLock], of_names: Mapping[str, object]) -> None:
    """Raise ValueError for an argument of locks given by name that does not go with the objects."""
    objects = [part for part in given if not isinstance(part, str)]
    for argument, value in of_names.items():
        # on_lost that is not called for some of the locks would be a loss that is not told, and one
        # that is freed before the commit lets the next holder see what is old.
        of_all = argument in ("on_lost", "release")
        needless = objects and (len(objects) == len(given) or of_all)
        if needless and value != _DEFAULTS[argument]:
            raise ValueError(
                f"{argument}={value!r} is for locks given by name; give it to {objects[0]!r}"
            )


def sorted_parts(
    given: Sequence[str | BaseLock], new_lock: Callable[[str], Lock]
) -> tuple[BaseLock, ...]:
    """Return the locks in the order in which they are taken."""
    parts: dict[LockKey, tuple[BaseLock, str | BaseLock]] = {}
    for one in given:
        part: BaseLock = new_lock(one) if isinstance(one, str) else one
        _, earlier = parts.setdefault(part._key, (part, one))
        if earlier is not one and not (isinstance(earlier, str) and isinstance(one, str)):
            raise ValueError(
                f"names_or_locks has lock {part.name!r} on {part.using!r} twice, as {earlier!r}"
                f" and as {one!r}"
            )
    in_order = sorted(parts, key=lambda key: (key.alias, key.name, key.kind))
    return tuple(parts[key][0] for key in in_order)


class EnteredLocks:
    """Locks to be left again until their owner is in each as often as before.

    Finished steps are not noted here, but seen from the locks: so an interrupt at any moment does
    no harm, and the next call does the rest.
    """

    def __init__(self, until: float | None = None) -> None:
        """``until``: the deadline of the one who leaves; None: each backend has its own time."""
        self.until = until
        self._entries: list[tuple[BaseLock, Owner, tuple[str, int]]] = []
        self._errors: list[LockError] = []
        #: the locks that are free now
        self._freed: list[BaseLock] = []

    @classmethod
    def once(cls, parts: Iterable[BaseLock], owner: Owner) -> Self:
        """Return what leaves each lock once."""
        entered = cls()
        for part in parts:
            entered.add(part, owner, less=1)
        return entered

    def add(self, part: BaseLock, owner: Owner, *, less: int = 0) -> None:
        """Note how often the owner, the current thread or task or an earlier one, is in a lock."""
        named = part._current_owner
        if is_named(named):
            owner = named
        nonce, count = part._entered(owner)
        self._entries.append((part, owner, (nonce, count - less)))

    def check(self) -> None:
        """Raise LockNotHeld or LockLost unless all are held."""
        for part, *_ in self._entries:
            part.check()

    def leaving(self) -> Steps[None]:
        """Leave in reverse order; errors of locks are kept for later."""
        while self._entries:
            part, owner, before = self._entries[-1]
            if before[1] < 0 or part._is_inside(owner, before):
                try:
                    if (yield from part._leaving(owner, answer_due(self.until))):
                        self._freed.append(part)
                except LockError as error:
                    # The loss of another lock, in whose body this runs, is to end that.
                    if isinstance(error, BodyEnded) or part._is_inside(owner, before):
                        raise
                    self._errors.append(error)
            self._entries.pop()

    def _keep_until_commit(self, is_part: bool) -> None:
        for part, owner, _ in self._entries:
            if is_part or part._is_until_commit:
                part._keep_until_commit(owner)

    def release(
        self,
        body_error: BaseException | None,
        is_here: bool,
        is_part: bool,
        left: Left | None = None,
    ) -> None:
        """Leave as MultiLock.release(); with ``body_error``, errors become notes of that.

        ``is_here``: whether the owner is the current one, whose open transactions count. They keep
        the locks that are to be kept until the commit, and each if ``is_part`` of atomic().
        """
        try:
            if left is not None:
                left.append(True)  # from here on all of them are left, whatever comes
            if is_here:
                self._keep_until_commit(is_part)
            self.leave_all()
        finally:  # an interrupt may have come before the first of them was left
            if self._entries:
                self.leave_all()
        self.raise_or_note(body_error)
        for part in self._freed if is_here and not is_part and body_error is None else ():
            warn_if_uncommitted(part._key, part._is_until_commit)

    def or_leave(self, steps: Steps[T], tries: int = _TRIES) -> Steps[T]:
        """Make the steps of a body, and return what it returns; if it fails, leave to the end.

        See or_undo(), which cannot wait for what it does. A second interrupt does not keep it from
        that, nor do more of them, for so many ``tries``.
        """
        try:
            return (yield from steps)
        except GeneratorExit:  # nothing can be waited for any more
            self.leave_soon()
            raise
        except BaseException as error:  # also an interrupt: others wait for these locks
            try:
                if tries:
                    yield from self.or_leave(self.leaving(), tries - 1)
            finally:
                yield from self.leaving()
            self.raise_or_note(error)
            raise

    def leave_all(self) -> None:
        """Make the steps of leaving()."""
        run(self.or_leave(self.leaving()))

    def leave_soon(self) -> None:
        """Leave for someone who is gone, without making the caller wait.

        It may be the garbage collector, in a thread that has a mutex of ours.
        """
        rest = copy(self)
        self._entries = []
        call_elsewhere(rest.leave_all)

    def raise_or_note(self, body_error: BaseException | None = None) -> None:
        """Raise the worst of the errors of leaving; or note them on the body's, which is raised."""
        if body_error is None:
            raise_worst(self._errors)
            return
        for other in self._errors:
            if str(other) != str(body_error):  # a loss is reported once
                add_leave_error(body_error, other)


def checked_for_atomic(parts: Sequence[BaseLock]) -> list[Lock]:
    """Return the parts; NotSupported where one transaction cannot be tied to all."""
    for part in parts:
        if not isinstance(part, Lock):
            raise NotSupported(f"MultiLock.atomic() is for locks only, and {part!r} is not one")
    aliases = sorted({part.using for part in parts})
    if len(aliases) > 1:
        raise NotSupported(
            "MultiLock.atomic(): a transaction can be tied to the locks of one alias only, and"
            f" these are of {', '.join(map(repr, aliases))}"
        )
    return [part for part in parts if isinstance(part, Lock)]


def raise_worst(errors: list[LockError]) -> None:
    """Raise a loss before all else: who would ignore another error must not miss it."""
    if not errors:
        return
    worst = min(errors, key=lambda error: not isinstance(error, LockLost))
    for other in errors:
        if other is not worst:
            add_leave_error(worst, other)
    raise worst
