"""How those who are at a barrier come to one outcome, by the records of its directory.

In the directory are

- ``h/NONCE``: a party, from when it comes until it has read the outcome. Its token is the revision
  at which it came. When all have come, each says that it is still there (``ready``). So one that
  was killed while it waited, and was started again, is not counted twice.
- ``generation``: ``parties``, how many it is for; ``since``: who came after this revision is of the
  present generation, all others are of earlier ones; ``full``: the tokens of the parties, once so
  many have come; ``broken``: why it is broken; ``passed``: the places of those who have passed, for
  as long as their own records are there.

Each change of ``generation`` is made on the revision at which it was read. So of the last one who
comes and one whose time is over, say, one decides for all, and the other one reads what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import BrokenBarrierError
from typing import Any, TypeVar

from distlock.backends.recipe_records import GENERATION, Joined, Plan
from distlock.backends.seats import Seats
from distlock.backends.store import Absent, Exists, Put, Snapshot, Unchanged
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import Either, Steps
from distlock.core.manager import undo
from distlock.exceptions import LockLost, LockUnavailable, ValueNotAgreed
from distlock.recipes.membership import Membership
from distlock.recipes.recipe import Recipe
from distlock.recipes.semaphore import checked_count
from distlock.recipes.twins import twins
from distlock.types.lease import Holder
from distlock.types.owners import current_owner

T = TypeVar("T")

#: The tokens of all parties are in one record.
_MOST_PARTIES = 500
#: So many of those who wait look at every change, and see that a party has gone. The others wait
#: for the outcome only: else the requests would grow with the square of the parties.
_WATCHERS = 2


@dataclass(frozen=True, slots=True)
class BarrierInfo:
    """What a barrier looks like now.

    - ``parties``: how many it is for; None if nobody has said.
    - ``waiting``: who has come and has not passed, in the order in which they came; of a
      DoubleBarrier also those who are inside.
    - ``broken``: why it is broken; None if it is not.
    """

    name: str
    using: str
    parties: int | None
    waiting: tuple[Holder, ...]
    broken: str | None


class Generation:
    """What a snapshot says of a barrier, and the plans that can be made of that."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.present = {record.created: record for record in Seats(snapshot).holders}
        self._record = snapshot.records.get(GENERATION)
        value = {} if self._record is None else self._record.value
        self.parties: int | None = value.get("parties")
        self.since: int = value.get("since", 0)
        self.full: list[int] = value.get("full", [])
        self.why_broken: str | None = value.get("broken")
        self.passed: dict[str, int] = value.get("passed", {})
        #: the tokens of those who are of the present generation, in the order in which they came
        self.arrived = [token for token in self.present if token > self.since]

    @property
    def broken(self) -> bool:
        """Whether it is broken. When all who know of that are gone, the next one begins anew."""
        return self.why_broken is not None and bool(self.arrived)

    def is_open_for(self, token: int) -> bool:
        """Return whether it is not decided yet what becomes of a party."""
        return self._record is not None and token > self.since and self.why_broken is None

    def are_ready(self, tokens: set[int]) -> bool:
        """Return whether these parties have said that they are there, after all had come."""
        parties = map(self.present.get, tokens)
        return all(one and one.value["data"].get("ready") == self.since for one in parties)

    # Plans

    def say(self, **said: Any) -> Plan:
        """Say something else of the generation, if nobody else has since it was read."""
        value = {
            "parties": self.parties,
            "since": self.since,
            "full": self.full,
            "broken": self.why_broken,
            "passed": self.passed,
            **said,
        }
        unread = {one: at for one, at in value["passed"].items() if int(one) in self.present}
        record = self._record
        same = Exists(GENERATION, record.revision) if record else Absent(GENERATION)
        return Plan([Put(GENERATION, {**value, "passed": unread})], [same])

    def begin(self, parties: int | None) -> Plan:
        """Begin a generation, of those who come from now on."""
        return self.say(parties=parties, since=self.snapshot.revision, full=[], broken=None)

    def fill(self) -> Plan:
        """Note who the parties are, if as many have come as there are to be."""
        enough = not self.full and len(self.arrived) >= (self.parties or 0)
        return self.say(full=self.arrived[: self.parties]) if enough else Plan()

    def let_pass(self) -> Plan:
        """Let all parties pass. Who came too late for them is of the next generation."""
        if not self.full or set(self.full) - self.present.keys():
            return Plan()
        places = {str(token): place for place, token in enumerate(self.full)}
        return self.say(since=self.full[-1], full=[], passed={**self.passed, **places})


class BaseBarrier(Recipe):
    """What barriers of both kinds do: come, wait for the others, pass together, break."""

    #: what the last one to come calls before all pass
    _action: Callable[[], object] | None = None
    #: whether the last one to come lets all pass, and not the last one to be ready
    _last_decides = False
    #: the party that keeps a broken barrier broken for as long as this object is there
    _mark: Membership | None = None

    def __init__(self, name: str, parties: int | None, using: str) -> None:
        super().__init__(name, using)
        if parties is not None and checked_count("parties", parties) > _MOST_PARTIES:
            raise ValueError(f"parties must be at most {_MOST_PARTIES}, got {parties}")
        #: for how many it is, as this process was told; None if it was not
        self.parties = parties

    def __del__(self) -> None:
        if self._mark is not None:
            self._mark.abandon()

    @property
    def n_waiting(self) -> int:
        """How many have come and have not passed; 0 if it is broken. See info()."""
        return len(self.info().waiting)

    @property
    def broken(self) -> bool:
        """Whether it is broken; see info()."""
        return self.info().broken is not None

    def _info(self) -> Steps[BarrierInfo]:
        """Return who waits, and whether it is broken."""
        now = Generation((yield self._read()))
        holders = Seats(now.snapshot).info(self.using).holders
        waiting = tuple(one for one in holders if one.token in now.arrived and not now.broken)
        why = now.why_broken if now.broken else None
        return BarrierInfo(self.name, self.using, now.parties, waiting, why)

    def _abort(self) -> Steps[None]:
        """Break it: who waits, and who comes before it is reset, gets BrokenBarrierError."""
        why = f"{current_owner()} aborted it"

        def decide(snapshot: Snapshot) -> Plan:
            now = Generation(snapshot)
            plan = now.say(parties=now.parties or self.parties, broken=why)
            return replace(plan, data={}) if not now.broken else Plan()

        mark = Membership(self, decide)
        yield from mark.joining()
        yield from self._keep(mark)

    def _reset(self) -> Steps[None]:
        """Begin anew: who waits gets BrokenBarrierError, and it is not broken any more."""

        def decide(snapshot: Snapshot) -> Plan:
            now = Generation(snapshot)
            return now.begin(now.parties) if now.arrived else Plan()

        yield self._change(decide)
        yield from self._keep(None)

    info, ainfo = twins("info", _info)
    abort, aabort = twins("abort", _abort)
    reset, areset = twins("reset", _reset)

    # Steps

    def _coming(self, party: Membership, deadline: float | None) -> Steps[None]:
        """Be a party of the present generation; BrokenBarrierError if it is broken."""
        joined: Joined = yield from party.joining(deadline)
        if joined.lease is None:
            raise self._error(joined.result)
        yield from self._keep(None)

    def _come(self, snapshot: Snapshot) -> Plan:
        now = Generation(snapshot)
        if now.broken:
            return Plan(result=now.why_broken)
        parties = self.parties or now.parties
        if parties is None:
            raise ValueNotAgreed(f"{self}: parties was not given, and nobody has said how many")
        if now.arrived and parties != now.parties:
            raise ValueNotAgreed(
                f"parties={parties}: {self} is for {now.parties}, by what those say who wait now."
                " Use the same number everywhere"
            )
        if now.parties == parties and now.why_broken is None:
            return replace(now.say(), changes=(), data={})
        begin = now.begin(parties)
        return replace(begin, conditions=[*begin.conditions, Unchanged(snapshot.revision)], data={})

    def _meeting(self, party: Membership, deadline: float | None, *, to_pass: bool) -> Steps[int]:
        """Wait until all have come, and with ``to_pass`` until all pass; return the place."""
        assert party.lease is not None
        token = party.lease.token
        seen, counted, acted, said = {token}, False, False, False
        snapshot: Snapshot = yield from self._read_patiently(deadline)
        while True:
            now = Generation(snapshot)
            if (place := now.passed.get(str(token))) is not None:
                return place
            if not now.is_open_for(token):
                raise self._over(now, token, said)
            if token in now.full and not counted:
                if not to_pass:
                    return now.full.index(token)
                counted = True
                if self._last_decides and deadline is not None:  # it was for the others to come
                    deadline = max(deadline, clock() + self._backend.settings.lease)
            is_over = deadline is not None and clock() >= deadline
            is_late = bool(now.full) and not counted  # it is of the next generation
            gone = set(now.full) or {one for one in seen if one > now.since}
            gone -= now.present.keys()
            seen = {token, *now.arrived}
            step: Callable[[Generation], Plan] | None = None
            if is_late and gone == {*now.full}:  # nobody is left who could break it
                # They are forgotten, and this party is of the next generation.
                step = partial(Generation.say, since=now.full[-1], full=[])
            elif is_late:
                if is_over:
                    yield from self._leave(party)
                    raise self._error("others were in it, and this party waited for too long")
            elif gone:
                step = partial(Generation.say, broken=f"{len(gone)} of its parties had gone")
            elif not now.full and now.arrived.index(token) + 1 == now.parties:
                step = Generation.fill
            elif now.full and now.are_ready({*now.full} - {token}):
                if self._action is not None and not acted:
                    acted = True
                    yield from self._acting(party, now)
                step, said = Generation.let_pass, True
            elif is_over:
                step = partial(Generation.say, broken=f"{current_owner()} waited for too long")
            if step is not None:
                yield from self._settling(token, now, step, deadline)
                snapshot = yield from self._read_patiently(deadline)
                continue
            is_last = now.full[-1:] == [token]
            # The last one says so by letting all pass, after the action: no other one can before.
            if counted and not said and not (is_last and self._last_decides):
                said = yield from self._getting_ready(party, now, deadline)
            watches = is_last or token in (now.full or now.arrived)[:_WATCHERS]
            key = None if watches else GENERATION
            snapshot = yield from self._read_later(snapshot, deadline, key=key)

    def _settling(
        self,
        token: int,
        seen: Generation,
        step: Callable[[Generation], Plan],
        deadline: float | None,
    ) -> Steps[None]:
        """Change the generation of a party, unless others have come, or decided, since it was seen.

        So if all have come just before the time of one of them was over, it goes on with them.
        """

        def decide(snapshot: Snapshot) -> Plan:
            now = Generation(snapshot)
            same = now.is_open_for(token) and now.full == seen.full
            return step(now) if same else Plan()

        yield from self._patiently(partial(self._change, decide), deadline)

    def _getting_ready(
        self, party: Membership, now: Generation, deadline: float | None
    ) -> Steps[bool]:
        """Say that this party is there; False if that has to be tried again after a look."""
        try:
            yield from party.updating({"ready": now.since}, deadline=deadline)
        except LockUnavailable:
            return False
        except LockLost:  # it is found to be gone at the next look
            pass
        return True

    def _acting(self, party: Membership, now: Generation) -> Steps[None]:
        action = self._action
        assert action is not None
        assert party.lease is not None
        try:
            yield Either(action, partial(asyncio.to_thread, action))
        except Exception as error:
            step = partial(Generation.say, broken=f"the action failed: {error!r}"[:1000])
            with suppress(LockUnavailable):  # then the others find this party gone
                yield from self._settling(party.lease.token, now, step, None)
                yield from self._keep(party)
            raise

    def _guarded(self, party: Membership, steps: Steps[T]) -> Steps[T]:
        """Make steps of a party; whatever they raise, the others do not wait for it."""
        try:
            return (yield from steps)
        except BrokenBarrierError:
            yield from self._keep(party)
            raise
        except BaseException as error:
            if party is not self._mark:
                undo(error, self._leave_soon, party)
            raise

    def _give_up(self, snapshot: Snapshot, *, token: int) -> Plan:
        """Plan to break the generation of a party whose record is removed in the same change.

        Others may have come and not have seen yet that it was there: they must not wait for it.
        """
        now = Generation(snapshot)
        if not now.is_open_for(token) or token not in (now.full or now.present):
            return Plan()
        return now.say(broken="one of its parties gave up")

    def _leave_soon(self, party: Membership) -> None:
        if (lease := party.lease) is not None:
            party.leave_soon(partial(self._give_up, token=lease.token))

    def _keep(self, mark: Membership | None) -> Steps[None]:
        """Keep a broken barrier broken by a party of this object, or no longer."""
        if mark is None or mark.lease is not None:
            old, self._mark = self._mark, mark
            if old is not None and old is not mark:
                yield from self._leave(old)

    def _leave(self, party: Membership) -> Steps[None]:
        with suppress(LockUnavailable):  # it is removed later; the outcome is known
            yield from party.leaving()

    def _over(self, now: Generation, token: int, said: bool) -> Exception:
        if now.why_broken is not None and token > now.since:
            return self._error(now.why_broken)
        if said and token not in now.present:
            return LockLost(f"{self}: this party was lost; whether it has passed is not known")
        return self._error("it was reset")

    def _error(self, why: str) -> BrokenBarrierError:
        return BrokenBarrierError(f"{self} is broken: {why}")
