"""Semaphores and read/write locks of a backend, as records in its store.

It is a lock backend itself, so all that is made for locks works for these, too: waiting, renewal,
news of a loss, reports. See seats.py for the records of seats.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from distlock.backends.background import Cleanup, answer_due
from distlock.backends.base import BaseBackend, Capabilities, LossReason, PendingLease
from distlock.backends.reading import read, together
from distlock.backends.settings import BackendSettings
from distlock.backends.store import (
    Change,
    Delete,
    Exists,
    Put,
    SessionEnded,
    Snapshot,
    Unchanged,
)
from distlock.concurrency.clock import clock, left
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Call, Steps, Wait
from distlock.exceptions import LockUnavailable, NotSupported
from distlock.records.process_session import ProcessSession
from distlock.records.recipe_records import Plan, RecipeRecords
from distlock.records.seat_requests import Look, SeatRequests
from distlock.records.seats import (
    LIMIT,
    PassedOver,
    Seats,
    cancelled_key,
    held_key,
    value_of,
)
from distlock.types.lease import Claim, Kind, Lease, LockInfo, LockKey, State, SweepResult

logger = logging.getLogger("distlock")

#: Seconds between two looks of one who waits, though nothing has woken it: hints may be lost.
_LONGEST_WAIT = 5.0
#: Seconds after which the first in line loses its place, if it could have its seats and has not
#: taken them: its process may have been stopped or killed. With it go all who wait in its process.
#: Those that go on line up again.
_PATIENCE = 1.0
#: A caller with less time than these seconds may look only once, so that look reads all: a refusal
#: names a holder.
_ONE_LOOK = 0.05
#: Seconds for which a cancelled claim is remembered, so that a request that comes late finds that.
_REMEMBERED = 300.0


#: in the order of their names
SHARED_KINDS = (Kind.RWLOCK, Kind.SEMAPHORE)


class SharedBackend(BaseBackend):
    """The semaphores and read/write locks beside the locks of one backend.

    Names are those of LockKey.directory: a kind and a name.
    """

    def __init__(self, backend: BaseBackend) -> None:
        # Not that of BaseBackend, which reads settings: those are the backend's.
        self.alias = backend.alias
        self._backend = backend
        self.calls, self.release_calls = backend.calls, backend.release_calls
        self.cleanup = Cleanup(self)
        can, self._store, lease = backend.capabilities, backend.store, self.settings.lease
        self._session = session = ProcessSession(self._store, lease)
        shared_lease = lease if can.lease_lengths else None
        self._requests = SeatRequests(
            self._store, session, self.alias, shared_lease, can.late_requests
        )
        #: what recipes do with records, beside its seats
        self.records = RecipeRecords(self._store, self._requests, self.alias)
        self.capabilities = Capabilities(
            lease_lengths=can.lease_lengths,
            outlives_process=can.outlives_process,
            shortest_lease=can.shortest_lease,
            waiters=True,
            fair=True,
        )
        self.listener = None

    @property
    def settings(self) -> BackendSettings:  # type: ignore[override]
        """The settings of the backend, which may know its lease only when it is connected."""
        return self._backend.settings

    @property
    def pause(self) -> float:
        """Seconds between two looks of one who waits, at most a third of a lease."""
        return min(_LONGEST_WAIT, self.settings.interval(self.settings.lease))

    # Taking

    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        """See BaseBackend.try_acquire()."""
        lease = self._requests.look(claim, False, frozenset(), deadline).lease
        if lease is None:
            self._requests.forget(claim, deadline)
        return lease

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        """See BaseBackend.enqueue(). Waiters are served first come, first served.

        Each waits for a change of the record of the one before it, and only the first in line for
        any change. So one who leaves wakes one, however many wait. The first one of each process
        looks by itself, too: those in front of it may be gone.

        A caller that keeps its place (see Claim) gets None when it has looked by itself.
        """
        directory, passed_over = self._directory(claim), PassedOver()
        began, known_until = clock(), self.calls.due()
        waits = claim.keeps_place
        whole = waits or left(deadline, 1.0) < _ONE_LOOK
        look = yield from self._look(claim, passed_over, deadline, waits=waits, whole=whole)
        overdue, since = look.turn.overdue, clock()
        while look.lease is None:
            try:
                if deadline is not None and clock() >= deadline:
                    known_until = math.inf  # the last look was answered
                    yield self.asking(partial(self._requests.leave_queue, claim), deadline)
                    return None
                pause = self.pause_behind(look.turn.processes if overdue is None else 1)
                hint = self.hint(directory, look.revision, look.turn.behind)
                try:
                    is_woken = yield Wait(hint, clock() + left(deadline, pause))
                finally:
                    hint.abandon()
                if claim.keeps_place and clock() - began >= pause:
                    return None
                is_late = overdue is not None or bool(passed_over) or left(deadline, 1.0) <= 0
                # A caller that is woken need not look for one who does not come.
                whole = claim.keeps_place or is_late or not is_woken
                if overdue is not None and clock() - since >= self.patience(len(passed_over)):
                    passed_over |= {overdue.session}
                asked_until = self.calls.due()
                look = yield from self._look(claim, passed_over, deadline, whole=whole)
                known_until = asked_until
            except LockUnavailable:
                if left(deadline, 1.0) > 0 or known_until is None or clock() >= known_until:
                    raise
                self.cleanup.add(claim)  # an answer in this very wait showed other holders
                return None
            if look.turn.overdue != overdue:
                overdue, since = look.turn.overdue, clock()
        return look.lease

    def pause_behind(self, processes: int) -> float:
        """Return the seconds between two looks of the first one who waits in its process.

        The more processes are before it, the fewer looks it makes. 0 is for all others.
        """
        return min(self.pause, processes * _PATIENCE) if processes else self.pause

    def patience(self, passed_over: int) -> float:
        """Return the seconds that one may take to come when so many before it were passed over.

        A caller behind one of these gets no wake-up, and looks by itself.
        """
        return _PATIENCE + (self.pause_behind(passed_over) if passed_over else 0.0)

    def hint(self, directory: str, since: int, key: str | None) -> Pending[None]:
        """See RecordStore.watch(); in an outage there is none: who waits looks by itself, too."""
        try:
            return self._store.watch(directory, since, key)
        except LockUnavailable:
            return Pending()

    def _look(
        self,
        claim: Claim,
        passed_over: PassedOver,
        deadline: float | None,
        *,
        whole: bool,
        waits: bool = True,
    ) -> Steps[Look]:
        look = partial(self._requests.look, claim, True, passed_over, waits=waits, whole=whole)
        try:
            return (yield self.asking(look, deadline, partial(self.cleanup.add, claim)))  # type: ignore[no-any-return]
        except LockUnavailable as error:
            # Its place in the queue has to be taken back, also if this very look was never made.
            error.maybe_applied = error.maybe_applied or waits
            raise

    def asking(
        self,
        question: Callable[[float | None], object],
        deadline: float | None = None,
        undo: Callable[[], object] | None = None,
    ) -> Call:
        """Return the step that makes a blocking call with a deadline; its result is the call's."""
        due = self.calls.due(answer_due(deadline))
        return Call(question, due, undo, executor=self.calls)

    def leave_queue(self, claim: Claim, deadline: float | None) -> None:
        """Give up the place in the queue, now or in the background."""
        try:
            self._requests.leave_queue(claim, deadline)
        except LockUnavailable:
            self.cleanup.add(claim)

    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        """See BaseBackend.renew(). The session of many leases is renewed once for all of them."""
        asked = {}
        for lease in leases:
            if session := self._requests.sessions.get(lease.nonce):
                record = self._directory(lease.claim), held_key(lease.nonce)
                asked[lease.nonce] = session.id, record
        renewal = self._session.renew(
            {session for session, _ in asked.values()},
            [record for _, record in asked.values()],
            deadline,
        )
        answers = {}
        for nonce, (name, record) in asked.items():
            if name in renewal.ended or record in renewal.missing:
                answers[nonce] = False
                self._requests.sessions.pop(nonce, None)  # there is nothing to be freed any more
            elif name in renewal.alive and record in renewal.present:
                answers[nonce] = True
        return answers

    # Leaving

    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.release()."""
        directory, key = self._directory(lease.claim), held_key(lease.nonce)
        freed = self._store.apply(directory, [Delete(key)], [Exists(key)], deadline)
        self._requests.forget(lease.claim, deadline)
        return freed is not None

    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """Refuse: nobody can ask for it, see Semaphore and RWLock."""
        raise NotSupported(f"{lease.claim.kind} {lease.name!r}: at_least is for locks only")

    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        """See BaseBackend.cancel(). A request that comes later finds the claim cancelled."""

        def apply(changes: list[Change]) -> None:
            if self._backend.capabilities.late_requests:
                session = self._store.open_session(_REMEMBERED, deadline)
                changes.append(Put(cancelled_key(claim.nonce), {}, session.id))
            self.records.cancel(claim, changes, deadline)

        self._requests.leave(claim, apply)
        self._requests.forget(claim, deadline)

    def kept_until(self, claim: Claim) -> float:
        """See BaseBackend.kept_until(). The session of the process goes on for other records."""
        return self._session.lasts_until

    def discard_local(self, lease: Lease) -> None:
        """See BaseBackend.discard_local(). Records of a session that goes on are removed."""
        session = self._requests.sessions.get(lease.nonce)
        if session is not None and self._requests.shares_session(lease.claim):
            self.cleanup.add(lease.claim, partial(self.release, lease))
        self._requests.sessions.pop(lease.nonce, None)  # at last: this may be called once more

    def become_reader(self, lease: Lease, deadline: float | None = None) -> bool:
        """Turn the seats of a writer into that of a reader; False if it no longer had them.

        Doing it twice does no harm.
        """
        claim, key = replace(lease.claim, seats=1), held_key(lease.nonce)
        directory = self._directory(claim)
        if (session := self._requests.sessions.get(lease.nonce)) is None:
            return False
        changes = [Put(key, value_of(claim), session.id)]
        try:
            return self._store.apply(directory, changes, [Exists(key)], deadline) is not None
        except SessionEnded:
            return False

    # Looking

    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        """See BaseBackend.verify()."""
        key = held_key(lease.nonce)
        return self._store.get(self._directory(lease.claim), key, deadline) is not None

    def is_held(self, claim: Claim, deadline: float | None = None) -> bool:
        """See BaseBackend.is_held()."""
        # Not by inspect(): what that returns may have been read some moments ago, see together().
        found = self._store.read(self._directory(claim), deadline)
        return Seats(found).info(self.alias).state is State.HELD

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        """See BaseBackend.inspect()."""
        return Seats(read(self._store, name, deadline)).info(self.alias)

    def list(
        self,
        prefix: str = "",
        deadline: float | None = None,
        kinds: Sequence[Kind] = SHARED_KINDS,
    ) -> Iterator[LockInfo]:
        """Return, by kind and name, what is held or waited for under names that begin so."""
        for kind in kinds:
            beginning = LockKey(self.alias, kind, prefix).directory
            found = [*self._store.directories(beginning, deadline)]
            for _, info in together(found, partial(self.inspect, deadline=deadline)):
                if info.state is not State.FREE or info.waiters:
                    yield info

    def _directory(self, claim: Claim) -> str:
        return claim.key(self.alias).directory

    # Clearing

    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        """See BaseBackend.force_release(). The seats that have this token become free."""
        seats = Seats(self._store.read(name, deadline))
        record = next((record for record in seats.holders if record.created == token), None)
        if record is None:
            return None
        if self._store.apply(name, [Delete(record.key)], [Exists(record.key)], deadline) is None:
            return None
        lease = seats.lease_of(record)
        self.tell_lost(lease, LossReason.BROKEN)
        return lease

    def resize(self, name: str, limit: int, deadline: float | None = None) -> int | None:
        """Change for all how many seats there are; return how many there were, None if unknown.

        Nobody is evicted: if more seats are taken than there are now, new ones are granted when
        enough of them have been left.
        """

        def decide(found: Snapshot) -> Plan:
            seats = Seats(found)
            said = seats.limit_record.value if seats.limit_record else {}
            put = Put(LIMIT, {**said, "limit": limit, "resized": True})
            return Plan([put], [found.unchanged(LIMIT)], seats.limit)

        before: int | None = self.records.change(name, decide, deadline).result
        if before != limit:
            _, kind, plain = LockKey.of_directory(self.alias, name)
            logger.warning(
                "%s %r on %r was resized: it had %s, and has %d seats now",
                kind, plain, self.alias, before or "no number yet", limit,
            )  # fmt: skip
        return before

    def sweep(self) -> SweepResult:
        """Forget how many seats there were of what nobody uses, unless resize() has said it.

        Reports of work that ended long ago are forgotten, too, and barriers where nobody is.

        The sweep of the backend clears what has ended, and in time what is empty; ``removed`` is
        how many numbers were forgotten.
        """
        removed = 0
        for kind in SHARED_KINDS:
            for directory in self._store.directories(LockKey(self.alias, kind, "").directory):
                seats = Seats(self._store.read(directory))
                if seats.forgettable:
                    unused = Unchanged(seats.snapshot.revision)
                    removed += bool(self._store.apply(directory, [Delete(LIMIT)], [unused]))
        self.records.sweep()
        return SweepResult(removed=removed)


def part_of(backend: BaseBackend, kind: Kind) -> BaseBackend:
    """Return the backend for one kind of lock in the place of a backend; see LockKey."""
    return backend if kind is Kind.LOCK else shared_locks(backend)


def every_kind(backend: BaseBackend) -> list[BaseBackend]:
    """Return the backends of all kinds of lock that are in one place: itself, and the shared ones.

    The second one is missing where nothing but locks is kept.
    """
    try:
        return [backend, shared_locks(backend)]
    except NotSupported:
        return [backend]


def sweep_every_kind(backend: BaseBackend) -> SweepResult:
    """Sweep a backend with its semaphores and read/write locks; see BaseBackend.sweep()."""
    swept = [part.sweep() for part in reversed(every_kind(backend))]
    return SweepResult(sum(one.expired for one in swept), sum(one.removed for one in swept))


def shared_locks(backend: BaseBackend) -> SharedBackend:
    """Return the semaphores and read/write locks of a backend.

    NotSupported if it keeps no records.
    """
    if backend.shared is None:
        with _making():
            if backend.shared is None:
                backend.shared = SharedBackend(backend)
    return cast(SharedBackend, backend.shared)


#: lets one thread at a time make a backend's store, and what is built on it
_making = PerProcess(threading.Lock)
