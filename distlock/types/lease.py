"""The words for locks: owner, claim, lease, and what a backend knows of a lock."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Self

from distlock.concurrency.clock import clock

#: A lease is relied on for a thousandth less than the backend keeps it: the clocks of two machines
#: that are kept by NTP run apart by up to 500 millionths each (MAXFREQ in RFC 5905; adjtimex(2)).
RELIED_ON = 1 - 1e-3

#: How many readers may share a read/write lock; a writer takes the seats of them all.
ALL_SEATS = 2**31

#: Seconds, more than thirty years: databases count neither to infinity nor far beyond 9999.
LONGEST_LEASE = 1_000_000_000

#: characters of a description: the width of the column
MAX_DESCRIPTION = 1024


class Kind(StrEnum):
    """What a name is of; one name may be of a lock, a semaphore and a group, say."""

    LOCK = "lock"
    SEMAPHORE = "semaphore"
    RWLOCK = "rwlock"
    ELECTION = "election"
    GROUP = "group"
    BARRIER = "barrier"
    DOUBLE_BARRIER = "double-barrier"
    EVENT = "event"
    QUEUE = "queue"
    CONFIG = "config"
    TOPIC = "topic"
    NAMES = "names"
    PROGRESS = "progress"
    RATE_LIMITER = "rate-limiter"
    COUNT_DOWN_LATCH = "count-down-latch"
    COUNTER = "counter"


#: the kinds that are held as a lock is
LOCK_KINDS = (Kind.LOCK, Kind.SEMAPHORE, Kind.RWLOCK)


class LockKey(NamedTuple):
    """Which lock, semaphore, queue or the like it is: the alias of its backend, kind and name."""

    alias: str
    kind: Kind
    name: str

    @classmethod
    def of_directory(cls, alias: str, directory: str) -> LockKey:
        """Return the key whose ``directory`` this is; ValueError if it is none."""
        kind, _, name = directory.partition(":")
        return cls(alias, Kind(kind), name)

    @property
    def directory(self) -> str:
        """The directory of its records in a store; without a name, the prefix of the kind."""
        return f"{self.kind}:{self.name}"

    @property
    def backend_name(self) -> str:
        """Its name in the backend of its kind, see every_kind()."""
        return self.name if self.kind is Kind.LOCK else self.directory


@dataclass(frozen=True, slots=True)
class Owner:
    """The holder of a lock, or a waiter.

    ``key`` decides whether two owners are one; it holds a random nonce of the process, so that a
    reused process or thread id is never mistaken for its predecessor. ``host``, ``pid`` and
    ``thread``, the name of the thread or task, are for people.

    ``within`` are the keys of the pieces of work on the same thread that wait for this one: their
    holds are entered again. It is known in this process only.
    """

    key: str
    host: str = field(compare=False)
    pid: int = field(compare=False)
    thread: str = field(compare=False)
    within: tuple[str, ...] = field(default=(), compare=False, repr=False, kw_only=True)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its own key, and those it is within."""
        return (self.key, *self.within)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.thread}"

    def to_fields(self) -> dict[str, Any]:
        """Return what is stored of it where records are JSON."""
        return {"owner": self.key, "host": self.host, "pid": self.pid, "thread": self.thread}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Owner:
        """Return the owner of whom to_fields() told; KeyError, TypeError, ValueError if none."""
        host, pid, thread = str(fields["host"]), int(fields["pid"]), str(fields["thread"])
        return Owner(str(fields["owner"]), host, pid, thread)


@dataclass(frozen=True, slots=True)
class Waiting(Owner):
    """A waiter as the backend sees it, and for how many seconds it has waited, if known."""

    waited: float | None = field(default=None, compare=False)

    @classmethod
    def of(cls, owner: Owner, seconds: float) -> Self:
        """Return an owner as one who has waited for so long; a clock may have been set back."""
        return cls(owner.key, owner.host, owner.pid, owner.thread, max(seconds, 0.0))


#: A description and a call site, as backends store them in one text; see Claim.label.
_LABEL = re.compile(r"(?:(.*) )?\(at ([^()]+:\d+)\)", re.DOTALL)


class _Labelled:
    """The description in a backend, which is split from the call site."""

    __slots__ = ()
    description: str
    call_site: str

    def __post_init__(self) -> None:
        label = self.description
        if not self.call_site and label.endswith(")") and (match := _LABEL.fullmatch(label)):
            object.__setattr__(self, "description", match[1] or "")
            object.__setattr__(self, "call_site", match[2])


@dataclass(frozen=True, slots=True)
class LastHold(_Labelled):
    """The last holder of a free lock, and its end: "released", "expired" (swept) or "broken"."""

    owner: Owner
    since: datetime
    until: datetime
    ended: str
    description: str = ""
    call_site: str = ""


class Behind(NamedTuple):
    """How many threads and tasks of a process wait there behind its holder or its waiter."""

    host: str
    pid: int
    number: int


def new_nonce() -> str:
    """Return a name that nothing else has: of a claim, a session, a change."""
    return os.urandom(16).hex()


@dataclass(slots=True, unsafe_hash=True)
class Claim:
    """One request for a lock: owner, lock, and the seconds of a lease.

    It never changes. Python would take five times as long to make a frozen object.

    ``nonce`` names this very request. It is chosen before anything is sent, so that its answer is
    recognized even when the first reply was lost and the claim was sent again. ``renews`` says, for
    people to read, whether the lease will be renewed. ``at_least`` is for how many seconds the lock
    stays taken from its grant on, even if the holder dies.

    ``kind`` is what kind of lock that is. Of a semaphore or a read/write lock ``seats`` are wanted,
    of ``limit`` seats that there are; None takes the number that others have agreed on.

    ``call_site`` is the file and the line where the lock was asked for, where that is known, and
    ``label`` the description with it, as backends store it: ``nightly (at jobs/nightly.py:12)``.

    ``keeps_place``: a waiter stays in the queue when the answer is to wait on, and asks again under
    the same nonce.

    Two fields are the exception, which backends write. ``refused_by`` is the holder at the last
    refusal, if that answer named it. ``maybe_repeated``: a request was sent whose answer was lost,
    and which may be carried out after the one that was granted.
    """

    name: str
    owner: Owner
    duration: float
    description: str = ""
    nonce: str = field(default_factory=new_nonce)
    renews: bool = False
    at_least: float = 0.0
    kind: Kind = Kind.LOCK
    seats: int = 1
    limit: int | None = 1
    call_site: str = ""
    label: str = ""
    keeps_place: bool = False
    refused_by: Holder | None = field(default=None, compare=False, repr=False)
    maybe_repeated: bool = field(default=False, compare=False, repr=False)

    @property
    def reserved(self) -> float:
        """Seconds from its grant for which the backend keeps the lock if nothing more is heard."""
        return max(self.duration, self.at_least)

    @property
    def relied_on(self) -> float:
        """Seconds after a request was sent for which its holder relies on what was granted."""
        return self.duration * RELIED_ON

    def granted(self, token: int, sent_at: float) -> Lease:
        """Return the lease that answers this claim, sent at ``sent_at`` of the local clock."""
        return Lease(self, token, sent_at + self.duration * RELIED_ON)

    def key(self, alias: str) -> LockKey:
        """Return which lock it is for, in the backend of this alias."""
        return LockKey(alias, self.kind, self.name)


@dataclass(frozen=True, slots=True)
class Lease:
    """One grant of a lock: the ``claim`` it answers, its fencing ``token``, and when it ends.

    ``deadline`` is by the local clock, counted from before the request was sent, less the
    difference of two clocks. So it lies before the moment at which the server may give the lock to
    another.
    """

    claim: Claim
    token: int
    deadline: float

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self.claim.name

    @property
    def owner(self) -> Owner:
        """The present owner."""
        return self.claim.owner

    @property
    def duration(self) -> float:
        """Seconds that the lease lasts from each renewal on."""
        return self.claim.duration

    @property
    def nonce(self) -> str:
        """A random text that tells its claim from every other."""
        return self.claim.nonce

    @property
    def remaining(self) -> float:
        """Seconds left by the local clock, never negative."""
        return max(self.deadline - clock(), 0.0)

    def renewed(self, sent_at: float) -> Lease:
        """Return the same lease, renewed by a request that was sent at ``sent_at``."""
        return self.until(sent_at + self.claim.relied_on)

    def until(self, deadline: float) -> Lease:
        """Return the same lease, ending at another local deadline."""
        return Lease(self.claim, self.token, deadline)

    def lasting(self, seconds: float) -> Lease:
        """Return the same lease, to be renewed for that many seconds."""
        return Lease(replace(self.claim, duration=seconds), self.token, self.deadline)

    def log_fields(self, backend: str, *seconds: float | None) -> dict[str, Any]:
        """See log_fields(), about this lease."""
        claim = self.claim
        return log_fields(backend, claim.name, claim.kind, self.token, claim.owner, *seconds)


class State(StrEnum):
    """The state of a lock in a backend at the moment of the answer."""

    FREE = "free"
    HELD = "held"
    EXPIRED = "expired"  # the lease has ended, and nobody has taken the lock over or swept it


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownHold(_Labelled):
    """A hold as the backend sees it, see :class:`LockInfo`."""

    owner: Owner | None = None
    token: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    held_for: float | None = None
    remaining: float | None = None
    description: str = ""
    lease: float | None = None
    renews: bool | None = None
    renewed_at: datetime | None = None
    seats: int = 1
    call_site: str = ""


@dataclass(frozen=True, slots=True)
class Holder(_KnownHold):
    """One of those who hold a lock; None means that the backend does not know it.

    The fields are those of :class:`LockInfo`, ``description`` and the rest. ``seats`` are how many
    of a semaphore it has; of a read/write lock a writer has ALL_SEATS.
    """

    owner: Owner
    token: int | None = None

    @property
    def writes(self) -> bool:
        """Whether it is the writer of a read/write lock."""
        return self.seats == ALL_SEATS


@dataclass(frozen=True, slots=True)
class LockInfo(_KnownHold):
    """The state of one lock, by the backend's own clock (etcd: by the holder's).

    - ``name``, ``using``, ``kind``: which lock it is. ``kind`` tells a semaphore and a read/write
      lock from a lock.
    - ``state``: whether it is free, held, or its lease has expired.
    - ``owner``: who holds it.
    - ``token``: the fencing token; of a free lock the last one handed out, where it is known.
    - ``since``, ``held_for``: when it was acquired, and the seconds since then.
    - ``until``, ``remaining``: when the lease ends, and the seconds until then. These four and
      ``owner`` are None for a free lock, and where a backend has no such notion: the end of a
      ZooKeeper session is not known in advance.
    - ``description``: what it is held for.
    - ``lease``: seconds that the lease lasts from each renewal on; in ZooKeeper, where a session
      stands for it, seconds after which the servers end the session of a process that is gone.
    - ``renews``: whether its holder asked for renewals when it took the lock.
    - ``renewed_at``: when the lease was renewed last, or taken, if it never was; None in ZooKeeper.
      Where the holder has left and the lock stays taken (``at_least``), these three are about that
      rest: its length, False, and when the holder left. All three are None for a free lock.
    - ``waiters``: who waits, in the order in which they are served; None where the backend does not
      know. Of each process it is the one that waits there for all its threads and tasks. After
      these come, in ``Lock.info()``, the others of this process. Where the time is known, too, it
      is a :class:`Waiting`.
    - ``behind``: how many more wait in other processes, as these have said within the last five
      seconds.
    - ``slots``: how many seats a semaphore has, 0 if that is not set yet.
    - ``seats``: how many of them the first holder has.
    - ``other_holders``: several may hold a semaphore or a read/write lock. ``owner``, ``token`` and
      the like are of the one who has held it for longest; these are the rest.
    - ``last``: the last holder of a free lock, in a database that still has its row.
    - ``call_site``: the file and the line where it was taken, as ``shop/views.py:42``; "" where
      that is not known.
    """

    name: str
    using: str
    state: State = State.FREE
    waiters: tuple[Owner, ...] | None = None
    kind: Kind = Kind.LOCK
    slots: int = 1
    other_holders: tuple[Holder, ...] = ()
    behind: tuple[Behind, ...] = ()
    last: LastHold | None = None

    @property
    def waiting(self) -> int | None:
        """How many threads and tasks wait; None where the backend does not know who waits."""
        if self.waiters is None:
            return None
        return len(self.waiters) + sum(one.number for one in self.behind)

    @property
    def waiting_processes(self) -> int | None:
        """In how many processes they wait."""
        if self.waiters is None:
            return None
        behind = {(one.host, one.pid) for one in self.behind}
        return len({(one.host, one.pid) for one in self.waiters} | behind)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """All who hold the lock, by since when; empty for a free one."""
        if self.owner is None:
            return ()
        first = Holder(**{each.name: getattr(self, each.name) for each in fields(_KnownHold)})
        return (first, *self.other_holders)

    def of(self, holder: Holder) -> LockInfo:
        """Return what is known of one of those who hold it, without the others."""
        known = {each.name: getattr(holder, each.name) for each in fields(_KnownHold)}
        return replace(self, **known, other_holders=())

    @property
    def taken(self) -> int:
        """How many seats are taken; a lock has one."""
        return sum(holder.seats for holder in self.holders)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep: expired leases, and removed rows or nodes."""

    expired: int = 0
    removed: int = 0


#: The attributes of a lock in records of the log: see docs/locks.md. logging.LogRecord has none of
#: these names. They never change: people's filters, formatters and alerts know them.
LOG_FIELDS = ("lock", "kind", "backend", "token", "owner", "waited", "held")


def log_fields(
    backend: str,
    lock: str | None = None,
    kind: Kind | None = None,
    token: int | None = None,
    owner: Owner | None = None,
    *seconds: float | None,
) -> dict[str, Any]:
    """Return the ``extra`` of a record; None means unknown or not applicable.

    ``backend`` is its alias. ``seconds`` are for how many it was waited for and held.
    """
    waited, held = [one and round(one, 6) for one in seconds or (None, None)]
    who, what = owner and str(owner), kind and kind.value
    return dict(zip(LOG_FIELDS, (lock, what, backend, token, who, waited, held), strict=True))
