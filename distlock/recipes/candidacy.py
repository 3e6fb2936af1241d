"""One candidate of an election: it stands, gets the lock when it is the next, leads, and leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from weakref import ref

from distlock.backends.store import Record, Snapshot
from distlock.concurrency.clock import clock, left
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Steps, Wait, despite, or_undo
from distlock.concurrency.threads import call_after
from distlock.exceptions import BodyEnded, LockLost, LockNotHeld, LockUnavailable, NotPermitted
from distlock.locking.lock import Lock
from distlock.recipes.candidates import (
    ENDED,
    HISTORY,
    ORDERS,
    Candidates,
    Directory,
    Order,
    Orders,
    Term,
)
from distlock.recipes.following import Watch
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Recipe
from distlock.records.recipe_records import Decide, Done
from distlock.records.seats import held_key, place_after
from distlock.runtime.hold import OnLost
from distlock.runtime.manager import manager
from distlock.types.lease import Kind, Lease, LockInfo, LockKey, Owner, State
from distlock.types.owners import new_owner

#: Seconds between two attempts to ask a backend that does not answer.
_PAUSE = 0.5
#: Seconds after which a leader looks whether it is to step down. Starting the thread that does so
#: would keep it from its work at first, and many terms are shorter.
_FIRST_LOOK = 0.05


class LeaderLock(Lock):
    """The lock of an election. Its owner is a candidate, and no thread or task."""

    def __init__(self, name: str, candidacy: ref[Candidacy], **options: Any) -> None:
        """``candidacy`` is the candidate: if that has gone, the lease is renewed no more."""
        super().__init__(name, **options)
        self.owner, self.candidacy = new_owner(), candidacy

    @property
    def _current_owner(self) -> Owner:
        return self.owner

    def taking(self, seconds: float) -> Steps[bool]:
        """Take it for the candidate; False if another one has it for so long. 0: try it once."""
        terms: dict[str, Any] = {"timeout": seconds} if seconds else {"blocking": False}
        request = self._options.request(self._backend, self, **terms)
        request.claim.owner = self.owner
        request.entry.is_alive, request.entry.work = partial(_goes_on, self.candidacy), None
        return manager().acquire(request)


class Candidacy:
    """One candidate, from when it is to stand until it has left."""

    def __init__(
        self, election: Recipe, said: Mapping[str, Any], order: Order, on_lost: OnLost | None
    ) -> None:
        """``said``: by which name, with which priority and data it stands."""
        self._election, self._said, self._on_lost = election, said, on_lost
        self._order = order
        # The renewal of its holds, and the callbacks for losses, must not keep it alive.
        is_alive, tell_loss = partial(_goes_on, ref(self)), partial(_tell_loss, ref(self))
        terms = {"using": election.using, "description": said["name"], "on_lost": tell_loss}
        self.lock = LeaderLock(election._directory, ref(self), **terms)
        decide = Candidates.plan(Candidates.joining, order, said, repr(election))
        self._membership = Membership(election, decide, owner=self.lock.owner, is_alive=is_alive)
        #: answered when it stands no more: because it leads, or because it is to leave
        self.decided: Pending[None] = Pending()
        #: that of the lock, once this candidate leads, or has led
        self.lease: Lease | None = None
        #: why it is to lead no more, if somebody wants that
        self._recalled = ""
        self._orders: Watch | None = None
        self._is_stopped = False

    def check(self) -> Lease:
        """Return the lease under which it leads; LockNotHeld or LockLost."""
        if self.lease is None:
            raise self._not_leading()
        if self._recalled:
            raise LockLost(self._recalled)
        try:
            self.lock.check()
        except LockNotHeld:  # that would name the lock, and its owner
            raise self._not_leading() from None
        return self.lease

    def _not_leading(self) -> LockNotHeld:
        return LockNotHeld(f"{self._election!r}: this candidate does not lead")

    @property
    def _key(self) -> str:
        """The key of its record; empty if it has none."""
        lease = self._membership.lease
        return held_key(lease.nonce) if lease else ""

    @property
    def goes_on(self) -> bool:
        """Whether it stands, or leads."""
        leads = self.lock.held and not self._recalled
        return not self.decided.over if self.lease is None else leads

    @property
    def leading(self) -> bool:
        """Whether it leads."""
        return self.lease is not None and self.goes_on

    # The way to lead

    def campaigning(self, deadline: float | None, *, patient: bool) -> Steps[bool]:
        """Stand, and wait until it leads; False if it was resigned, or does not by the deadline.

        It goes on through outages, if it is ``patient`` from the beginning; LockUnavailable if
        there is one when the time is up.
        """
        line = _Line(self._election, self.lock)
        while not self.decided.over:
            try:
                with despite(LockNotHeld, LockLost):  # it had it, and could not begin
                    yield from self.lock._leaving(self.lock.owner)
                if not self._membership.held:
                    snapshot, awaited = yield from self._joining(deadline)
                    patient, pause = True, self._election._backend.pause_behind(1)
                    if not awaited:
                        continue
                else:
                    read = partial(line.read, self._key)
                    snapshot = yield self._election._ask(read, deadline)
                    if self._membership.note_loss(snapshot):
                        continue  # it was passed over, and stands again
                    awaited, pause = yield from line.look(Candidates(snapshot), self._key, deadline)
                    if line.is_next:
                        # While another one leads, it tries only once: who dies in the queue of the
                        # lock keeps all others out for a lease.
                        limit = 0.0 if awaited else pause
                        if (yield from self._taking_office(deadline, line, limit, snapshot)):
                            return True
                if not left(deadline, 1):
                    break
                if awaited:
                    until = clock() + left(deadline, pause)
                    wait = self._election._wait_for_change
                    yield from wait(snapshot, until, awaited, self.decided)
            except LockUnavailable as error:
                if isinstance(error, NotPermitted) or not patient or not left(deadline, 1):
                    raise
                yield Wait(self.decided, clock() + left(deadline, _PAUSE))
        return False

    def _joining(self, deadline: float | None) -> Steps[tuple[Snapshot, list[str]]]:
        """Stand; return what was there before, and the keys of the records to wait for.

        These are empty if it has to look once more. It need not if its key says that it came after
        others, and they lead before it.
        """
        election, nothing = self._election, lambda found: ()
        look = partial(election._store.read_some, election._directory, [ORDERS], nothing)
        seen: Snapshot = yield election._ask(look, deadline)
        first, before = [seen], Candidates(seen)
        self._membership.nonce_prefix = place_after(seen.revision)
        read = lambda deadline: first.pop() if first else look(deadline)  # noqa: E731
        yield from self._membership.joining(deadline, read=read)
        is_behind = before.present and before.newcomers_are_last
        return seen, [ORDERS, before.present[-1]] if is_behind else []

    def _taking_office(
        self, deadline: float | None, line: _Line, limit: float, seen: Snapshot
    ) -> Steps[bool]:
        """Try to get the lock, for a while, and lead if this candidate is still the next then.

        The one who was the next in what it has ``seen`` is so until the order of candidates, what
        people want, or the history changes. The term begins on the condition that none has; where
        others may come before it by their priority, it is looked at again.
        """
        if not (yield from self.lock.taking(left(deadline, limit))):
            return False
        begun = leads = False
        with despite(LockLost, LockNotHeld):
            lease = self.lock._hold.lease
            term = Term(lease.token, self._said["name"], self.lock.owner, datetime.now(UTC))
            begin = Candidates.plan(Candidates.beginning, term, self._key, line.passed_over)
            found = None if Candidates(seen).order == "succession" else seen
            done: Done = yield self._election._change(begin, deadline, found=found)
            begun = done.result
            self.lock.check()
            leads = begun and self.decided.resolve(None)
            if leads:
                self.lease = lease
                self.lock.check()  # an earlier loss was not reported
                beside = Directory(self._election.name, self._election.using)
                # When the term began nobody wanted that it ends: this watches what comes later.
                now = done.revision and Snapshot(self._election._directory, done.revision, {})
                follow = partial(Orders, beside, seen=now or None)
                call_after(_FIRST_LOOK, partial(_watch_orders, ref(self), follow))
                return True
        self.lease = None
        if begun:  # who resigned meanwhile did not know of the term
            why = "resigned" if self.decided.over and not leads else "lost"
            yield self._election._change(self._end(term.term, why), deadline)
        return False

    # The way out

    def leaving(self, deadline: float | None = None) -> Steps[None]:
        """Leave the place in the order first, so that the lock goes to who is next by then.

        Raises LockNotHeld if it did not lead, LockLost if it does no more.
        """
        try:
            yield from or_undo(self._resigning(deadline), self._leave_after)
        except BodyEnded:
            raise
        except (LockNotHeld, LockLost) as error:
            other = self._not_leading() if isinstance(error, LockNotHeld) else error
            raise (LockLost(self._recalled) if self._recalled else other) from None

    def _resigning(self, deadline: float | None) -> Steps[None]:
        term, why = self.stop()
        end = self._end(term, why)
        # One that was stopped or cut off knows too little by now to tell what a lost answer hides.
        unread = Candidates.ending_unread(term, why) if self.lock.held else None
        left = yield from self._membership.leaving(end, deadline, unread=unread)
        if not left and self.lock.held:
            yield self._election._change(end, deadline)  # it had lost its record in an outage
        yield from self.lock._leaving(self.lock.owner)

    def _leave_after(self, error: BaseException) -> None:
        # A BodyEnded is of another lock, whose loss ends the body that this one is left in.
        if isinstance(error, BodyEnded) or not isinstance(error, (LockNotHeld, LockLost)):
            self.leave_soon()

    def leave_soon(self) -> None:
        """Stand and lead no more, without waiting for that. It may be repeated."""
        self._membership.leave_soon(self._end(*self.stop()))
        manager().release_soon(self.lock._key, self.lock.owner, self.lock)

    def stop(self) -> tuple[int, str]:
        """Stop what goes on; return which term that ends, and why, as things are now."""
        self.decided.resolve(None)
        self._is_stopped = True  # _watch_orders() reads this last, so one of the two closes it
        if self._orders is not None:
            self._orders.close()
        term, led_on = self.lease.token if self.lease else 0, self.lock.held
        return term, "stepped down" if self._recalled else "resigned" if led_on else "lost"

    def _end(self, term: int, why: str) -> Decide:
        """Return what plans to write down that a term has ended."""
        return Candidates.plan(Candidates.ending, term, why)

    # Called by others

    def _obey(self, snapshot: Snapshot) -> None:
        """Step down if somebody wants that: hold the lock until it is left, or its lease ends."""
        lease = self.lease
        if lease is None or not self.goes_on:
            self.stop()  # it has left, perhaps while this began
            return
        if Candidates(snapshot).is_recalled(self._said["name"], lease.token):
            why = f"the leader of term {lease.token} was asked to step down"
            self._recalled = f"{self._election!r}: {why}"
            if hold := manager().holds.find(self.lock._key, self.lock.owner):
                hold.renewal_stopped = True
            if self._on_lost is not None:
                self._on_lost(lease)


class _Line:
    """A candidate's view of those before it, and of those that missed their turn."""

    def __init__(self, election: Recipe, lock: LeaderLock) -> None:
        self._election, self._lock = election, lock
        #: see Candidates.before()
        self.passed_over: frozenset[str | None] = frozenset()
        #: whether the lock is this one's, if nobody has it
        self.is_next = False
        #: the key of the record of who is to lead next and does not, and since when the lock is
        #: known to be free
        self._overdue: str | None = None
        self._free_since: float | None = None
        #: by key the records of the candidates; these never change
        self._known: Mapping[str, Record] = {}

    def read(self, own: str, deadline: float | None) -> Snapshot:
        """Read the election; the records of candidates only once, and only if they count.

        They do not for the one who came first; ``own`` is the key of its record.
        """
        always, known = (ORDERS, HISTORY, ENDED), self._known

        def unknown(found: Snapshot) -> list[str]:
            now = Candidates(found)
            if now.newcomers_are_last and now.present[:1] == [own]:
                return []
            return [key for key in found.keys if key not in known]

        read_some = self._election._store.read_some
        found = read_some(self._election._directory, always, unknown, deadline)
        there = {**known, **found.records}
        records = {key: there[key] for key in found.keys if key in there}
        self._known = {key: one for key, one in records.items() if key not in always}
        return replace(found, records=records)

    def look(
        self, found: Candidates, own: str, deadline: float | None
    ) -> Steps[tuple[list[str], float]]:
        """Return the keys of the records to wait for, and the seconds after which to look again.

        The first one behind another process looks more often while nobody leads. If the lock was
        free for so long that the next one should have taken it, that one is passed over.
        """
        backend = self._election._backend
        if leader := found.leader_beside(own):
            self.passed_over = frozenset()  # one of these may have come
        awaited = found.awaited_by(own, self.passed_over)
        self.is_next = not awaited
        if self.is_next:
            return [ORDERS, leader] if leader else [], backend.pause
        before = found.before(own, self.passed_over)
        processes = found.processes_before(own, self.passed_over)
        if leader or not before or not found.may_lead(own):
            self._overdue = None
            keys = [leader] if leader and processes == 1 and leader not in awaited else []
            return awaited + keys, backend.pause
        if before[0].key != self._overdue:
            self._overdue, self._free_since = before[0].key, None
        else:
            looking = partial(self._lock._backend.inspect_holder, self._lock.name)
            info: LockInfo = yield self._election._ask(looking, deadline)
            if info.state is State.HELD:
                self._free_since = None
            elif self._free_since is None:
                self._free_since = clock()
            elif clock() - self._free_since >= backend.patience(len(self.passed_over)):
                self.passed_over |= {before[0].session}
                return (yield from self.look(found, own, deadline))
        return awaited, backend.pause_behind(processes)


def _goes_on(known: ref[Candidacy]) -> bool:
    """Return whether to renew what it has: not its record, if the lock was lost."""
    candidacy = known()
    return candidacy is not None and (candidacy.lease is None or candidacy.lock.held)


def _watch_orders(known: ref[Candidacy], follow: Callable[[], Orders]) -> None:
    """Watch whether a leader is to step down, unless its term has ended by now."""
    candidacy = known()
    if candidacy is None or candidacy._is_stopped:
        return
    # Threads or memory may be short, for a time; the timers log it.
    once_more = call_after(_PAUSE, partial(_watch_orders, known, follow))
    candidacy._orders = watch = Watch(follow, candidacy._obey, goes_on=False)
    once_more.cancel()
    if candidacy._is_stopped:
        watch.close()


def leads_here(election: str, using: str) -> bool:
    """Return whether a candidate of this process leads an election. Asks no backend."""
    place = using, LockKey(using, Kind.ELECTION, election).directory
    inside = [entry.lock for hold in manager().running() for entry in hold.entries]
    own = [one for one in inside if isinstance(one, LeaderLock) and (one.using, one.name) == place]
    return any(one.leading for lock in own if (one := lock.candidacy()))


def _tell_loss(known: ref[Candidacy], lease: Lease) -> None:
    candidacy = known()
    # The loss may be of an earlier lease, with which it could not begin, when it leads with
    # another.
    if candidacy is not None and candidacy.lease and candidacy.lease.token == lease.token:
        # Others need not wait for the end of its record.
        candidacy._membership.leave_soon(candidacy._end(*candidacy.stop()))
        if candidacy._on_lost is not None and not candidacy._recalled:
            candidacy._on_lost(lease)
