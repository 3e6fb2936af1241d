"""The contract of every backend, and the default way of waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from django.core.checks import CheckMessage

from distlock.backends.background import BlockingCalls, Cleanup, answer_due
from distlock.backends.settings import BackendSettings
from distlock.backends.store import RecordStore
from distlock.concurrency.clock import backoff_until
from distlock.concurrency.steps import Call, Sleep, Step, Steps
from distlock.exceptions import NotSupported
from distlock.types.lease import Claim, Lease, LockInfo, State, SweepResult
from distlock.types.query import LockQuery, Page, page_of

S = TypeVar("S", bound=RecordStore)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. It is known before the backend is connected to."""

    #: a lock may have a lease of its own length
    lease_lengths: bool = True
    #: in seconds; a lock's lease may be no shorter
    shortest_lease: float = 0.0
    #: a lease that has ended is shown as expired until a sweep, or the next holder, clears it
    shows_expired: bool = True
    #: a named owner may carry a hold over from one process to another
    named_owners: bool = False
    #: a hold goes on when the process that took it has ended, until its time is over
    outlives_process: bool = True
    #: ``info()`` tells who waits
    waiters: bool = False
    #: waiters of several processes are served first come, first served
    fair: bool = False
    #: a transaction can be made to commit only while a lock is held
    atomic: bool = False
    #: renew() takes any length for a lease that is held; if it comes late, it makes none shorter
    extends: bool = False
    #: a request may reach the backend long after it was given up
    late_requests: bool = False


#: The steps of a wait for a lock. They end with the lease, or with None: someone else had the lock
#: until the deadline, or was next in line for it. Closed, or ended by any error, they leave nothing
#: behind.
PendingLease: TypeAlias = Steps[Lease | None]


class LossReason(StrEnum):
    """Why a hold is lost; a backend may have others, in its own words."""

    BROKEN = "it was broken"
    EXPIRED = "its lease ended before it was renewed"
    OVERDUE = "it was held for as long as at_most allows, and this process has given it up"
    #: said before anybody has asked who has the lock now, see Hold.ask_loss_reason()
    GONE = "it was broken, or taken over after its lease had ended"
    TAKEN_AWAY = "it was broken, or taken over"
    HANDED_OVER = "it was taken under its owner's name in another process"


class Listener(Protocol):
    """The callbacks of a backend that learns something of a lease by itself."""

    def lease_lost(self, lease: Lease, reason: str) -> None:
        """Note that a lease is gone."""

    def lease_orphaned(self, nonce: str) -> None:
        """Note that all who hold a lease have ended, and will not release it."""


#: all backends in this process
all_backends: WeakSet[BaseBackend] = WeakSet()


class BaseBackend(ABC):
    """A place where locks live.

    Every method that asks the backend may raise :class:`~distlock.LockUnavailable`, and raises it
    only when the backend could not be asked: it never means that someone else has the lock.
    No driver's exception passes. ``deadline`` is of :func:`distlock.concurrency.clock.clock`; None
    waits forever, or, where nothing is waited for, for as long as the backend gives an answer. A
    blocking method ends by then, or some hundredths of a second later. :meth:`enqueue` and
    :meth:`attempt` take the caller's own deadline, see
    :func:`distlock.backends.background.answer_due`.

    The threads of a process may share one backend.
    """

    #: names of ``OPTIONS`` with their defaults; others are refused
    default_options: ClassVar[Mapping[str, Any]] = {}
    #: whether ``LOCATION`` means something here
    uses_location: ClassVar[bool] = False
    #: what it can do; an instance may have its own, before it is connected
    capabilities: Capabilities = Capabilities()

    #: pauses between two looks at a lock that is waited for, in seconds
    first_pause: ClassVar[float] = 0.005
    longest_pause: ClassVar[float] = 0.25

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Check ``params``, the dictionary ``DISTLOCK[alias]``; nothing is connected to yet.

        It is called again in the child of a fork, where what the object had is the parent's.

        Raises ``ImproperlyConfigured`` that names ``DISTLOCK[alias]``.
        """
        self.alias = alias
        self._params = params
        self.settings = BackendSettings.parse(
            alias, params, self.default_options, uses_location=self.uses_location
        )
        self.listener: Listener | None = None
        #: what tasks ask, and what they release; what has to be taken back in the background
        self.calls = BlockingCalls(self.settings)
        self.release_calls = BlockingCalls(self.settings, releases=True)
        self.cleanup = Cleanup(self)
        #: the semaphores and read/write locks beside its locks, once somebody has asked for them
        self.shared: BaseBackend | None = None
        all_backends.add(self)

    def begin_in_child(self) -> None:
        """Have nothing of the parent's, in the child of a fork: ``__init__`` is called once more.

        Users, and this package, keep a backend over a fork, or its store, which _make_store() makes
        again. They do not keep other objects below it.
        """
        alias, params, store = self.alias, self._params, self.__dict__.get("_store")
        kept = {} if store is None else {"_store": store}
        self.__dict__ = {"alias": alias, "_params": params, **kept}  # as an interrupt leaves it
        if store is not None:
            store.__dict__ = {}  # if it cannot be made again it is of no use, and hangs nobody
        self.__init__(alias, params)  # type: ignore[misc]

    def _make_store(self, kind: type[S], *args: Any) -> S:
        """Return the store for __init__(); in the child of a fork the same object, made again."""
        kept: S | None = self.__dict__.get("_store")
        store = kind.__new__(kind) if kept is None else kept
        store.__init__(*args)  # type: ignore[misc]
        return store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}>"

    @property
    def store(self) -> RecordStore:
        """The small records that recipes are built on, beside the locks; asks nobody yet.

        NotSupported where the backend has none.
        """
        raise NotSupported(
            f"DISTLOCK[{self.alias!r}]: {type(self).__name__} keeps locks only, and no records for"
            " semaphores and the like"
        )

    # Taking and leaving

    @abstractmethod
    def try_acquire(self, claim: Claim, deadline: float | None = None) -> Lease | None:
        """Take the lock if that is possible now; None if someone else has it.

        It is possible when the lock is free, when its lease has ended, when it is held by this
        very claim, and when it is held by a named owner who asks again; in the last two cases the
        hold goes on under a new token. It is kept for ``claim.reserved`` seconds from then on.

        Each grant of a name has a greater token than all before it, also after the server has lost
        its newest data. A refusal notes who has the lock in ``claim.refused_by``, if it is known.
        """

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        """Return the steps of a wait for the lock, until ``deadline`` (None: forever).

        The lock is taken at once if that is possible. :func:`distlock.concurrency.steps.run` and
        ``arun`` make the steps, for a thread and for an asyncio task. However they end without a
        lease, the wait is cancelled and nothing is left behind, as far as the backend could be
        asked; :meth:`cancel` does the rest.

        The default asks again and again. Backends that know a better way override it.
        """
        pauses = backoff_until(deadline, self.first_pause, self.longest_pause)
        while True:
            lease: Lease | None = yield self.attempt(claim, deadline)
            # No pause is left after the last attempt, which is made at the deadline.
            if lease is not None or not (pause := next(pauses)):
                return lease
            yield Sleep(pause)

    def attempt(self, claim: Claim, deadline: float | None) -> Step:
        """Return the step that tries once to take the lock; its result is the lease or None.

        If a task is cancelled in it, what was granted is cancelled in the background.
        """
        undo = partial(self.cleanup.add, claim)
        due = answer_due(deadline)
        return Call(partial(self.try_acquire, claim), due, undo, executor=self.calls)

    @abstractmethod
    def renew(self, leases: Sequence[Lease], deadline: float | None = None) -> Mapping[str, bool]:
        """Let the leases run for their full duration again, counted from now.

        Returns, by nonce, whether a lease was still the current hold and runs on (True) or is lost
        (False). One that is missing from the answer could not be asked for and may be tried again.
        """

    @abstractmethod
    def release(self, lease: Lease, deadline: float | None = None) -> bool:
        """Free the lock if it is held by exactly this lease; False if it no longer was."""

    @abstractmethod
    def reserve_for(self, lease: Lease, seconds: float, deadline: float | None = None) -> bool:
        """Leave the lock, but let it stay taken, without a holder, for ``seconds`` from now.

        Nobody can enter it in that time, not even the owner who left it; people still see who that
        was. The token stays as it is. False if the lock no longer was held by exactly this lease.
        Doing it twice does no harm.
        """

    @abstractmethod
    def cancel(self, claim: Claim, deadline: float | None = None) -> None:
        """Free the lock if it was granted to exactly this claim.

        For claims whose outcome is unknown because the answer was lost or nobody waits for it any
        more. Doing it twice does no harm.
        """

    def discard_local(self, lease: Lease) -> None:  # noqa: B027 - most keep nothing
        """Drop whatever this process keeps for a lease that was lost. No waiting, no errors."""

    def tell_lost(self, lease: Lease, reason: str) -> None:
        """Tell the listener, if there is one, that a lease is gone."""
        if self.listener is not None:
            self.listener.lease_lost(lease, reason)

    def kept_until(self, claim: Claim) -> float:
        """Return how long, by the local clock, what a claim was granted may be kept for others.

        Where one renewal is for many leases, one that could not be freed goes on with them. So
        freeing it is tried for as long. Most backends renew each lease by itself: 0.
        """
        return 0.0

    # Looking

    @abstractmethod
    def verify(self, lease: Lease, deadline: float | None = None) -> bool:
        """Ask whether this lease is the current hold and has not ended."""

    def loss_reason(self, lease: Lease) -> str | None:
        """Return why a lease is gone if this process can tell without asking, else None."""
        return None

    @abstractmethod
    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        """Return what is known of the lock ``name``; a lock never taken is a free one."""

    def inspect_holder(self, name: str, deadline: float | None = None) -> LockInfo:
        """Return what :meth:`inspect` does, without who waits where that is another question."""
        return self.inspect(name, deadline)

    def inspect_holders(
        self, names: Sequence[str], deadline: float | None = None
    ) -> Mapping[str, LockInfo]:
        """Return by name what :meth:`inspect_holder` does, in few questions where that can be."""
        return {name: self.inspect_holder(name, deadline) for name in names}

    def stored(self, name: str, deadline: float | None = None) -> Mapping[str, str]:
        """Return what the backend has stored for a lock, as it is, for people; empty for nothing.

        The default shows nothing: not every backend has more than :meth:`inspect` tells.
        """
        return {}

    def is_held(self, claim: Claim, deadline: float | None = None) -> bool:
        """Ask whether anybody holds the lock that a claim is for."""
        return self.inspect_holder(claim.name, deadline).state is State.HELD

    @abstractmethod
    def list(self, prefix: str = "", deadline: float | None = None) -> Iterable[LockInfo]:
        """Return, by name, what is held or expired under names that begin with ``prefix``."""

    def page(self, query: LockQuery, deadline: float | None = None) -> Page:
        """Return some of the locks in use, and how many there are.

        The default reads all of them; backends that may have many do better.
        """
        return page_of(self.list("", deadline), query)

    # Clearing

    @abstractmethod
    def force_release(self, name: str, token: int, deadline: float | None = None) -> Lease | None:
        """Break the hold of ``name`` that has this token.

        Returns the broken lease (its local deadline means nothing), or None when that hold is no
        longer the one.
        """

    @abstractmethod
    def sweep(self) -> SweepResult:
        """Clear what nobody will clear any more; trusts nothing but the end of the lease."""

    def frees_inside(self, database: str) -> bool:
        """Whether an open transaction of the caller on this database frees what is left in it.

        Then it is free for others when that commits, and not before.
        """
        return False

    def check_atomic(self, using: str | None, lease: Lease | None) -> None:
        """Raise what atomic() has to refuse, before a lock is taken for it; connects to nothing.

        ``lease`` is what the caller holds already, if anything: it may be in atomic() of that.
        """
        raise NotSupported(
            f"DISTLOCK[{self.alias!r}]: {type(self).__name__} keeps its locks outside the database,"
            " so it cannot tie a transaction to one. Give the protected rows a fencing token"
            " (distlock.fencing.FencedModel) or use a lock of the database backend."
        )

    def atomic(
        self, lease: Lease, using: str | None, others: Sequence[Lease] = ()
    ) -> AbstractContextManager[bool]:
        """Return a transaction that commits only while ``lease`` and ``others`` are held.

        The value of ``with`` says whether it is part of atomic() of another lock, and so commits
        later. Raises what check_atomic() raises.
        """
        self.check_atomic(using, lease)
        raise NotImplementedError

    def ensure_schema(self, deadline: float | None = None) -> bool:
        """Make what locks need, if it is missing; return whether it is certainly there now.

        For those who must take a lock before the project has been set up, and nobody else. Several
        may do so at once. LockUnavailable if it cannot be done.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most have no connection
        """Give connections back. The backend may be used again afterwards."""

    def checks(self) -> Iterable[CheckMessage]:
        """Return system-check messages about this backend's settings; asks nobody."""
        return ()

    def database_checks(self, databases: Collection[str]) -> Iterable[CheckMessage]:
        """Return system-check messages about the databases of these aliases; asks them."""
        return ()

    def deployment_checks(self) -> Iterable[CheckMessage]:
        """Return system-check messages about what would be better in production; asks nobody."""
        return ()
