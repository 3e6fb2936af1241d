"""Barriers: no party goes on before all have come, and all have one outcome.

In the directory of a barrier are

- ``h/NONCE``: a party, from when it comes until it has read the outcome. Its token is the revision
  at which it came. When all have come, each says that it is still there (``ready``). So one that
  was killed while it waited, and was started again, is not counted twice.
- ``generation``: ``parties``, how many it is for; ``since``: who came after this revision is of the
  present generation, all others are of earlier ones; ``full``: the tokens of the parties, once so
  many have come; ``broken``: why it is broken; ``passed``: the places of those who have passed, for
  as long as their own records are there.

Each change of ``generation`` is made on the revision at which it was read. For example, if the last
party arrives just as another one times out, only one of the two changes succeeds. It decides for
all, and the other party reads that outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import BrokenBarrierError
from typing import Any

from distlock.backends.store import Condition, Put, Snapshot, Unchanged
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Nested, Steps, or_undo
from distlock.conf import DEFAULT_ALIAS
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable, ValueNotAgreed
from distlock.locking.base_lock import twins
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Block, Recipe, deadline_of
from distlock.records.recipe_records import GENERATION, Done, Plan
from distlock.records.seats import Seats
from distlock.types.lease import Holder, Kind
from distlock.types.owners import current_liveness, current_owner
from distlock.types.values import checked_callback, checked_count

#: The tokens of all parties are in one record.
_MOST_PARTIES = 500
#: The value of a generation that has no record yet.
_NONE: dict[str, Any] = {"parties": None, "since": 0, "full": [], "broken": None, "passed": {}}


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


class Generation:
    """The state of a barrier in a snapshot, and the plans that can be made of that."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        record = snapshot.records.get(GENERATION)
        self.same = snapshot.unchanged(GENERATION)
        self.said: dict[str, Any] = record.value if record else _NONE
        self.parties: int | None = self.said["parties"]
        self.present = {party.created: party for party in Seats(snapshot).holders}
        #: the tokens of those who are of the present generation, in the order in which they came
        self.since: int = self.said["since"]
        self.arrived = [token for token in self.present if token > self.since]
        #: Why it is broken. When all who know of that are gone, the next one begins again.
        self.broken: str | None = self.said["broken"] if self.arrived else None
        full: list[int] = self.said["full"]
        #: The tokens of the parties. If all of them are gone nobody waits for them any more.
        self.full = full if self.present.keys() & full else []
        #: the tokens of the parties that have confirmed, after all had come
        self.ready = {one for one in self.present if "ready" in self.present[one].value["data"]}

    # Plans

    def begin(self, **said: Any) -> Plan:
        """Begin a generation, of those who come from now on, if nobody has come meanwhile."""
        now = self.snapshot.revision
        return self.say(Unchanged(now), since=now, full=[], broken=None, **said)

    def let_pass(self) -> Plan:
        """Let all parties pass. A party that comes too late belongs to the next generation."""
        passed = self.said["passed"] | {str(one): place for place, one in enumerate(self.full)}
        return self.say(since=self.full[-1], full=[], passed=passed)

    def say(self, *conditions: Condition, **said: Any) -> Plan:
        """Say something else of the generation, if nobody else has since it was read."""
        value = self.said | said
        passed = value["passed"].items()
        value["passed"] = {one: place for one, place in passed if int(one) in self.present}
        return Plan([Put(GENERATION, value)], [self.same, *conditions], members=[{}])


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
        if parties is not None and checked_count("parties", parties) > _MOST_PARTIES:
            raise ValueError(f"parties must be at most {_MOST_PARTIES}, got {parties}")
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
        mark = Membership(self, partial(self._break, f"{current_owner()} aborted it", None))
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

    def _come(self, snapshot: Snapshot) -> Plan:
        now = Generation(snapshot)
        if now.broken:
            return Plan(result=now.broken)
        parties = self.parties or now.parties
        if parties is None:
            raise ValueNotAgreed(f"{self}: parties was not given, and no other party has given it")
        if now.arrived and parties != now.parties:
            raise ValueNotAgreed(
                f"parties={parties}: {self} is for {now.parties}, for the parties that wait now."
                f" Use the same number everywhere"
            )
        goes_on = now.parties == parties and now.said["broken"] is None
        # A party relies on the generation as it is, and changes it only to begin again.
        return Plan((), [now.same], members=[{}]) if goes_on else now.begin(parties=parties)

    def _break(self, why: str, token: int | None, snapshot: Snapshot) -> Plan:
        """Break the generation; if a token is given, only if a party with that is of it.

        Others may have come and not have seen yet that it was there: they must not wait for it.
        """
        now = Generation(snapshot)
        if token is None or token in (now.full or now.arrived):
            return now.say(broken=now.broken or why)
        return Plan()

    # Steps

    def _meet(
        self, deadline: float | None, inside: Membership | None = None, *, passes: bool = True
    ) -> Steps[int]:
        """Come, or be ``inside``, and wait for the others; with ``passes`` leave; return the place.

        After any error the others do not wait for this party.
        """
        runs = current_liveness()
        party = inside or Membership(
            self, self._come, is_alive=lambda: party is self._mark or runs()
        )

        def meet() -> Steps[int]:
            if inside is None:
                joined: Done = yield from party.joining(deadline)
                if joined.lease is None:
                    raise self._error(joined.result)
                self._keep(None)
            grace = 0.0 if inside else self._backend.settings.lease
            place = yield from self._waiting(party, deadline, grace, passes)
            if passes:
                with suppress(LockUnavailable):  # it is removed later; the outcome is known
                    yield from party.leaving()
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
    ) -> Steps[int]:
        """Wait until all have come, and with ``passes`` until all pass; return the place.

        When all have come there are ``grace`` seconds more.
        """
        assert party.lease is not None
        token, action, seen = party.lease.token, self._action, set[int]()
        while True:
            now = Generation((yield from self._patiently(self._read, deadline)))
            if (place := now.said["passed"].get(str(token))) is not None:
                return int(place)
            if now.broken or token not in now.arrived:
                raise self._over(now, token)
            is_party, is_last = token in now.full, now.full[-1:] == [token]
            if is_party and not passes:
                return now.full.index(token)
            if is_party and deadline is not None:  # it was for the others to come
                deadline, grace = deadline + grace, 0.0
            is_over = deadline is not None and clock() >= deadline
            is_late = bool(now.full) and not is_party  # others are in it, and it waits for the next
            if is_late and is_over:
                party.leave_soon()
                raise self._error("others were in it, and this party waited for too long")
            seen = set() if is_late else set(now.full) or seen.union(now.arrived)
            if gone := {one for one in seen - now.present.keys() if one > now.since}:
                plan = now.say(broken=f"{len(gone)} of its parties had gone")
            elif is_party and {*now.full} - {token} <= now.ready:
                if is_last and action is not None:
                    yield from self._run_action(action, party)
                    action = None
                plan = now.let_pass()
            elif not now.full and now.arrived.index(token) + 1 == now.parties:
                plan = now.say(full=now.arrived[: now.parties])
            elif is_over:
                plan = now.say(broken=f"{current_owner()} waited for too long")
            else:
                # The last one says so by letting all pass, after its action: no other one can.
                if is_party and token not in now.ready and not (is_last and action):
                    yield from self._say_ready(party, deadline)
                key = None if is_last or token == now.arrived[0] else GENERATION
                yield from self._wait_for_change(now.snapshot, deadline, key)
                continue
            yield from self._say(plan, deadline)

    def _run_action(self, action: Callable[[], object], party: Membership) -> Steps[None]:
        try:
            yield Nested(action, partial(asyncio.to_thread, action))
        except BrokenBarrierError as error:  # of another one: this one is not broken
            self._give_up(party, error)
            raise

    def _say_ready(self, party: Membership, deadline: float | None) -> Steps[None]:
        with suppress(LockUnavailable, LockLost):  # the next look tells
            yield from party.updating({"ready": True}, deadline=deadline)

    def _say(self, plan: Plan, deadline: float | None) -> Steps[None]:
        """Make a change; if others were faster, the next look tells."""
        ask = partial(self._store.apply, self._directory, plan.changes, plan.conditions)
        yield from self._patiently(partial(self._ask, ask), deadline)

    def _give_up(self, party: Membership, error: BaseException) -> None:
        """Leave in the background, and break the generation of the party in the same change."""
        if (lease := party.lease) is not None:
            why = f"{current_owner()} gave up: {error!r}"[:1000]
            party.leave_soon(partial(self._break, why, lease.token))

    def _keep(self, mark: Membership | None) -> None:
        """Keep the barrier broken for as long as ``mark`` is there; with None, no longer."""
        old, self._mark = self._mark, mark
        if old is not None and old is not mark:
            old.leave_soon()

    def _over(self, now: Generation, token: int) -> Exception:
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
        party, self._party = self._party, None
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
