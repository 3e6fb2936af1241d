"""An election: of several candidates one leads at a time, and when it ends the next one does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeVar, get_args

from distlock.backends.recipe_records import Plan
from distlock.backends.store import Snapshot
from distlock.concurrency.steps import Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.core.held import OnLost
from distlock.core.section import refuse_in_event_loop, run_under
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable
from distlock.recipes.candidacy import Candidacy
from distlock.recipes.candidates import (
    APPOINTED,
    BROKEN,
    HISTORY,
    Candidate,
    Candidates,
    ElectionInfo,
    Term,
)
from distlock.recipes.following import Follower
from distlock.recipes.recipe import deadline_of
from distlock.recipes.twins import twins
from distlock.types.arguments import (
    checked_callback,
    checked_data,
    checked_flag,
    checked_label,
    checked_token,
)
from distlock.types.lease import LockInfo, State

T = TypeVar("T")
Order = Literal["first", "succession", "appointed"]
logger = logging.getLogger("distlock")

#: Seconds between two attempts to ask a backend that does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: So often the records and the lock are read again if the leader changed in between.
_LOOKS = 5


class Election(Candidacy):
    """Of several candidates one leads at a time; when it ends, the next one does.

    ::

        with Election("scheduler") as election:  # waits until this process leads
            while election.leading:
                ...

    Leading is holding the lock ``"election:NAME"`` of the same backend, which belongs to this
    object, and not to a thread: so the term of a leader is the lock's fencing token, it is renewed
    as a lock is, and its loss is told before another one can lead. Candidates are records that
    decide who is next, and nothing else. Each object is one candidate.

    ``order`` says who is next: "first" who came first; "succession" who has the greatest
    ``priority``, and of those who came first; "appointed" only who was appointed by hand. Who
    leads goes on until it resigns, is lost, or is asked to step down; with "appointed" that is so
    as soon as another one is appointed.
    """

    def __init__(
        self,
        name: str,
        candidate: str | None = None,
        *,
        priority: int = 0,
        order: Order = "first",
        data: Mapping[str, Any] | None = None,
        on_lost: OnLost | None = None,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        """Describe an election and a candidate of it; nothing is asked, and nobody stands yet.

        - ``name``: as of a Lock, but nine characters shorter.
        - ``candidate``: by which name this one can be appointed, at most 200 characters; by default
          its host, process id, and a number.
        - ``order``: all who stand at the same time must say the same, or get ValueNotAgreed.
        - ``data``: what it says of itself, at most 4 KiB of JSON.
        - ``on_lost``: called on another thread, with the lease of the lock, when this one leads no
          more without having resigned, or is asked to step down.
        - ``using``: the alias of a backend.

        Raises TypeError or ValueError that names the argument and its value.
        """
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise TypeError(f"priority must be a whole number, not {priority!r}")
        if order not in get_args(Order):
            raise ValueError(f"order must be one of {get_args(Order)}, got {order!r}")
        checked_callback("on_lost", on_lost)
        if candidate is not None:
            checked_label("candidate", candidate)
        data = checked_data("data", data)
        super().__init__(name, candidate, priority, order, data, on_lost, using)

    # Leading

    def _campaign(self, blocking: bool = True, timeout: float | None = None) -> Steps[bool]:
        """Stand for election, and wait until this candidate leads; False if it does not.

        ``blocking`` and ``timeout`` are as of ``Lock.acquire()``. Who gives up, with False or an
        error, stands no more, and leads no more. Once it stands, a wait without a limit goes on
        through outages.

        Raises LockError if this candidate stands already, ValueNotAgreed if others stand with
        another order, LockUnavailable if the backend cannot be asked.
        """
        return self._entering(blocking, timeout)

    campaign, acampaign = twins("campaign", _campaign)

    def _resign(self, to: Candidate | str | None = None) -> Steps[None]:
        """Lead no more, so that the next one does at once; with ``to`` that is this candidate.

        Any thread or task may do this. With the order "appointed", ``to`` is appointed. One who
        stands and does not lead yet stands no more: its campaign() soon returns False.

        Raises LockNotHeld if this one does not lead, nor stands, LockLost if it had lost that.
        LockError if ``to`` does not stand, and then nothing is changed. LockUnavailable if the
        backend cannot be told; it is told later.
        """
        return self._leaving(to)

    resign, aresign = twins("resign", _resign)

    @refuse_in_event_loop
    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Campaign, call a function while this one leads, resign, and return what it returned.

        If it leads no more when the function ends, without an error or with LockLost, it
        campaigns again. Any other error is raised.
        """
        campaign: Callable[[], object] = self.campaign
        while True:
            lost = False

            def body() -> T | None:
                nonlocal lost
                try:
                    return function(*args, **kwargs)
                except LockLost:
                    if self.leading:  # it is about another lock
                        raise
                    return None
                finally:
                    lost = not self.leading

            result = run_under(self, campaign, body, _ignore)
            if not lost:
                return result  # type: ignore[return-value]
            campaign = self._campaign_again

    async def arun(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """See run(); the function is a coroutine function."""
        again = False
        while True:
            await arun(self._entering(again=again))
            again = True
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                lost = isinstance(error, LockLost) and not self.leading
                await self.__aexit__(type(error), error, None)
                if not lost:
                    raise
            else:
                lost = not self.leading
                with suppress(LockLost, LockNotHeld, LockUnavailable):  # as in _ignore()
                    await self.aresign()
                if not lost:
                    return result

    # Knowing

    @property
    def term(self) -> int:
        """The fencing token of the leader: it grows with every term. LockNotHeld or LockLost."""
        return self._checked().term

    def check(self) -> None:
        """Raise LockNotHeld or LockLost unless this candidate leads. Asks no backend."""
        self._checked()

    @refuse_in_event_loop
    def verify(self) -> None:
        """See check(), but ask the backend. Raises LockUnavailable if it does not answer."""
        self._checked()
        self._lock.verify()

    async def averify(self) -> None:
        """See verify()."""
        self._checked()
        await self._lock.averify()

    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Open a transaction that can commit only while this candidate leads; see Lock.atomic()."""
        self._checked()
        lease, backend = self._lock.lease, self._lock._backend
        backend.check_atomic(using, lease)
        with backend.atomic(lease, using):
            yield self
            self._lock.check()  # what this process knows to be lost must not be committed

    def _info(self) -> Steps[ElectionInfo]:
        """Return who leads, who stands in which order, who was appointed, and who has led."""
        for _ in range(_LOOKS):
            found = Candidates((yield self._read()), self._order)
            looking = partial(self._lock._backend.inspect, self._lock.name)
            lock: LockInfo = yield self._ask(looking)
            leader, owner, term = None, lock.owner, lock.token
            if lock.state is State.HELD and owner is not None and term is not None:
                leader = found.leader(owner, term)
                if leader is None and term > found.last_term:
                    continue  # it was read before that term began
            break
        return found.info(self.using, leader)

    info, ainfo = twins("info", _info)

    def _leader(self) -> Steps[Candidate | None]:
        """Return who leads; a moment later it may be another one."""
        return (yield from self._info()).leader

    leader, aleader = twins("leader", _leader)

    def _candidates(self) -> Steps[tuple[Candidate, ...]]:
        """Return who stands, in the order in which they lead."""
        return (yield from self._info()).candidates

    candidates, acandidates = twins("candidates", _candidates)

    def _history(self) -> Steps[tuple[Term, ...]]:
        """Return the last 50 terms: who led, from when to when, and why that ended."""
        return (yield from self._info()).history

    history, ahistory = twins("history", _history)

    def changes(self, timeout: float | None = None) -> Follower[Term]:
        """Yield the term of the leader of now, and then each that begins or ends, in order.

        For ``timeout`` seconds, or for ever, and through outages. Each beginning and each end comes
        once; whoever is told of so late that more than 50 terms have passed misses some.
        """
        return _Terms(self, deadline_of(timeout))

    achanges = changes

    # Deciding by hand

    def _appoint(self, candidate: Candidate | str | None, *, absent: bool = False) -> Steps[None]:
        """Appoint who is to lead next.

        With the order "appointed" nobody else may lead then, and who leads is asked to step down;
        ``None`` appoints nobody, and with ``absent`` the candidate need not stand. With the other
        orders this one follows the leader of now.

        Raises LockError if it does not stand.
        """
        checked_flag("absent", absent)
        if not isinstance(candidate, Candidate | None):
            checked_label("candidate", candidate)
        name = candidate.name if isinstance(candidate, Candidate) else candidate

        def decide(snapshot: Snapshot) -> Plan:
            found, owner = Candidates(snapshot, self._order), None
            if absent and found.order != APPOINTED:
                raise ValueError(f"absent={absent!r} is for the order 'appointed' only")
            if candidate is not None and not absent:
                owner = found.other(candidate, self).owner
            put, same = found.naming(name, owner, found.last_term)
            return Plan([put], [same])

        yield self._change(decide)

    appoint, aappoint = twins("appoint", _appoint)

    def _step_down(self, term: int) -> Steps[bool]:
        """Ask the leader of a term to step down; False if it does not lead any more.

        It is told as of a loss, and keeps others out until it has resigned, for the length of a
        lease at the most. Where its process does not answer, see force_release().
        """
        checked_token(term)

        def decide(snapshot: Snapshot) -> Plan:
            found = Candidates(snapshot, self._order)
            if not found.is_open(term):
                return Plan(result=False)
            put, same = found.ordering(step_down=term)
            return Plan([put], [same], True)

        return (yield self._change(decide)).result  # type: ignore[no-any-return]

    step_down, astep_down = twins("step_down", _step_down)

    @refuse_in_event_loop
    def force_release(self, term: int) -> bool:
        """Break the lock of a leader; False if it does not lead any more. See Lock."""
        return self._lock.force_release(term) and run(self._noting_that_broken(term))

    async def aforce_release(self, term: int) -> bool:
        """See force_release()."""
        broken = await self._lock.aforce_release(term)
        return broken and await arun(self._noting_that_broken(term))

    def _noting_that_broken(self, term: int) -> Steps[bool]:
        yield self._change(lambda found: Candidates(found, self._order).ending(term, BROKEN))
        return True

    # For run_under()

    release = resign

    def _campaign_again(self) -> None:
        run(self._entering(again=True))

    def _entered_here(self) -> tuple[str, int]:
        return self._lock._entered_here()


class _Terms(Follower[Term]):
    """One who is told of the terms of leaders."""

    keys = (HISTORY,)
    #: by the number of each term, whether it had ended when it was seen
    _known: dict[int, bool] | None = None

    def _news(self, snapshot: Snapshot) -> list[Term]:
        """Return the terms that have begun or ended since the last call."""
        terms, news = Candidates(snapshot).history(), []
        known, self._known = self._known, {one.term: bool(one.why) for one in terms}
        if known is None:  # what has ended by now is no news
            known = {one.term: True for one in terms if one.why}
        for one in terms:
            if one.term not in known:
                news.append(replace(one, until=None, why=""))
            if one.why and not known.get(one.term):
                news.append(one)
        return news


def _ignore(error: LockError) -> None:
    """The work was done; who led no more campaigns again, and what could not be told is later."""
