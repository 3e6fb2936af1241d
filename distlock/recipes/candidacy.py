"""The way of a candidate: it stands, gets the lock when it is the first, leads, and leaves."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

from distlock.backends.recipe_records import Plan
from distlock.backends.store import Snapshot
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Sleep, Steps, run
from distlock.concurrency.threads import start, start_for_callbacks
from distlock.core.held import OnLost
from distlock.core.manager import undo
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.recipes.candidates import (
    BROKEN,
    LOST,
    RESIGNED,
    STEPPED_DOWN,
    Candidate,
    Candidates,
    Order,
)
from distlock.recipes.leading import LeaderLock, Office, Orders, oversee
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Entered
from distlock.types.arguments import checked_flag, waiting_limit
from distlock.types.lease import Kind, Lease
from distlock.types.owners import new_owner

logger = logging.getLogger("distlock")

#: Seconds between two attempts to ask a backend that does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: Seconds that one who gives up has for telling the others.
_LAST_ANSWER = 1.0


class Candidacy(Entered):
    """One candidate of an election. It enters by a campaign, and leaves by resigning."""

    kind = Kind.ELECTION

    def __init__(
        self,
        name: str,
        candidate: str | None,
        priority: int,
        order: Order,
        data: Mapping[str, Any],
        on_lost: OnLost | None,
        using: str,
    ) -> None:
        """See Election, which checks the arguments."""
        super().__init__(name, using)
        self._given, self._data = candidate, data
        self._priority, self._order, self._on_lost = priority, order, on_lost
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Be another candidate, which does not stand: the one that did is the parent's."""
        owner = self._owner = new_owner()
        number = owner.key.rpartition(":")[2]
        #: the name of this candidate
        self.candidate = self._given or f"{owner.host}:{owner.pid}:{number}"
        known = ref(self)
        self._lock = LeaderLock(
            self._directory,
            owner,
            lambda: known() is not None,
            using=self.using,
            description=self.candidate,
        )
        self._membership = Membership(
            self, self._standing, rejoins=True, owner=owner, is_alive=partial(_may_stand, known)
        )
        #: the campaign that goes on, if any; its answer ends it
        self._campaigns: dict[str, Pending[None]] = {}
        self._office: Office | None = None

    # Knowing

    @property
    def leading(self) -> bool:
        """Whether this candidate leads, by what this process knows."""
        try:
            self._checked()
        except (LockNotHeld, LockLost):
            return False
        return True

    def _checked(self) -> Office:
        """Return what is led; LockNotHeld or LockLost."""
        if (office := self._office) is None:
            raise LockNotHeld(f"{self!r}: this candidate does not lead")
        if office.recalled:
            raise LockLost(office.recalled)
        self._lock.check()
        return office

    # The way to lead

    def _entering(
        self, blocking: bool = True, timeout: float | None = None, *, again: bool = False
    ) -> Steps[bool]:
        """``again``: this candidate has led, and goes on through an outage from the beginning."""
        wait, seconds = waiting_limit(checked_flag("blocking", blocking), timeout)
        deadline = None if wait and seconds is None else clock() + (seconds or 0.0)
        this: Pending[None] = Pending()
        campaigns = self._campaigns
        if self.leading:
            raise LockError(f"{self!r}: this candidate leads already")
        try:
            if self._campaigns.setdefault("now", this) is not this:
                raise LockError(f"{self!r}: this candidate stands already")
            if self._office is not None:  # lost, and not left yet
                with suppress(LockError):
                    yield from self._leaving()
            if not again:
                yield from self._membership.joining(deadline)
            if (yield from self._until_leading(this, deadline)):
                if not this.over:
                    return True
                yield from self._leaving()
            with suppress(LockUnavailable):  # it is done later
                yield from self._membership.leaving()
            return False
        except BaseException as error:
            if self._campaigns.get("now") is this:
                try:
                    if not isinstance(error, GeneratorExit):  # at once: the process may be ending
                        soon = self._membership.leaving(deadline=clock() + _LAST_ANSWER)
                        with suppress(LockError):
                            yield from (soon if self._office is None else self._leaving())
                finally:
                    undo(error, self._give_up)
            raise
        finally:
            # No call, so no interrupt comes between: it could not stand any more.
            if "now" in campaigns and campaigns["now"] is this:
                del campaigns["now"]

    def _until_leading(self, stopped: Pending[None], deadline: float | None) -> Steps[bool]:
        """Go on through outages; LockUnavailable if there is one when the time is up."""
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not stopped.over:
            try:
                if not self._membership.held:  # lost in an outage, or left with the lock
                    yield from self._membership.joining(deadline)
                snapshot: Snapshot = yield self._read(deadline)
                found = Candidates(snapshot, self._order)
                if found.is_first(self._owner):
                    if (yield from self._taking_office(deadline)):
                        return True
                elif not _is_over(deadline):
                    keys = found.watched_by(self._owner)
                    yield from self._wait_for_change(snapshot, deadline, keys, stopped)
                pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
            except LockUnavailable:
                if _is_over(deadline):
                    raise
                yield Sleep(next(pauses))
            if _is_over(deadline):
                break
        return False

    def _taking_office(self, deadline: float | None) -> Steps[bool]:
        """Try to get the lock, for a while, and lead if this candidate is still the first then."""
        yield from self._lock.freeing()
        office, until = Office(), clock() + self._pause
        until = until if deadline is None else min(until, deadline)
        if not (yield from self._lock.taking(until, partial(_tell_loss, ref(self), office))):
            return False
        try:
            lease = office.lease = self._lock.lease
            if (yield self._change(partial(self._beginning, lease), deadline)).result:
                self._office = office
                office.began = True
                self._lock.check()  # nobody was told if it was lost before that
                orders, look = Orders(self.name, self.using), partial(_obey, ref(self), office)
                start(oversee, "distlock-election", office, orders, look)
                return True
        except LockLost:
            self._office = None
        except LockUnavailable:
            self._lock.free_soon()
            raise
        yield from self._lock.freeing()
        return False

    def _standing(self, snapshot: Snapshot) -> Plan:
        """Plan what the record of this candidate says."""
        found = Candidates(snapshot, self._order)
        found.check_order(self._order, repr(self))
        data = {"candidate": self.candidate, "priority": self._priority, "data": self._data}
        if found.orders.get("order") == self._order:
            return Plan(data=data)
        put, same = found.ordering(order=self._order)
        return Plan([put], [same], data=data)

    def _beginning(self, lease: Lease, snapshot: Snapshot) -> Plan:
        found = Candidates(snapshot, self._order)
        return found.beginning(lease.token, self._owner, self.candidate)

    # The way out

    def _leaving(self, to: Candidate | str | None = None) -> Steps[None]:
        if (office := self._office) is None:
            if (campaign := self._campaigns.get("now")) is None or to is not None:
                raise LockNotHeld(f"{self!r}: this candidate does not lead")
            campaign.resolve(None)
            return
        heir = None
        if to is not None:
            self._checked()
            heir = Candidates((yield self._read()), self._order).other(to, self)
        try:
            yield from self._leaving_office(office, heir)
        except BaseException as error:
            if self._office is office:
                undo(error, self._give_up)
            if isinstance(error, LockNotHeld) and office.recalled:  # it was resigned for it
                raise LockLost(office.recalled) from error
            raise
        if self._office is office:  # else another thread leads by now, with this candidate
            self._office = None

    def _leaving_office(self, office: Office, heir: Candidate | None = None) -> Steps[None]:
        """Leave the place in the order first, so that the lock goes to who is next by then."""
        why = STEPPED_DOWN if office.recalled else RESIGNED if self._lock.held else LOST
        untold = None
        try:
            plan = partial(self._ending, office.term, why, heir)
            yield from self._membership.leaving(plan)
        except LockUnavailable as error:
            untold = error
        yield from self._lock.leaving()
        office.ended.resolve(None)
        if untold is not None:
            raise untold

    def _ending(self, term: int, why: str, heir: Candidate | None, snapshot: Snapshot) -> Plan:
        found = Candidates(snapshot, self._order)
        plan = found.ending(term, why)
        if heir is None:
            return plan
        put, same = found.naming(heir.name, heir.owner, term)
        return Plan([*plan.changes, put], [*plan.conditions, same])

    def _give_up(self) -> None:
        """Stand and lead no more, without waiting for that. It may be done again."""
        if (office := self._office) is not None:
            office.ended.resolve(None)
            plan = partial(self._ending, office.term, RESIGNED, None)
            self._membership.leave_soon(plan)
        self._membership.leave_soon()
        self._lock.free_soon()
        self._office = None

    def _lost(self, office: Office) -> None:
        """Leave the place in the order, so that others need not wait for its end."""
        if self._office is office:
            why = BROKEN if self._lock.broken else LOST
            self._membership.leave_soon(partial(self._ending, office.term, why, None))
        office.ended.resolve(None)
        if not office.recalled and self._on_lost is not None:
            self._on_lost(office.lease)

    # What others want of a leader

    def _recall(self, office: Office) -> None:
        """Tell the leader that it is to step down, and let it do so for the length of a lease."""
        office.recalled = f"{self!r}: the leader of term {office.term} was asked to step down"
        logger.info("%s on %r", office.recalled, self.using)
        if self._on_lost is not None:
            start_for_callbacks(self._on_lost, "distlock-lost", office.lease)
        told = office.ended.wait(clock() + office.lease.duration)
        if not told and self._office is office:
            with suppress(LockError):
                run(self._leaving_office(office))


def _obey(known: ref[Candidacy], office: Office, seen: Snapshot) -> bool:
    """Do what others want of a leader; whether that is settled for its term."""
    candidacy = known()
    if candidacy is None or candidacy._office is not office:
        return True
    found, owner = Candidates(seen, candidacy._order), candidacy._owner
    if recalled := found.is_recalled(owner, candidacy.candidate, office.term):
        candidacy._recall(office)
    return recalled


def _may_stand(known: ref[Candidacy]) -> bool:
    """Return whether the record is to be renewed: not if the lock was lost, and it is not left."""
    candidacy = known()
    if candidacy is None:
        return False
    office = candidacy._office
    return office is None or bool(office.recalled) or candidacy._lock.held


def _tell_loss(known: ref[Candidacy], office: Office, lease: Lease) -> None:
    if office.began and (candidacy := known()) is not None:
        candidacy._lost(office)


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and clock() >= deadline
