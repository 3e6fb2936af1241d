"""An election: of several candidates one leads at a time, and when it ends the next one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, get_args

from distlock.backends.reading import inspect_holder
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Nested, Steps, despite, or_undo
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import BodyEnded, LockError, LockLost, LockNotHeld
from distlock.locking.base_lock import twins
from distlock.recipes.candidacy import Candidacy
from distlock.recipes.candidates import Candidate, Candidates, ElectionInfo, Order, Term, Terms
from distlock.recipes.following import Follower
from distlock.recipes.recipe import Block, Recipe, deadline_of
from distlock.runtime.hold import OnLost
from distlock.types.lease import Kind, LockInfo, State
from distlock.types.owners import new_owner
from distlock.types.values import (
    checked_callback,
    checked_data,
    checked_int,
    checked_label,
    checked_name,
)

#: Seconds that one who gives up has for telling the others.
_LAST_ANSWER = 1.0


class _CandidateState:
    """The state of an election in one process: a candidate, which does not stand yet."""

    def __init__(self, election: Election) -> None:
        owner = new_owner()
        name = f"{owner.host}:{owner.pid}:{owner.key.rpartition(':')[2]}"
        self.candidate = election._given or name
        said = {"name": self.candidate, "priority": election._priority, "data": election._data}
        self.new_candidacy = partial(Candidacy, election, said, election._order, election._on_lost)
        self.candidacy = self.new_candidacy()
        self.candidacy.stop()


class Election(Block, Recipe):
    """Of several candidates one leads at a time; when it ends, the next one does.

    ::

        with Election("scheduler") as election:  # waits until this process leads
            while election.leading:
                ...

    Leading is holding the lock ``"election:NAME"`` of the same backend, which belongs to this
    object, and not to a thread: so the term of a leader is the lock's fencing token, and it is
    renewed, and its loss is reported, as of a lock. Candidates are records that decide who is next,
    and nothing else. Each object is one candidate.

    ``order`` says who is next: "first" who came first; "succession" who has the greatest
    ``priority``, and of those who came first; "appointed" only one that was appointed by hand. A
    leader goes on until it resigns, is lost, or is asked to step down; with "appointed" that is so
    as soon as another one is appointed.
    """

    kind = Kind.ELECTION

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

        - ``name``: as for a Lock, but nine characters shorter.
        - ``candidate``: by which name this one can be appointed, at most 200 characters; by default
          its host, process id, and a number.
        - ``order``: all candidates at the same time must give the same, or get ValueNotAgreed.
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
        super().__init__(name, using)
        checked_name(self._directory)  # that of the leader's lock
        self._given = None if candidate is None else checked_label("candidate", candidate)
        self._priority, self._order, self._on_lost = priority, order, on_lost
        self._data = checked_data(data)
        self._state = PerProcess(_CandidateState)

    @property
    def candidate(self) -> str:
        """The name of this candidate."""
        return self._state(self).candidate

    @property
    def _candidacy(self) -> Candidacy:
        return self._state(self).candidacy

    # Leading

    def _campaign(self, blocking: bool = True, timeout: float | None = None) -> Steps[bool]:
        """Stand for election, and wait until this candidate leads; False if it does not.

        ``blocking`` and ``timeout`` are as for ``Lock.acquire()``. A candidate that gives up, with
        False or an error, no longer stands or leads. Once it stands, or if it has led before, a
        wait without a limit goes on through outages.

        Raises LockError if this candidate stands already, ValueNotAgreed if others stand with
        another order, LockUnavailable if the backend does not answer.
        """
        deadline = deadline_of(timeout, blocking=blocking)
        before = self._candidacy
        if before.goes_on:
            raise LockError(f"{self!r}: this candidate stands already, or leads already")
        state = self._state(self)
        this = state.candidacy = state.new_candidacy()

        def campaign() -> Steps[bool]:
            try:
                with despite(LockError):  # lost, and not left yet
                    yield from before.leaving(deadline_of(_LAST_ANSWER))
                if (yield from this.campaigning(deadline, patient=before.lease is not None)):
                    return True
                with despite(LockError):  # what cannot be done now is done later
                    yield from this.leaving()
                return False
            except GeneratorExit:
                raise
            except BaseException:  # it leads no more, and at once: the process may be ending
                with despite(LockError):
                    yield from this.leaving(deadline=deadline_of(_LAST_ANSWER))
                raise

        return (yield from or_undo(campaign(), lambda _: this.leave_soon()))

    campaign, acampaign = twins("campaign", _campaign)

    def _entering(self) -> Steps[None]:
        if not (yield from self._campaign()):
            raise LockNotHeld(f"{self!r}: this candidate was resigned while it stood")

    def _leaving(self, to: Candidate | str | None = None) -> Steps[None]:
        """Lead no more, so that the next one does at once; with ``to`` that is this candidate.

        Any thread or task may do this. With the order "appointed", ``to`` is appointed. One who
        stands and does not lead yet stands no more: its campaign() soon returns False.

        Raises LockNotHeld if this one does not lead, nor stands, LockLost if it had lost that.
        LockError if ``to`` does not stand, and then nothing is changed. LockUnavailable if the
        backend does not answer; the request is sent later.
        """
        this = self._candidacy
        if to is not None:
            this.check()
            yield from self._appointing(to)
        if this.lease is not None or not this.decided.resolve(None):  # else campaign() does it
            yield from this.leaving()

    resign, aresign = twins("resign", _leaving, leaves=True)

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Steps[Any]:
        """Campaign, call a ``function`` while this one leads, resign, and return what it returned.

        Further arguments are those of the function. For ``arun()`` it is a coroutine function. If
        this one leads no more when the function ends, without an error or with LockLost, it
        campaigns again. Any other error is raised. Raises TypeError if it is no function, and what
        campaign() and resign() raise.
        """
        if not callable(function):
            raise TypeError(f"function must be callable, not {function!r}")
        work = partial(function, *args, **kwargs)
        while True:
            before = self._candidacy
            try:
                yield from self._entering()
                result = yield Nested(work, work)
                if self.leading:
                    with despite(LockError):  # the work was done; the rest is done later
                        yield from self._leaving()
                    return result
            except BaseException as error:  # whatever ends it, the next one must lead
                # The loss of a lock around this ends it, and so does any before this one has led.
                is_own = isinstance(error, LockLost) and not isinstance(error, BodyEnded)
                if is_own and self._candidacy.lease and not self.leading:
                    continue
                # A candidate that stood before, or leads, was not begun here.
                if self._candidacy is not before and not self._ends_elsewhere(error):
                    with despite(LockError):
                        yield from self._leaving()
                raise

    run, arun = twins("run", _run)

    # Knowing

    @property
    def leading(self) -> bool:
        """Whether this candidate leads, by what this process knows."""
        return self._candidacy.leading

    @property
    def term(self) -> int:
        """The fencing token of the leader: it grows with every term. LockNotHeld or LockLost."""
        return self._candidacy.check().token

    def check(self) -> None:
        """Raise LockNotHeld or LockLost unless this candidate leads. Asks no backend."""
        self._candidacy.check()

    def _verify(self) -> Steps[None]:
        """See check(), but ask the backend. Raises LockUnavailable if it does not answer."""
        self.check()
        yield Nested(self._candidacy.lock.verify, self._candidacy.lock.averify)

    verify, averify = twins("verify", _verify)

    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Open a transaction that can commit only while this candidate leads; see Lock.atomic()."""
        refuse_reentry()
        lease, lock = self._candidacy.check(), self._candidacy.lock
        lock._backend.check_atomic(using, lease)
        with lock._backend.atomic(lease, using):
            yield self
            lock.check()  # what this process knows to be lost must not be committed

    def _info(self) -> Steps[ElectionInfo]:
        """Return who leads, who stands in which order, who was appointed, and who has led.

        Raises LockUnavailable if the backend does not answer.
        """
        found = Candidates((yield self._read()))
        inspect = partial(inspect_holder, locks[self.using], self._directory)
        lock: LockInfo = yield self._ask(inspect)
        return found.info(self.name, self.using, lock.token if lock.state is State.HELD else None)

    info, ainfo = twins("info", _info)

    def _leader(self) -> Steps[Candidate | None]:
        """Return who leads; a moment later it may be another one.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._info()).leader

    leader, aleader = twins("leader", _leader)

    def _candidates(self) -> Steps[tuple[Candidate, ...]]:
        """Return who stands, in the order in which they lead.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._info()).candidates

    candidates, acandidates = twins("candidates", _candidates)

    def _history(self) -> Steps[tuple[Term, ...]]:
        """Return the last 50 terms, newest first: who led, from when to when, why that ended.

        Raises LockUnavailable if the backend does not answer.
        """
        return (yield from self._info()).history

    history, ahistory = twins("history", _history)

    def changes(self, timeout: float | None = None) -> Follower[Term]:
        """Yield the term of the leader of now, and then each that begins or ends, in order.

        For ``timeout`` seconds, or forever, and through outages. Each beginning and each end comes
        once; an observer that falls more than 50 terms behind misses some.
        """
        return Terms(self, deadline_of(timeout))

    achanges = changes

    # Deciding by hand

    def _appoint(
        self, candidate: Candidate | str | None, *, reason: str = "", who: str = ""
    ) -> Steps[None]:
        """Appoint the ``candidate`` that is to lead next; ``None`` appoints nobody.

        With the order "appointed" nobody else may lead then, and who leads is asked to step down.
        With the other orders this one follows the leader of now, unless it loses its place before.

        It is written to the audit log, with ``reason`` and ``who`` did it: the system's user, if
        that is not said.

        Raises LockError if it does not stand, LockUnavailable if the backend does not answer.
        """
        yield from self._appointing(candidate)
        named = "nobody" if candidate is None else candidate
        if isinstance(named, Candidate):
            named = f"{named.name}, token {named.token}"
        self._record("appoint", f"Appointed: {named}.", reason, who)

    def _appointing(self, candidate: Candidate | str | None) -> Steps[None]:
        if not isinstance(candidate, Candidate | None):
            checked_label("candidate", candidate)
        yield self._change(Candidates.plan(Candidates.appointing, candidate, self))

    appoint, aappoint = twins("appoint", _appoint)

    def _step_down(self, term: int, *, reason: str = "", who: str = "") -> Steps[bool]:
        """Ask the leader of a ``term`` to step down; False if it does not lead any more.

        For the leader this is a loss. It keeps others out until it has resigned, or its lease has
        ended: it is no longer renewed. Where its process does not answer, see force_release(). It
        is written to the audit log, see appoint().
        """
        step = Candidates.plan(Candidates.recalling, checked_int("term", term))
        found: Term | None = (yield self._change(step)).result
        if found is not None:
            text = f"Asked to step down: {found.candidate}, term {term}, owner {found.owner}."
            self._record("step-down", text, reason, who)
        return found is not None

    step_down, astep_down = twins("step_down", _step_down)

    def _force_release(self, term: int, *, reason: str = "", who: str = "") -> Steps[bool]:
        """Break the lock of the leader of a ``term``; False if it does not lead any more.

        See Lock.force_release().
        """
        lock, term = self._candidacy.lock, checked_int("term", term)
        broken = yield from lock._breaking(term, reason=reason, who=who)
        if broken:
            yield self._change(Candidates.plan(Candidates.ending, term, "broken"))
        return broken

    force_release, aforce_release = twins("force_release", _force_release)
