"""Barriers: no party goes on before all have come, and all have one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import BrokenBarrierError
from typing import Any, ClassVar

from django.utils.translation import gettext_lazy as _

from distlock.backends.store import Delete, Exists, Snapshot
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Nested, Steps, or_undo
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.locking.base_lock import twins
from distlock.recipes.cells import WAITING, Cell, Columns, state
from distlock.recipes.description import Description, Detail, Ref, Table
from distlock.recipes.generation import (
    MOST_PARTIES,
    Generation,
    breaking,
    ready_key,
    said_in,
    tokens_in,
    unknown_in,
)
from distlock.recipes.membership import Membership, joining_all
from distlock.recipes.recipe import Block, Recipe, deadline_of
from distlock.records.recipe_records import GENERATION, Done, Plan, read_nothing
from distlock.records.seats import Seats, held_key
from distlock.types.lease import Holder, Kind
from distlock.types.owners import current_liveness, current_owner
from distlock.types.values import checked_callback, checked_count, escaped, text_of


@dataclass(frozen=True, slots=True)
class BarrierInfo:
    """The present state of a barrier.

    - ``parties``: the number of its parties; None if it is not known yet.
    - ``waiting``: the parties that have come and not passed, in the order in which they came; of a
      DoubleBarrier also those who are inside.
    - ``broken``: why it is broken; None if it is not.
    """

    name: str
    using: str
    parties: int | None
    waiting: tuple[Holder, ...]
    broken: str | None


class BaseBarrier(Recipe):
    """The common part of barriers: come, wait for the others, pass together, break."""

    #: what the last one to come calls before all pass
    _action: Callable[[], object] | None = None
    #: the party that is inside, and the one that keeps a broken barrier broken
    _party: Membership | None = None
    _mark: Membership | None = None

    def __init__(
        self, name: str, parties: int | None = None, *, using: str = DEFAULT_ALIAS
    ) -> None:
        """See Barrier; a barrier of one kind has nothing to do with one of the other."""
        super().__init__(name, using)
        if parties is not None and checked_count("parties", parties) > MOST_PARTIES:
            raise ValueError(f"parties must be at most {MOST_PARTIES}, got {parties}")
        #: the number of parties that the constructor got, or None
        self.parties = parties

    def __del__(self) -> None:
        for party in filter(None, (self._party, self._mark)):
            party.abandon()

    @property
    def n_waiting(self) -> int:
        """How many have come and have not passed; 0 if it is broken. See info()."""
        return len(self.info().waiting)

    @property
    def broken(self) -> bool:
        """Whether it is broken; see info()."""
        return self.info().broken is not None

    def _info(self) -> Steps[BarrierInfo]:
        """Return the waiting parties, and whether it is broken.

        Raises LockUnavailable if the backend does not answer.
        """
        now = Generation((yield self._read()))
        holders = () if now.broken else Seats(now.snapshot).info(self.using).holders
        waiting = tuple(one for one in holders if one.token in now.arrived)
        return BarrierInfo(self.name, self.using, now.parties, waiting, now.broken)

    def _abort(self) -> Steps[None]:
        """Break it: parties that wait, or come before it is reset, get BrokenBarrierError.

        Raises LockUnavailable if the backend does not answer.
        """
        mark = Membership(self, breaking(f"{current_owner()} aborted it"))
        yield from mark.joining()
        self._keep(mark)

    def _reset(self) -> Steps[None]:
        """Begin again: waiting parties get BrokenBarrierError, and it is no longer broken.

        Raises LockUnavailable if the backend does not answer.
        """
        yield self._change(lambda found: Generation(found).begin())
        self._keep(None)

    info, ainfo = twins("info", _info)
    abort, aabort = twins("abort", _abort)
    reset, areset = twins("reset", _reset)

    # Plans of a party

    def _read_to_come(self) -> Callable[[float | None], Snapshot]:
        """Return what reads for one who comes: at first what was agreed on when last seen."""
        first = [partial(self._store.recall, self._directory, [GENERATION])]

        def read(deadline: float | None) -> Snapshot:
            if first and (found := first.pop()()) is not None:
                said = said_in(found)
                if said["open"] and self.parties in (None, said["parties"]):
                    return found
            return self._store.read(self._directory, deadline)

        return read

    # Steps

    def _meet(
        self, deadline: float | None, inside: Membership | None = None, *, passes: bool = True
    ) -> Steps[int]:
        """Come, or be ``inside``, and wait for the others; with ``passes`` leave; return the place.

        After any error the others do not wait for this party.
        """
        runs = current_liveness()
        party = inside or Membership(
            self,
            lambda found: Generation(found).come(self.parties, self),
            is_alive=lambda: party is self._mark or runs(),
        )

        def meet() -> Steps[int]:
            if inside is None:
                joined: Done = yield from joining_all([party], deadline, read=self._read_to_come())
                if joined.lease is None:
                    raise self._error(joined.result)
                self._keep(None)
            else:  # all have come: it need not look first
                self._party = None  # here, where an interrupt finds it in or leads to clean_up()
                yield from self._say_ready(inside, deadline)
            grace = 0.0 if inside else self._backend.settings.lease
            place, removed = yield from self._waiting(party, deadline, grace, passes)
            if passes:
                with suppress(LockUnavailable):  # it is removed later; the outcome is known
                    yield from party.leaving(removed)
            else:
                self._party = party
            return place

        def clean_up(error: BaseException) -> None:
            if not isinstance(error, BrokenBarrierError):
                self._give_up(party, error)
            elif party.lease is not None:
                self._keep(party)

        return (yield from or_undo(meet(), clean_up))

    def _waiting(
        self, party: Membership, deadline: float | None, grace: float, passes: bool
    ) -> Steps[tuple[int, Plan]]:
        """Wait until all have come, and with ``passes`` until all pass; return the place.

        And what is removed with the party's record. When all have come there are ``grace`` seconds
        more.
        """
        assert party.lease is not None
        token, action, seen = party.lease.token, self._action, set[int]()
        tokens = {(key := held_key(party.lease.nonce)): token}
        # The records of those whose tokens are known are not read.
        read_some = partial(self._store.read_some, self._directory, [GENERATION])
        look = partial(read_some, partial(unknown_in, own=key, known=tokens))
        while True:
            found: Snapshot = yield from self._patiently(partial(self._ask, look), deadline)
            tokens |= tokens_in(found) | said_in(found)["full"]
            now = Generation(found, tokens)
            removed = Plan([Delete(ready_key(key))] if token in now.ready else ())
            if (place := now.said["passed"].get(key)) is not None:
                return int(place), removed
            if now.broken or token not in now.arrived:
                raise (yield from self._over(now, token, removed))
            is_party, is_last = token in now.full, now.full[-1:] == [token]
            if is_party and not passes:
                return now.full.index(token), removed
            if is_party and deadline is not None:  # it was for the others to come
                deadline, grace = deadline + grace, 0.0
            is_over = deadline is not None and clock() >= deadline
            is_late = bool(now.full) and not is_party  # others are in it, and it waits for the next
            if is_late and is_over:
                party.leave_soon()
                raise self._error("others were in it, and this party waited for too long")
            seen = set() if is_late else set(now.full) or seen.union(now.arrived)
            is_due = now.may_pass(token, is_over=True) and not now.gone(seen)
            if action is not None and is_last and is_due:
                yield from self._run_action(action, party)
                action = None
            if plan := now.next(token, seen, is_over=is_over):
                yield from self._say(plan, deadline)
                continue
            # The last one says so by letting all pass, after its action: no other one can.
            acts = is_last and action is not None
            says = is_party and token not in now.ready and not acts
            if not says or not (yield from self._say_ready(party, deadline)):
                keys = None if acts else now.awaited(token)
                yield from self._wait_for_change(found, deadline, keys)
            # Else others may have said so meanwhile: the last one has to see that.

    def _run_action(self, action: Callable[[], object], party: Membership) -> Steps[None]:
        try:
            yield Nested(action, partial(asyncio.to_thread, action))
        except BrokenBarrierError as error:  # of another one: this one is not broken
            self._give_up(party, error)
            raise

    def _say_ready(self, party: Membership, deadline: float | None) -> Steps[bool]:
        """Say that a party is still there; False if the backend has not confirmed it."""
        if (lease := party.lease) is None:
            return False
        key = held_key(lease.nonce)
        plan = Plan((), [Exists(key)], member_records={ready_key(key): {}})
        change = partial(self._backend.records.change, self._directory, lambda _: plan, once=True)
        with suppress(LockUnavailable):  # the next look tells
            done: Done = yield self._ask(partial(change, read=read_nothing), deadline)
            return done.revision is not None
        return False

    def _say(self, plan: Plan, deadline: float | None) -> Steps[None]:
        """Make a change; if others were faster, the next look tells."""
        ask = partial(self._store.apply, self._directory, plan.changes, plan.conditions)
        yield from self._patiently(partial(self._ask, ask), deadline)

    def _give_up(self, party: Membership, error: BaseException) -> None:
        """Leave in the background, and break the generation of the party in the same change."""
        if (lease := party.lease) is not None:
            why = escaped(f"{current_owner()} gave up: {text_of(error)}")[:1000]
            key = ready_key(held_key(lease.nonce))

            def leave(found: Snapshot) -> Plan:
                plan = breaking(why, lease.token)(found)
                return replace(plan, changes=[*plan.changes, Delete(key)])

            party.leave_soon(leave)

    def _keep(self, mark: Membership | None) -> None:
        """Keep the barrier broken for as long as ``mark`` is there; with None, no longer."""
        old, self._mark = self._mark, mark
        if old is not None and old is not mark:
            old.leave_soon()

    def _over(self, now: Generation, token: int, removed: Plan) -> Steps[Exception]:
        """Take back that the party is still there, and return the error that ends its wait."""
        if removed.changes:
            with suppress(LockUnavailable):
                yield self._ask(partial(self._store.apply, self._directory, removed.changes, ()))
        why = now.said["broken"] if token > now.since else None
        if why is None and token not in now.present:
            return LockLost(f"{self}: this party was lost; it is unknown whether others passed")
        return self._error(why or "it was reset")

    def _error(self, why: str) -> BrokenBarrierError:
        return BrokenBarrierError(f"{self} is broken: {why}")


class Barrier(BaseBarrier):
    """So many wait for each other, over all processes and machines, as ``threading.Barrier``.

    ::

        Barrier("import", 5).wait()     # returns when five have called it

    It can be used again and again. If one of the waiting parties gives up, is interrupted or dies,
    it is broken for all of them: ``threading.BrokenBarrierError``. It stays so until reset(), or
    until none of the Barrier objects that got the error is left: so a broken barrier does not stop
    the next run of a program.
    """

    kind = Kind.BARRIER

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

        - ``name``, ``using``: as for a Lock.
        - ``parties``: the number of parties, at most 500. All must give the same number; None takes
          that of the others.
        - ``action``: a function that the last one to come calls before any party passes; for a
          task, on another thread. Give it to all. If it raises, the barrier is broken.
        - ``timeout``: the default of wait(), in seconds; None forever.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, parties, using=using)
        checked_callback("action", action)
        deadline_of(timeout)
        self._action, self._timeout = action, timeout

    def _wait(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all parties have come; return a number, 0 to parties - 1, other for each.

        ``timeout`` is the seconds for the others to come. When all have, each says that it is still
        there, and the last one calls the action. For that they have the length of a lease more. A
        task that is cancelled breaks the barrier.

        Raises BrokenBarrierError if the barrier is broken, is reset, or this has waited for too
        long; ValueNotAgreed if others say another number of parties; LockUnavailable if the backend
        cannot be asked; LockLost if this process was stopped for so long that the outcome is not
        known any more.
        """
        return self._meet(deadline_of(self._timeout if timeout is None else timeout))

    wait, await_ = twins("wait", _wait)


class DoubleBarrier(Block, BaseBarrier):
    """So many begin something together and end it together::

        with DoubleBarrier("measuring", 5):     # begins when five have come
            measure()                           # is left when all five have ended it

    Each party has an object of its own. One that dies inside, or whose body fails, breaks it for
    all: leave() raises ``threading.BrokenBarrierError``. See Barrier for the rest.
    """

    kind = Kind.DOUBLE_BARRIER

    def _entering(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all parties have come; return a number as Barrier.wait(). See there.

        Raises LockError if this object has entered already.
        """
        if self._party is not None and self._party.lease is not None:
            raise LockError(f"{self}: this object has entered already; each party has its own")
        return self._meet(deadline_of(timeout), passes=False)

    def _leaving(self, timeout: float | None = None) -> Steps[int]:
        """Wait until all parties that entered leave; return a number as enter().

        Raises LockNotHeld if this object has not entered, and the errors of Barrier.wait().
        """
        deadline = deadline_of(timeout)
        party = self._party
        if party is None or party.lease is None:
            raise LockNotHeld(f"{self}: this object has not entered")
        return self._meet(deadline, party)

    enter, aenter = twins("enter", _entering)
    leave, aleave = twins("leave", _leaving, leaves=True)

    def _exiting(self, error: BaseException | None) -> Steps[None]:
        """Leave; or break it for the others in the background: the caller sees its own error."""
        if error is None:
            yield from self._leaving()
        elif (party := self._party) is not None:
            try:
                self._give_up(party, error)
            finally:  # an interrupt; else this does nothing
                self._give_up(party, error)


def _state(report: BarrierInfo) -> Cell:
    if report.broken is not None:
        return state("broken", _("Broken"), "expired")
    return state("waits", _("Waits"), "held") if report.waiting else state("empty", _("Empty"))


class BarrierDescription(Description[BarrierInfo]):
    """A barrier and the parties that wait at it."""

    empty = _("Barriers are listed here once somebody has waited at one.")
    recipe: ClassVar[Any] = Barrier
    columns: ClassVar[Columns[BarrierInfo]] = (
        (_("State"), _state),
        (_("Waiting"), lambda report: Cell(len(report.waiting), "number")),
        (_("Parties"), lambda report: Cell(report.parties, "number")),
    )

    def detail(self, ref: Ref, report: BarrierInfo) -> Detail:
        """Return who has come."""
        first, *numbers = self.row(report)
        empty = _("Nobody waits.")
        return Detail(
            facts=[first, (_("Why"), Cell(report.broken)), *numbers],
            tables=[Table("waiting", _("Waiting"), WAITING, report.waiting, empty)],
            explanation=[
                _("The parties wait until all of them have come."),
                _("If one of them gives up or dies, it is broken for all of them."),
            ],
        )


class DoubleBarrierDescription(BarrierDescription):
    """The same for those who begin and end together."""

    recipe = DoubleBarrier
