"""A rate limiter: a limited number of permits in any period, over all processes.

Its directory has

- ``permits``: the grants that count, in their order: for each a nonce, how many permits it is of,
  for how long it counts, and when it was made, for people. Every grant puts it again, on the
  condition that nobody else has since it was read.
- ``h/NONCE``: one who waits, bound to the session of its process; first come, first served.

No clock of another machine is believed. A process remembers when it has seen each grant for the
first time, by its own clock, which is after it was made. A full period later that process leaves it
out. Beside a grant stands for how long others have seen it, so a process that has just begun goes
on from there. The time when nobody looked is not known: grants may count for too long, never less.

An answer that was lost grants nothing: the next request takes its own grant out in the same change,
and has a new one, which counts from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, ClassVar, TypeVar

from django.utils.translation import gettext_lazy as _

from distlock.backends.store import Change, Delete, Exists, Put, Record, Snapshot, Unchanged
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Call, Steps, or_undo
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockBusy, LockUnavailable
from distlock.locking.base_lock import twins
from distlock.locking.blocks import decorate
from distlock.locking.options import LockOptions
from distlock.recipes.cells import WAITING, Cell, Columns
from distlock.recipes.description import Description, Detail, Ref, Table
from distlock.recipes.membership import Membership
from distlock.recipes.permits import PERMITS, Permits, first_seen, grants_in, merged, since
from distlock.recipes.recipe import Block, Recipe
from distlock.records.recipe_records import Done, Plan
from distlock.records.seats import Seats, held_key, processes_of
from distlock.types.lease import RELIED_ON, Claim, Holder, Kind, new_nonce
from distlock.types.owners import current_liveness, current_owner
from distlock.types.values import OnBusy, checked_count, checked_period

F = TypeVar("F", bound=Callable[..., Any])

#: An answer that comes later is used no more, as the process was stopped: in seconds, or periods.
_LATE, _LATE_PART = 5.0, 0.1
#: Seconds that the first one in line may take to come, once there are permits for it.
_PATIENCE = 1.0
#: The part of the period that may be forgotten when a process ends that gets no permits.
_KNOWN_PART = 1 / 8


@dataclass(frozen=True, slots=True)
class RateInfo:
    """The present state of a rate limiter.

    - ``permits``, ``period``: those of the last user, the period in seconds; None if there was
      none.
    - ``taken``: how many permits count now, as far as this process knows.
    - ``waiting``: the waiters, in the order of being served.
    """

    name: str
    using: str
    permits: int | None
    period: float | None
    taken: int
    waiting: tuple[Holder, ...]


class RateLimiter(Block, Recipe):
    """Permits per period, over all processes: ``RateLimiter("api", 30, 60)``.

    ::

        @RateLimiter("api:{account}", 30, 60, on_busy="skip")
        def ask(account): ...

    A permit counts for a full period, even if its process ends. First come, first served. A
    ``with`` block takes one, too, and gives nothing back at its end.
    """

    kind = Kind.RATE_LIMITER

    def __init__(
        self,
        name: str,
        permits: int,
        period: float,
        *,
        using: str = DEFAULT_ALIAS,
        on_busy: OnBusy = "wait",
        timeout: float | None = None,
        busy_result: Any = None,
    ) -> None:
        """Describe a rate limiter; nothing is asked or taken yet.

        - ``name``, ``using``: as for a Lock.
        - ``permits``, ``period``: at most ``permits`` in any ``period`` of seconds, at most a week.
          Give the same numbers everywhere. While processes differ, as in a deploy, each goes by its
          own, and permits count for the period of the process that took them.
        - ``on_busy``, ``timeout``, ``busy_result``: as for a Lock.

        Raises TypeError or ValueError that names the argument and its value.
        """
        super().__init__(name, using)
        self.permits = checked_count("permits", permits)
        self.period = checked_period("period", period)
        waits = on_busy, timeout, busy_result
        self._options = LockOptions(*waits, None, None, None, True, True, "", None, None, None)

    def __call__(self, function: F) -> F:
        """Decorate a plain or async function; every call takes a permit first.

        The name is filled in as that of a Lock. With ``on_busy="skip"`` a call that gets no permit
        returns ``busy_result``.
        """
        return decorate(function, [self.name], self._named, self._options)

    def _acquire(
        self, n: int = 1, blocking: bool | None = None, timeout: float | None = None
    ) -> Steps[bool]:
        """Take ``n`` permits at once; True if they are granted, False if there are not enough.

        ``blocking=False`` tries once; ``timeout`` limits the wait in seconds, and -1 waits forever.
        Arguments that are not given are those of the constructor. A waiter for many gets none
        meanwhile, and those who came later wait behind it. One that returns False, is cancelled or
        interrupted takes none; only if the backend does not answer just then they may count for a
        period.

        Raises ValueError if there are fewer than ``n``, TypeError or ValueError for arguments that
        are wrong, LockUnavailable if the backend does not answer. A wait outlasts an outage of up
        to a lease.
        """
        if checked_count("n", n) > self.permits:
            raise ValueError(f"n must be at most permits={self.permits}, got {n}")
        waits, deadline = self._options.limit(blocking, timeout)
        return _PermitRequest(self, n, deadline if waits else clock()).making()

    acquire, aacquire = twins("acquire", _acquire)

    def attempt(self) -> PermitAttempt:
        """Return a block that runs with a permit or without it; see Lock.attempt()."""
        return PermitAttempt(self)

    def _info(self) -> Steps[RateInfo]:
        """Return the number of permits that count now, and the waiters.

        Raises LockUnavailable if the backend does not answer.
        """
        found: Snapshot = yield self._read()
        taken = sum(one.n for one in self._counting(found))
        record, waiting = found.records.get(PERMITS), Seats(found).info(self.using).holders
        said = {} if record is None else record.value
        rate = said.get("permits"), said.get("period")
        return RateInfo(self.name, self.using, *rate, taken, waiting)

    info, ainfo = twins("info", _info)

    # Blocks

    def _entering(self) -> Steps[None]:
        if self._options.on_busy == "skip":
            self._options.refuse_block(self)
        if not (yield from self._acquire()):
            raise self.busy()

    def _leaving(self) -> Steps[None]:
        yield from ()

    def _named(self, name: str) -> RateLimiter:
        limiter = copy(self)
        limiter.name = name
        vars(limiter).pop("_directory", None)  # that of the template, if it was used by itself
        return limiter

    def busy(self) -> LockBusy:
        """Return the error for one who got no permit, and has waited as the constructor says."""
        where = f"rate limiter {self.name!r} on {self.using!r}"
        many = f"{self.permits} in {self.period:g} s"
        return self._options.busy(f"{where}: no permit was left, of {many}", None)

    # Inside

    def _counting(self, found: Snapshot) -> list[Permits]:
        """Return the grants that count, and for how long this process knows of each."""
        counting = (one for one in grants_in(found) if self._counts_until(one) > clock())
        return [one._replace(seen=int(clock() - since(one))) for one in counting]

    def _counts_until(self, grant: Permits) -> float:
        """Return until when a grant counts, by the clock of this process."""
        return since(grant) + max(self.period, grant.period) / RELIED_ON

    def _free_at(self, grants: Iterable[Permits], n: int, permits: int) -> float:
        """Return when ``n`` permits will be free, if nobody takes any meanwhile."""
        used, when = sum(one.n for one in grants), 0.0
        for one in sorted(grants, key=self._counts_until):
            if used + n <= permits:
                break
            used, when = used - one.n, self._counts_until(one)
        return when

    def _knows_more(self, grants: Iterable[Permits], found: Snapshot) -> bool:
        """Return whether to write for how long grants have counted: now and then."""
        most = max(1.0, self.period * _KNOWN_PART)
        both = zip(grants, grants_in(found), strict=True)  # as all of them count
        return any(one.seen - said.seen >= most for one, said in both)

    def _write(self, grants: Iterable[Permits]) -> Put:
        said = {"permits": self.permits, "period": self.period, "at": time.time_ns() // 1000}
        return Put(PERMITS, {**said, "by": str(current_owner()), "grants": [*map(list, grants)]})


class PermitAttempt:
    """One attempt to have a permit for a block, which runs in either case; see Lock.attempt()."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        # As for a Lock, it waits only if there is a limit.
        self._blocking = False if limiter._options.timeout is None else None

    def __enter__(self) -> bool:
        return self._limiter.acquire(1, self._blocking)

    async def __aenter__(self) -> bool:
        return await self._limiter.aacquire(1, self._blocking)

    def __exit__(self, *exc_info: object) -> None: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class _PermitRequest:
    """One request for permits, from the call to its answer."""

    def __init__(self, limiter: RateLimiter, n: int, deadline: float | None) -> None:
        self._limiter, self._n, self._deadline = limiter, n, deadline
        #: its place in the line, once it has to wait
        said = Plan(members=[{"n": n, "permits": limiter.permits}])
        self._member = Membership(limiter, lambda found: said, is_alive=current_liveness())
        #: under which nonces it has asked, and when for the last time
        self._nonces, self._asked_at = set[str](), 0.0
        #: whether one of these may be granted; and whether an answer was lost
        self._may_be_granted = self._in_doubt = False
        #: the first one in line, since when it could have its permits; and who has not come so
        self._overdue, self._passed = ("", 0.0), set[str]()
        #: the last look, until when to wait after it, and for which record
        self._found = Snapshot("", 0, {})
        self._next_look, self._behind = inf, PERMITS
        #: the call that asks; one that was given up may go on, and does nothing any more
        self._call: object = None

    def making(self) -> Steps[bool]:
        """Return the steps until the permits are granted, or the time is over."""
        return or_undo(self._making(), lambda _: self._withdraw())

    def _making(self) -> Steps[bool]:
        while not (yield from self._asking()):
            if self._until(inf) <= clock():
                self._withdraw()
                return False
        # The grant has removed the place in line.
        yield from self._member.leaving(leave=self._limiter._backend.records.forget)
        return True

    def _until(self, when: float) -> float:
        return when if self._deadline is None else min(when, self._deadline)

    def _asking(self) -> Steps[bool]:
        """Take the permits if it is the turn; else stand in line, and wait for what may help."""
        limiter, member = self._limiter, self._member
        member.pause_renewal()  # its place in line is not lost when the grant has removed it
        until = self._until(clock() + limiter._backend.settings.lease)
        done: Done = yield from limiter._patiently(self._ask, until, self._asks_again)
        if done.result is not None:
            first_seen(done.result)
            # Else it asks again, and what it gets takes the place of this grant.
            return clock() - self._asked_at <= max(_LATE, limiter.period * _LATE_PART)
        member.resume_renewal()
        self._may_be_granted = False
        if self._until(inf) <= clock():
            return False
        if not member.held or member.note_loss(self._found):
            try:
                yield from member.joining(self._deadline)
                self._in_doubt = False
            except LockUnavailable:
                if self._in_doubt:  # for the second time
                    raise
                self._in_doubt = True
        else:
            until = self._until(self._next_look)
            yield from limiter._wait_for_change(self._found, until, [self._behind])
        return False

    def _ask(self, deadline: float | None) -> Call:
        backend, call, nonces = self._limiter._backend, object(), list[str]()
        self._call = call

        def decide(found: Snapshot) -> Plan:
            if self._call is not call:
                return Plan()
            self._found, plan = found, self._plan(found)
            nonces.extend(filter(None, [plan.result]))
            return plan

        change = partial(backend.records.change, self._limiter._directory, decide)
        return backend.asking(change, deadline, partial(self._take_back, nonces))

    def _asks_again(self, error: LockUnavailable) -> bool:
        """Return whether to outlast an outage: in line, or once an answer was lost."""
        self._in_doubt = self._in_doubt or error.maybe_applied
        return self._in_doubt or self._key is not None

    def _plan(self, found: Snapshot) -> Plan:
        """Return how to take the permits, if it is the turn; else what frees those of others."""
        limiter, key = self._limiter, self._key
        counting, waiters = limiter._counting(found), Seats(found).holders
        grants = self._without(counting, self._nonces)
        if len(grants) < len(counting):  # it had its turn, and the answer was lost
            return self._granting(found, grants)
        ahead = takewhile(lambda one: one.key != key, waiters)
        before = [one for one in ahead if one.key not in self._passed]
        while before and self._passes(before[0], grants):
            self._passed.add(before.pop(0).key)
        first = before[0].value["data"] if before else {"n": self._n, "permits": limiter.permits}
        free_at = limiter._free_at(grants, **first)
        if not before and not free_at:
            return self._granting(found, grants)
        self._behind = before[-1].key if before else PERMITS
        # One in each process looks by itself: it may have seen grants earlier than others.
        own = found.records.get(key) if key else None
        looks = not before or processes_of(before, own) > 0
        self._next_look = (free_at or self._overdue[1] + _PATIENCE) if looks else inf
        if len(grants) < len(grants_in(found)) or limiter._knows_more(grants, found):
            return Plan([limiter._write(grants)], [found.unchanged(PERMITS)])
        return Plan()

    def _granting(self, found: Snapshot, grants: list[Permits]) -> Plan:
        limiter, key = self._limiter, self._key
        grant = Permits(new_nonce()[:16], self._n, limiter.period, time.time_ns() // 1000)
        self._nonces.add(grant.nonce)
        self._asked_at, self._may_be_granted = clock(), True
        # Waiters that did not come lose their places: the next one would have to wait for them,
        # too.
        gone = [one for one in self._passed if one in found.records]
        changes: list[Change] = [limiter._write(merged([*grants, grant])), *map(Delete, gone)]
        if key is None or key not in found.records:  # nobody may have come to wait
            return Plan(changes, [Unchanged(found.revision)], grant.nonce)
        return Plan([*changes, Delete(key)], [found.unchanged(PERMITS), Exists(key)], grant.nonce)

    def _passes(self, first: Record, grants: list[Permits]) -> bool:
        """Return whether the first in line has had its time to come: it may be gone."""
        if self._limiter._free_at(grants, **first.value["data"]):
            return False
        if self._overdue[0] != first.key:
            self._overdue = first.key, clock()
        return clock() - self._overdue[1] >= _PATIENCE

    def _without(self, grants: list[Permits], nonces: Collection[str]) -> list[Permits]:
        """Leave out what this request has under some nonces, but not what is one with others."""
        return [one for one in grants if one.nonce not in nonces or one.n != self._n]

    @property
    def _key(self) -> str | None:
        lease = self._member.lease
        return None if lease is None else held_key(lease.nonce)

    def _withdraw(self) -> None:
        """Leave the line, and take back what may have been granted, in the background."""
        self._call = None
        self._member.leave_soon()
        if self._may_be_granted:
            self._take_back(self._nonces)

    def _take_back(self, nonces: Collection[str]) -> None:
        """Take back in the background what may be granted under these nonces."""
        limiter, backend = self._limiter, self._limiter._backend

        def decide(found: Snapshot) -> Plan:
            # It is put in any case: a request that comes late finds it changed.
            kept = limiter._write(self._without(grants_in(found), nonces))
            return Plan([kept], [found.unchanged(PERMITS)])

        claim = Claim(limiter.name, current_owner(), backend.settings.lease, kind=limiter.kind)
        read = partial(limiter._store.look, limiter._directory, [PERMITS])
        change = partial(backend.records.change, limiter._directory, decide, read=read)
        backend.cleanup.add(claim, change)


class RateLimiterDescription(Description[RateInfo]):
    """The permits that are taken, their number in all, and the waiters."""

    empty = _("Rate limiters are listed here once one has granted a permit.")
    columns: ClassVar[Columns[RateInfo]] = (
        (_("Taken"), lambda report: Cell(report.taken, "number")),
        (_("Permits"), lambda report: Cell(report.permits, "number")),
        (_("Period"), lambda report: Cell(report.period, "span")),
        (_("Waiting"), lambda report: Cell(len(report.waiting), "number")),
    )

    def read(self, ref: Ref) -> RateInfo:
        """Return how many permits count for this process, and who waits."""
        return RateLimiter(ref.name, 1, 1, using=ref.alias).info()

    def detail(self, ref: Ref, report: RateInfo) -> Detail:
        """Return the same."""
        return Detail(
            self.row(report),
            [Table("waiting", _("Waiting"), WAITING, report.waiting, _("Nobody waits."))],
            [_("Each process counts a permit for a full period after it first saw it.")],
        )
