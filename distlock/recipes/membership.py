"""A record of this process in the directory of a recipe, for as long as the process keeps it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

from distlock.activity import current_activity
from distlock.backends.recipe_records import Decide, Joined
from distlock.backends.store import Change, Condition
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Steps, run
from distlock.concurrency.threads import start
from distlock.core.held import Entrant, HeldLease
from distlock.core.manager import manager, undo
from distlock.core.options import checked_lease
from distlock.exceptions import LockError, LockNotHeld, LockUnavailable
from distlock.recipes.recipe import Recipe
from distlock.types.lease import Claim, Lease, Owner
from distlock.types.owners import current_owner

logger = logging.getLogger("distlock")

#: Seconds between two attempts to join again.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Membership:
    """Keeps a record of this process: it is renewed with the leases, and its loss is told.

    It lasts until it is left or lost, until the process ends, or until this object is collected as
    garbage. With ``rejoins`` a record that was lost is put again, as that of a new member, as soon
    as the backend answers. The child of a fork is no member.
    """

    def __init__(
        self,
        recipe: Recipe,
        decide: Decide,
        *,
        rejoins: bool = False,
        on_lost: Callable[[Lease], object] | None = None,
        is_alive: Callable[[], bool] | None = None,
        owner: Owner | None = None,
        description: str = "",
        lease: float | None = None,
    ) -> None:
        """``decide`` plans what is written when it joins, see RecipeRecords.join().

        ``on_lost(lease)`` is called on a thread of distlock's own, before others can see that the
        record is gone. ``is_alive`` says whether who joined still runs; else it is renewed no more.
        ``owner`` is who joins; by default who does it for the first time, also when it rejoins.
        ``lease``: its length in seconds, None for that of the backend.
        """
        self._recipe = recipe
        self._decide = decide
        self._rejoins = rejoins
        self._on_lost = on_lost
        self._is_alive = is_alive
        self._owner = owner
        self._description = description
        self._lease = lease
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Be no member: the record is the parent's."""
        #: protects which hold this is; nothing is asked while it is taken
        self._mutex = threading.Lock()
        self._hold: HeldLease | None = None
        #: the nonce of the record that was changed last, and its revision if that is known
        self._said: tuple[str, int | None] = "", None

    # Steps

    def joining(self, deadline: float | None = None) -> Steps[Joined]:
        """Put the record; the lease is None if the plan refused it, or this is a member already.

        A record that was lost, and is not back yet, is put again.
        """
        hold = self._hold
        if hold is not None and hold.why_lost() is None:
            return Joined(None, None)
        return (yield from self._joining(deadline, hold))

    def _joining(self, deadline: float | None, lost: HeldLease | None) -> Steps[Joined]:
        """Join instead of ``lost``; whoever has left or joined meanwhile has the last word."""
        recipe, backend = self._recipe, self._recipe._backend
        claim = self.claim(lost.lease.owner if lost else None)
        take_back, mutex = partial(backend.cleanup.add, claim), self._mutex
        try:
            join = partial(backend.records.join, claim, self._decide)
            joined: Joined = yield recipe._ask(join, deadline, take_back)
            if joined.lease is None or self._replace(lost, self._new_hold(joined.lease)):
                return joined
            take_back()
            return Joined(None, joined.result)
        except LockUnavailable as error:
            if error.maybe_applied:
                undo(error, take_back)
            raise
        except LockError:
            raise
        except BaseException as error:  # an interrupt; the record may be there
            if mutex is self._mutex:  # else this is the child of a fork
                undo(error, self._forget, claim, take_back)
            raise

    def claim(self, owner: Owner | None = None) -> Claim:
        """Return a new claim, of who joins; of ``owner``, or the current one, if nobody said."""
        recipe, backend = self._recipe, self._recipe._backend
        return Claim(
            recipe.name,
            self._owner or owner or current_owner(),
            checked_lease(backend, self._lease),
            self._description or current_activity(),
            renews=True,
            kind=recipe.kind,
        )

    def adopt(self, lease: Lease) -> None:
        """Keep the record of a claim() that was granted in another way than by joining()."""
        self._replace(None, self._new_hold(lease))

    def updating(
        self,
        data: Mapping[str, Any],
        changes: Sequence[Change] = (),
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> Steps[int | None]:
        """Change what the record says; the revision, None if a condition failed or it is gone.

        Raises LockNotHeld or LockLost.
        """
        hold = self._checked()
        lease, (nonce, revision) = hold.lease, self._said
        if nonce != lease.nonce:
            revision = lease.token
        update = partial(
            self._recipe._backend.records.update,
            lease,
            data,
            changes,
            conditions,
            since=time.time() - (clock() - hold.acquired_at),
            revision=revision,
        )
        self._said = lease.nonce, None
        found: int | None = yield self._recipe._ask(update, deadline)
        self._said = lease.nonce, found
        return found

    def leaving(
        self,
        changes: Sequence[Change] | Decide = (),
        deadline: float | None = None,
        *,
        beside: Callable[[Claim], Sequence[Change]] | None = None,
        leave: Callable[[Lease, float | None], int | None] | None = None,
    ) -> Steps[bool]:
        """Remove the record, and make other changes with it; False if it was gone already.

        ``beside`` returns further changes that name the claim of the record: it may be newer than
        the one that the caller knows. ``leave(lease, deadline)`` is called in place of
        RecipeRecords.leave(). If it cannot be done now it is done later, and LockUnavailable is
        raised.
        """
        mutex, left = self._mutex, None
        while left is None and (hold := self._hold) is not None:
            named = () if beside is None else beside(hold.lease.claim)
            others = changes if callable(changes) else [*changes, *named]
            left = yield from self._leaving(hold, others, leave, deadline, mutex)
        return bool(left)

    def _leaving(
        self,
        hold: HeldLease,
        changes: Sequence[Change] | Decide,
        leave: Callable[[Lease, float | None], int | None] | None,
        deadline: float | None,
        mutex: object,
    ) -> Steps[bool | None]:
        """Leave as the member of a hold; None if it has joined again meanwhile."""
        backend = self._recipe._backend
        usual = partial(backend.records.leave, hold.lease, changes)
        call = partial(leave, hold.lease) if leave else usual
        try:
            if not self._let_go(hold):
                return None
            due = backend.calls.due(deadline)
            return (yield Call(call, due, executor=backend.release_calls)) is not None
        except BaseException as error:  # interrupted at any moment, the record must not stay
            if mutex is self._mutex:
                undo(error, self._leave_later, hold, call)
            raise

    def stop_renewing(self) -> None:
        """Renew the record no more: it is going to be removed together with others."""
        if (hold := self._hold) is not None:
            manager.unwatch(hold)

    def go_on(self) -> None:
        """Renew the record again, because it was not removed after all."""
        if (hold := self._hold) is not None:
            manager.watch(hold)

    def leave_soon(self, changes: Sequence[Change] | Decide = ()) -> None:
        """Remove the record, and make other changes with it, in the background.

        May be repeated after an interrupt.
        """
        if (hold := self._hold) is not None:
            leave = partial(self._recipe._backend.records.leave, hold.lease, changes)
            self._leave_later(hold, leave)

    def _let_go(self, hold: HeldLease) -> bool:
        """Be no longer the member of this hold; False if it is not that of this member."""
        with self._mutex:
            if self._hold is not hold:
                return False
            self._hold = None
        manager.unwatch(hold)
        return True

    def _leave_later(self, hold: HeldLease, leave: Callable[[float], object]) -> None:
        hold.backend.cleanup.add(hold.lease.claim, leave)
        self._let_go(hold)
        manager.unwatch(hold)  # an interrupt may have come between

    def abandon(self) -> None:
        """Let the record go with its lease. The garbage collector may call this."""
        if (hold := self._hold) is not None:
            hold.orphaned = True

    # Knowing

    @property
    def held(self) -> bool:
        """Whether the record is there, by what this process knows."""
        hold = self._hold
        return hold is not None and hold.why_lost() is None

    @property
    def lease(self) -> Lease | None:
        """The lease of the record, lost or not; None if it was not put, or was left."""
        hold = self._hold
        return None if hold is None else hold.lease

    def check(self) -> Lease:
        """Return the lease of the record; LockNotHeld or LockLost if it is not there. Asks nobody.

        The token of the lease is the revision at which the record was put.
        """
        return self._checked().lease

    # Inside

    def _checked(self) -> HeldLease:
        hold = self._hold
        if hold is None:
            raise LockNotHeld(f"{self._recipe!r}: this process has not joined, or has left")
        if loss := hold.loss():
            raise loss
        return hold

    def _new_hold(self, lease: Lease) -> HeldLease:
        known = ref(self)  # the renewer must not keep this alive
        entry = Entrant(partial(_is_kept, known, lease.nonce), on_lost=partial(_tell_loss, known))
        key = self._recipe.using, self._recipe.name, self._recipe.kind
        return HeldLease(self._recipe._backend, lease, entry, key=key)

    def _replace(self, old: HeldLease | None, new: HeldLease) -> bool:
        with self._mutex:
            if self._hold is not old:
                return False
            self._hold = new
            manager.watch(new)
            return True

    def _forget(self, claim: Claim, take_back: Callable[[], object]) -> None:
        with self._mutex:
            hold = self._hold
            if hold is not None and hold.lease.nonce == claim.nonce:
                self._hold = None
                manager.unwatch(hold)
        take_back()

    def _lost(self, lease: Lease) -> None:
        hold = self._hold
        if hold is None or hold.lease.nonce != lease.nonce:
            return
        try:
            if self._on_lost is not None:
                self._on_lost(lease)
        finally:
            if self._rejoins:
                try:
                    start(_rejoin, "distlock-rejoin", ref(self), hold)
                except RuntimeError:  # no more threads can be had: this one has to do
                    _rejoin(ref(self), hold)

    def _rejoin(self, lost: HeldLease, *, first: bool) -> bool:
        """Try once to join again; whether that is settled."""
        if self._hold is not lost or (self._is_alive is not None and not self._is_alive()):
            return True
        try:
            run(self._joining(None, lost))
        except LockUnavailable:
            return False
        except LockError:  # the plan refuses it
            logger.exception("%r: this process could not join again", self._recipe)
        except Exception:  # it may be short of threads or memory, for a time
            if first:
                logger.exception("%r: this process could not join again yet", self._recipe)
            return False
        return True


def _rejoin(known: ref[Membership], lost: HeldLease) -> None:
    first = True
    for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
        membership = known()
        if membership is None or membership._rejoin(lost, first=first):
            return
        del membership  # it may be collected in the pause
        first = False
        time.sleep(pause)


def _is_kept(known: ref[Membership], nonce: str) -> bool:
    membership = known()
    hold = None if membership is None else membership._hold
    if membership is None or hold is None or hold.lease.nonce != nonce:
        return False
    return membership._is_alive is None or membership._is_alive()


def _tell_loss(known: ref[Membership], lease: Lease) -> None:
    if (membership := known()) is not None:
        membership._lost(lease)
