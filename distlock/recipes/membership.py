"""A record of this process in the directory of a recipe, for as long as the process keeps it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any
from weakref import ref

from distlock.activity import current_activity
from distlock.backends.store import Exists, Put, SessionEnded, Snapshot
from distlock.concurrency.clock import backoff
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.steps import Call, Steps, or_undo, run
from distlock.concurrency.threads import start, thread_logger
from distlock.exceptions import BodyEnded, LockError, LockNotHeld, LockUnavailable
from distlock.locking.options import checked_lease
from distlock.recipes.recipe import Recipe
from distlock.records.recipe_records import NOTHING, Decide, Done, Plan
from distlock.records.seats import held_key
from distlock.runtime.hold import Entrant, Hold
from distlock.runtime.manager import manager
from distlock.types.lease import Claim, Lease, Owner, new_nonce
from distlock.types.owners import current_owner

#: Seconds between two attempts to join again.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class _MemberState:
    """The state of a membership in one process."""

    def __init__(self) -> None:
        #: protects which hold this is; no backend is asked while it is taken
        self.mutex = threading.Lock()
        self.hold: Hold | None = None


@dataclass(eq=False)
class Membership:
    """Keeps a record of this process: it is renewed with the leases, and its loss is reported.

    It lasts until it is left or lost, until the process ends, or until this object is collected as
    garbage. The child of a fork is no member.

    - ``decide``: plans what is written when it joins, see RecipeRecords.change().
    - ``rejoins``: a record that was lost is put again, as that of a new member, as soon as the
      backend answers.
    - ``on_lost(lease)``: is called on a thread of distlock's own, before others can see that the
      record is gone.
    - ``is_alive``: says whether who joined still runs; else it is renewed no more.
    - ``owner``: who joins; by default who does it for the first time, also when it rejoins.
    - ``length``: that of its lease in seconds, None for that of the backend.
    - ``read``: reads what the plans depend on, in place of the whole directory.
    - ``nonce_prefix``: what the nonces of its claims begin with, so that the record can be found by
      what its key begins with.
    """

    recipe: Recipe
    decide: Decide
    _: KW_ONLY
    rejoins: bool = False
    on_lost: Callable[[Lease], object] | None = None
    is_alive: Callable[[], bool] | None = None
    owner: Owner | None = None
    length: float | None = None
    read: Callable[[float | None], Snapshot] | None = None
    nonce_prefix: str = ""

    def __post_init__(self) -> None:
        self._state = PerProcess(_MemberState)

    @property
    def _hold(self) -> Hold | None:
        """The hold of this process, lost or not; never that of its parent."""
        return self._state().hold

    # Knowing

    @property
    def held(self) -> bool:
        """Whether the record is there, by what this process knows."""
        hold = self._hold
        return hold is not None and hold.loss_reason() is None

    @property
    def lease(self) -> Lease | None:
        """The lease of the record, lost or not; None if it was not put, or was left."""
        hold = self._hold
        return None if hold is None else hold.lease

    def check(self) -> Lease:
        """Return the lease of the record; LockNotHeld or LockLost if it is not there. Asks nobody.

        The token of the lease is the revision at which the record was put.
        """
        hold = self._hold
        if hold is None:
            raise LockNotHeld(f"{self.recipe!r}: this process has not joined, or has left")
        if loss := hold.lost_error():
            raise loss
        return hold.lease

    # Steps

    def joining(
        self,
        deadline: float | None = None,
        *,
        read: Callable[[float | None], Snapshot] | None = None,
    ) -> Steps[Done]:
        """Put the record; the lease is None if the plan refused it, or this is a member already.

        A record that was lost, and is not back yet, is put again. ``read``: what is read for that.
        """
        lost = self._hold
        if lost is not None and lost.loss_reason() is None:
            return Done()
        return (yield from joining_all([self], deadline, lost=lost, read=read))

    def updating(
        self, data: Mapping[str, Any], plan: Plan = NOTHING, deadline: float | None = None
    ) -> Steps[int | None]:
        """Change what the record says, and do what is planned with it; return the revision.

        None, and nothing is changed, if it is gone or a condition failed.

        An earlier update whose answer was lost, and which comes late, changes nothing any more.
        Raises LockNotHeld or LockLost.
        """
        key = held_key(self.check().nonce)
        tried: int | None = None

        def decide(found: Snapshot) -> Plan:
            nonlocal tried
            record = found.records.get(key)
            if record is None or record.revision == tried:
                return Plan()
            tried = record.revision
            put = Put(key, {**record.value, "data": dict(data)}, record.session)
            return Plan([put, *plan.changes], [Exists(key, tried), *plan.conditions])

        try:
            return (yield self.recipe._change(decide, deadline, keys=[key])).revision  # type: ignore[no-any-return]
        except SessionEnded:
            return None

    def leaving(
        self,
        plan: Plan | Decide = NOTHING,
        deadline: float | None = None,
        *,
        unread: Plan | None = None,
        leave: Callable[[Lease, float | None], int | None] | None = None,
    ) -> Steps[bool]:
        """Remove the record, and do what is planned with it; False if it was gone already.

        For ``unread`` see RecipeRecords.leave(). ``leave(lease, deadline)`` is called in place of
        that. If it cannot be done now it is done later, and LockUnavailable is raised.
        """
        while (hold := self._hold) is not None:
            usual = partial(self.recipe._backend.records.leave, read=self.read, unread=unread)
            call = partial(leave, hold.lease) if leave else partial(usual, [hold.lease], plan)
            left = yield from self._removing(hold, call, deadline)
            if left is not None:
                return left
        return False

    def _removing(
        self, hold: Hold, leave: Callable[[float | None], object], deadline: float | None
    ) -> Steps[bool | None]:
        state, backend = self._state(), self.recipe._backend

        def remove() -> Steps[bool | None]:
            if not self._replace(hold, None):
                return None  # it has joined again meanwhile
            due = backend.calls.due(deadline)
            return (yield Call(leave, due, executor=backend.release_calls)) is not None

        def clean_up(error: BaseException) -> None:
            if state is self._state():  # else this is the child of a fork
                self._leave_later(hold, leave)

        return (yield from or_undo(remove(), clean_up))

    # At once

    def leave_soon(self, plan: Plan | Decide = NOTHING) -> None:
        """Remove the record, and do what is planned with it, in the background.

        May be repeated after an interrupt.
        """
        if (hold := self._hold) is not None:
            leave = self.recipe._backend.records.leave
            self._leave_later(hold, partial(leave, [hold.lease], plan, read=self.read))

    def note_loss(self, found: Snapshot) -> bool:
        """Note that the record is gone, if it is not in what was read after it had been put.

        Return whether it is lost.
        """
        hold = self._hold
        if hold is None or held_key(hold.lease.nonce) in (found.keys or found.records):
            return False
        manager().renewer.lose(hold, "its record is gone")  # unless it is being left just now
        return hold.loss_reason() is not None

    def pause_renewal(self) -> None:
        """Renew the record no more, and report no loss: it is being removed in another way."""
        if (hold := self._hold) is not None:
            manager().unwatch(hold)

    def resume_renewal(self) -> None:
        """Renew the record again, unless it was lost: it has not been removed."""
        if (hold := self._hold) is not None and hold.loss_reason() is None:
            manager().watch(hold)

    def abandon(self) -> None:
        """Let the record go with its lease. The garbage collector may call this."""
        if (hold := self._hold) is not None:
            hold.renewal_stopped = True

    # Inside

    def _claim(self, lost: Hold | None) -> Claim:
        """Return a new claim, of the joining owner, or of the owner of the lost one."""
        recipe, what = self.recipe, current_activity()
        owner = self.owner or (lost.lease.owner if lost else current_owner())
        length = checked_lease(recipe._backend, self.length)
        nonce = self.nonce_prefix + new_nonce()
        return Claim(recipe.name, owner, length, what, nonce, renews=True, kind=recipe.kind)

    def _new_hold(self, lease: Lease) -> Hold:
        known = ref(self)  # the renewer must not keep this alive
        entrant = Entrant(partial(_is_kept, known, lease.nonce), on_lost=partial(_tell_loss, known))
        return Hold(self.recipe._backend, lease, entrant)

    def _hold_of(self, nonce: str) -> Hold | None:
        hold = self._hold
        return hold if hold is not None and hold.lease.nonce == nonce else None

    def _replace(self, old: Hold | None, new: Hold | None) -> bool:
        """Be the member of another hold, or of none; False if this is not that of ``old``."""
        state = self._state()
        with state.mutex:
            if state.hold is not old:
                return False
            if old is not None:
                manager().unwatch(old)
            state.hold = new
            if new is not None:
                manager().watch(new)
            return True

    def _leave_later(self, hold: Hold, leave: Callable[[float], object]) -> None:
        hold.backend.cleanup.add(hold.lease.claim, leave)
        self._replace(hold, None)


def joining_all(
    members: Sequence[Membership],
    deadline: float | None = None,
    *,
    lost: Hold | None = None,
    read: Callable[[float | None], Snapshot] | None = None,
    once: bool = False,
) -> Steps[Done]:
    """Put the records of several members in one change, as the first one plans it.

    See RecipeRecords.change() for ``read`` and ``once``. ``lost`` is what they had before: a
    process that has left or joined meanwhile has the last word.
    """
    first, backend = members[0], members[0].recipe._backend
    state, claims = first._state(), [member._claim(lost) for member in members]

    def cancel_all() -> None:
        for member, claim in zip(members, claims, strict=True):
            if (hold := member._hold_of(claim.nonce)) is not None:
                member._replace(hold, None)
            backend.cleanup.add(claim)

    def join() -> Steps[Done]:
        change = partial(backend.records.change, first.recipe._directory, first.decide)
        ask = partial(change, read=read or first.read, claims=claims, once=once)
        done: Done = yield backend.asking(ask, deadline, cancel_all)
        pairs = zip(members, done.leases, strict=False)
        if all(member._replace(lost, member._new_hold(lease)) for member, lease in pairs):
            return done
        cancel_all()
        return done._replace(leases=())

    def clean_up(error: BaseException) -> None:
        is_answer = isinstance(error, LockError) and not isinstance(error, BodyEnded)
        if isinstance(error, LockUnavailable):
            is_answer = not error.maybe_applied
        if not is_answer and state is first._state():  # else this is the child of a fork
            cancel_all()

    return (yield from or_undo(join(), clean_up))


def _rejoin(known: ref[Membership], lost: Hold) -> None:
    """Join again after a loss, until that is settled."""
    for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
        member = known()
        if member is None or not _is_kept(known, lost.lease.nonce):
            return
        try:
            run(joining_all([member], lost=lost))
            return
        except LockUnavailable:
            pass
        except LockError:  # the plan refuses it
            thread_logger.exception("%r: this process could not join again", member.recipe)
            return
        except Exception:  # it may be short of threads or memory, for a time
            thread_logger.exception("%r: this process could not join again yet", member.recipe)
        del member  # it may be collected in the pause
        time.sleep(pause)


def _is_kept(known: ref[Membership], nonce: str) -> bool:
    member = known()
    if member is None or member._hold_of(nonce) is None:
        return False
    return member.is_alive is None or member.is_alive()


def _tell_loss(known: ref[Membership], lease: Lease) -> None:
    member = known()
    if member is None or (hold := member._hold_of(lease.nonce)) is None:
        return
    try:
        if member.on_lost is not None:
            member.on_lost(lease)
    finally:
        if member.rejoins:
            try:
                start(_rejoin, "distlock-rejoin", known, hold)
            except RuntimeError:  # no more threads can be started: this one has to do
                _rejoin(known, hold)
