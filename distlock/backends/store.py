"""What a record store promises: small records that recipes are built on, in every backend.

A store keeps **records** in **directories**. A record has a key, a small JSON value, and perhaps a
session: it vanishes with its session. A directory is the unit of agreement: its revision grows with
every change, and a change may be made on the condition that others were not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from distlock.concurrency.pending import Pending
from distlock.exceptions import LockError, LockUnavailable, NotSupported
from distlock.types.lease import RELIED_ON, Lease, SweepResult
from distlock.types.values import encoded

#: Bytes of a value in JSON, at most. etcd takes requests of 1.5 MiB, ZooKeeper of 1 MiB.
MAX_VALUE = 64 * 1024
#: Characters of a key, and of the name of a directory: the longest lock name and its kind.
MAX_KEY, MAX_DIRECTORY = 255, 600
#: Records that can be looked at in one question. etcd takes 128 operations at once.
MOST_KEYS = 100


class TooLarge(ValueError):
    """A record has more than MAX_VALUE bytes of JSON."""


class SessionEnded(LockError):
    """A change was refused because the session that its records were to be bound to has ended."""


class Overtaken(LockUnavailable):
    """Others were faster each time that a directory was to be changed; it was not."""

    maybe_applied = False


@dataclass(slots=True, unsafe_hash=True)
class Session:
    """The owner of records that vanish with their process, or after a time.

    ``deadline`` is of the local clock, counted from before the session was opened or renewed: it
    lies before the moment at which the store may let the records vanish.
    """

    id: str
    seconds: float
    deadline: float

    def renewed(self, sent_at: float) -> Session:
        """Return the session as renewed by a request that was sent at ``sent_at``."""
        return Session(self.id, self.seconds, sent_at + self.seconds * RELIED_ON)


@dataclass(slots=True, unsafe_hash=True)
class Record:
    """A record as it was read; its value is an Unreadable if that cannot be read.

    ``created`` and ``revision`` are the revisions of the directory at which it was put for the
    first time since it was last absent, and at which it was put last. ``remaining`` is for how many
    seconds its session runs on unless it is renewed; None if it has none, or that is not known.
    """

    key: str
    value: Any
    created: int
    revision: int
    session: str | None = None
    remaining: float | None = None


class KeyRange(NamedTuple):
    """The first keys after a text that begin with a prefix, in their order: ``limit`` of them.

    ``reverse``: the last keys before that text, or of all without one, backwards.
    """

    prefix: str
    limit: int
    after: str = ""
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Peek:
    """What RecordStore.peek() is asked for; no prefix is empty.

    - ``first``: by prefix, how many of the records whose keys begin with it; the first ones in
      the order of their keys. So is the order of the records in the snapshot.
    - ``count``: the prefixes for ``Snapshot.counts``. Records of a session whose time is over
      do not count, even before the session is cleared.
    - ``listed``: the range for ``Snapshot.keys``, of records that are bound to no session.
    """

    first: Mapping[str, int] = field(default_factory=dict)
    count: Collection[str] = ()
    listed: KeyRange | None = None


class Having(NamedTuple):
    """Leaves out records of plain ASCII that begin so and have no such text of a-z0-9.@+-.

    In which case letters are does not matter. A store may leave out fewer, or none.
    """

    text: str
    beginning: str


@dataclass(slots=True, unsafe_hash=True)
class Snapshot:
    """The records of a directory at one moment, in the order in which they were created.

    ``revision`` is that of the last change, or greater, but less than that of the next one. It is
    for :class:`Unchanged`, and for watching what comes after it. ``now`` is the store's clock in
    microseconds since 1970, where it tells: revisions are at least as great as that was then.
    """

    directory: str
    revision: int
    records: Mapping[str, Record]
    now: int | None = None
    #: for peek(): by prefix, how many records have keys that begin with it
    counts: Mapping[str, int] = field(default_factory=dict)
    #: for peek(): the keys that were listed
    keys: Sequence[str] = ()

    @classmethod
    def of(
        cls, directory: str, revision: int, records: Iterable[Record], now: int | None = None
    ) -> Snapshot:
        """Return the snapshot of these records, which may come in any order."""
        ordered = sorted(records, key=lambda record: (record.created, record.key))
        return cls(directory, revision, {record.key: record for record in ordered}, now)

    def unchanged(self, key: str, *, lasting: bool = False) -> Condition:
        """Return the condition that a record is as it was found here, or is still absent.

        For ``lasting`` see Exists.
        """
        record = self.records.get(key)
        return Absent(key) if record is None else Exists(key, record.revision, lasting)


@dataclass(slots=True, unsafe_hash=True)
class Put:
    """Write a record, and bind it to a session or, with None, to none.

    Raises TooLarge if the value is larger than MAX_VALUE; ValueError or TypeError if it is no JSON,
    or nested too deeply. Dictionaries keep their order.
    """

    key: str
    value: Any
    session: str | None = None
    #: the value in JSON
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.text = text = encoded(self.value)
        if (size := len(text.encode())) > MAX_VALUE:
            raise TooLarge(
                f"the record {self.key!r} has {size} bytes of JSON; at most {MAX_VALUE} are kept"
            )


@dataclass(slots=True, unsafe_hash=True)
class Delete:
    """Remove a record, if it is there."""

    key: str


@dataclass(slots=True)
class MoveFirst:
    """Put the first record whose key begins with ``prefix`` under another key, for one apply().

    Unread: for stores that say so, see RecordStore.moves_first. Nothing is changed unless there is
    one whose value begins with ``before`` in JSON; it begins with ``after`` then. It is bound to no
    session. In ``key``, and in the keys and values of what is put with it, ``mark`` stands for the
    rest of its old key.
    """

    key: str
    prefix: str
    mark: str
    before: str
    after: str
    #: the record as it was; apply() writes this
    moved: Record | None = None


@dataclass(slots=True, unsafe_hash=True)
class Absent:
    """The directory has no record of this key."""

    key: str


@dataclass(slots=True, unsafe_hash=True)
class Exists:
    """The directory has a record of this key, and with ``revision`` in just this revision.

    ``lasting``: nobody has removed it since it was read, whether or not others have put it. The
    caller must know that. Then the store need look at this record only.
    """

    key: str
    revision: int | None = None
    lasting: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Unchanged:
    """Nothing was put into the directory, or deleted from it, since this revision.

    Records that vanished with a session may count as unchanged or as changed.
    """

    revision: int


Change: TypeAlias = Put | Delete | MoveFirst
Condition: TypeAlias = Absent | Exists | Unchanged
#: a directory, and the key of a record in it
Address: TypeAlias = tuple[str, str]


class Renewal(NamedTuple):
    """The result of renewing sessions. For those in none of the sets there was no answer."""

    alive: frozenset[str]
    ended: frozenset[str]
    present: frozenset[Address]
    missing: frozenset[Address]


#: Called after each change that this process has made, with the store, the directory and the new
#: revision. For distlock.testing.
observers: list[Callable[[RecordStore, str, int], object]] = []


class RecordStore(ABC):
    """The records of one backend.

    Every method may raise :class:`~distlock.LockUnavailable`, with ``maybe_applied`` if a change
    may have been made all the same, now or later. No driver's exception passes. ``deadline`` is of
    :func:`distlock.concurrency.clock.clock`; None means for as long as the backend gives an answer.
    Doing a thing again after an answer was lost is safe where its conditions say so.

    The threads of a process may share one store. The child of a fork asks its backend for another
    one, which has none of the sessions and watches of the parent's.
    """

    #: how many directories read_many() asks for in one question, and how many keys with ``having``
    at_once: ClassVar[int] = 1
    most_filtered: ClassVar[int] = MOST_KEYS
    #: whether MoveFirst may be among the changes of apply()
    moves_first: bool = False

    # Records

    @abstractmethod
    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        """Return the records of a directory; an unknown directory is an empty one.

        A record is left out only after it is gone for good: what is not in a snapshot, and was
        there before, will never be renewed into being again. So a process that finds a record
        missing may take its place.
        """

    def read_some(
        self,
        directory: str,
        keys: Collection[str],
        more: Callable[[Snapshot], Collection[str]],
        deadline: float | None = None,
    ) -> Snapshot:
        """Return all keys of a directory, the records with these keys, and perhaps others.

        ``more`` is called with that, and returns the keys of those others that are needed, too.
        See read(). Records that go meanwhile may be missing, though their keys are there.
        """
        found = self.read(directory, deadline)
        return replace(found, keys=[*found.records])

    def recall(self, directory: str, keys: Collection[str] = ()) -> Snapshot | None:
        """Return a directory as this process has seen it last, without asking; None if it has not.

        It may be out of date: a change that is made of it has to be Unchanged since. Records whose
        sessions have ended later may be in it all the same. With ``keys``: only these records, each
        as it was seen last; all of them, or None. Without, it has all keys, and what was read.
        """
        return None

    def look(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Snapshot:
        """Read only the records that have one of these keys, one at least and at most MOST_KEYS.

        It costs no more where the directory has many others. See read().
        """
        found = self.read(directory, deadline)
        records = {key: record for key, record in found.records.items() if key in keys}
        return replace(found, records=records)

    def get(self, directory: str, key: str, deadline: float | None = None) -> Record | None:
        """Return one record, None if there is none."""
        return self.look(directory, [key], deadline).records.get(key)

    @abstractmethod
    def peek(self, directory: str, peek: Peek, deadline: float | None = None) -> Snapshot:
        """Return the first records of a directory, and count others, as they were at one moment.

        It is for directories with many records: what is not asked for is not sent. ZooKeeper sends
        all keys. See read() for what is left out.
        """

    def read_many(
        self,
        directories: Collection[str],
        deadline: float | None = None,
        *,
        keys: Collection[str] = (),
        peek: Peek | None = None,
        having: Having | None = None,
    ) -> Mapping[str, Snapshot]:
        """Return by directory what read(), look() or peek() returns, in few questions where it can.

        With ``having`` there may be ``most_filtered`` keys.
        """

        def read(directory: str) -> Snapshot:
            if peek is not None:
                return self.peek(directory, peek, deadline)
            return self.look(directory, keys, deadline) if keys else self.read(directory, deadline)

        return {directory: read(directory) for directory in directories}

    def missing(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Collection[str]:
        """Return those of the keys, at most MOST_KEYS, whose records are gone for good; see read().

        They need not be missing at one moment.
        """
        return {*keys} - self.look(directory, keys, deadline).records.keys() if keys else ()

    @abstractmethod
    def apply(
        self,
        directory: str,
        changes: Sequence[Change],
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> int | None:
        """Make all changes if all conditions hold, or none; the new revision, None if one fails.

        The conditions are of the moment before the changes. No key is in two of the changes.

        It happens in one step that no pause or death of this process can leave half done, or keep
        others waiting in. Revisions of a directory grow in the order of the changes, also after
        a failover to a copy that missed some, and after the directory was swept: where the store
        counts by itself it takes the greater of the last revision + 1 and its clock in
        microseconds. The revision of a change is that of every record it has put.

        Raises SessionEnded, with nothing changed, if a record is to be bound to a session that has
        ended.
        """

    def _tell_observers(self, directory: str, revision: int) -> None:
        """Say that apply() has made a change."""
        for observer in tuple(observers):
            observer(self, directory, revision)

    @abstractmethod
    def directories(self, prefix: str = "", deadline: float | None = None) -> Iterable[str]:
        """Return the names, sorted, of the directories in use that begin with ``prefix``."""

    # Sessions

    @abstractmethod
    def open_session(self, seconds: float, deadline: float | None = None) -> Session:
        """Open a session that ends ``seconds`` after it was opened, or renewed last.

        Where sessions have one length (``Capabilities.lease_lengths``), ``seconds`` says how long
        it is relied on at most.
        """

    @abstractmethod
    def renew(
        self,
        sessions: Collection[str],
        records: Collection[Address] = (),
        deadline: float | None = None,
    ) -> Renewal:
        """Let sessions run for their full length again, and say which of the records are there.

        The records are looked at after the sessions were renewed, so one that is present will be
        there for as long as its session. A session that has ended stays ended. However many they
        are, they cost one statement or request, or as few as the backend can make of them.
        """

    @abstractmethod
    def end_session(self, session: str, deadline: float | None = None) -> None:
        """End a session; its records vanish at once. Doing it twice does no harm."""

    # Transactions of the caller

    def removing(
        self,
        directory: str,
        keys: Sequence[str],
        lease: Lease,
        using: str | None,
        *,
        before: Callable[[], object],
        lost: Callable[[], Exception],
    ) -> AbstractContextManager[Sequence[bool]]:
        """Return a transaction of the caller's that removes records as it commits.

        ``using`` is the database, None for that of the store. At its end ``before()`` is called,
        which may raise; then the records are removed, or ``lost()`` is raised if one is not there.
        So it commits with their removal, or not at all. It belongs to ``lease``, see durable().
        Its block gets a sequence that is empty until the commit; the hooks of the app come later.

        NotSupported where records are not kept in a database, or in another one.
        """
        raise NotSupported(
            f"atomic(using={using!r}): {directory!r} is not kept in a database, so no transaction"
            " of a database can be tied to it"
        )

    # Waking up

    @abstractmethod
    def watch(self, directory: str, since: int, key: str | None = None) -> Pending[None]:
        """Return what is answered, once, when a directory may have changed since a revision.

        With ``key``: when that one record was put or has gone. It asks nobody while the caller
        waits, and returns at once; abandon it to watch no more. The answer is a hint: it may come
        for nothing, or late, and after an outage all come. Only a read after it counts; so look now
        and then, too.
        """

    # Clearing

    @abstractmethod
    def sweep(self, deadline: float | None = None) -> SweepResult:
        """Clear sessions that have ended, with their records, and directories long empty."""


class _HasRevision(Protocol):
    @property
    def revision(self) -> int: ...


def holds(condition: Condition, revision: int, records: Mapping[str, _HasRevision]) -> bool:
    """Return whether a condition holds in a directory with this revision and these records."""
    if isinstance(condition, Absent):
        return condition.key not in records
    if isinstance(condition, Exists):
        found = records.get(condition.key)
        return found is not None and condition.revision in (None, found.revision)
    return revision == condition.revision
