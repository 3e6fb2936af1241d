"""The records in ZooKeeper: their nodes, the sessions they are bound to, and reading them.

Below ``<root>/%records``, a name that no lock has, each directory has a node of its name, and below
that each record a node of its key. Each change in a directory also writes the directory's own node
in the same step: so its version counts the changes.

When a directory is made it gets a child ``%made-<nonce>``, too, which it keeps until it is swept. A
change that relies on a version checks that child: a directory that was swept and made again counts
from the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kazoo.protocol.serialization import Exists as Stat
from kazoo.protocol.serialization import GetChildren2, GetData, Sync

from distlock.backends.reading import count_keys, first_keys, list_keys
from distlock.backends.store import (
    Peek,
    Put,
    Record,
    RecordStore,
    Snapshot,
)
from distlock.backends.zookeeper.client import ZooKeeperClient, ZooKeeperSession
from distlock.backends.zookeeper.tree import escaped, unescaped
from distlock.concurrency.clock import clock
from distlock.types.values import Unreadable, decoded

#: of how many directories, and of how many records in each, SeenLast keeps something
_MOST_DIRECTORIES, _MOST_RECORDS = 100, 100
#: how many records of how many bytes are recalled with their values
_FEW_RECORDS, FEW_BYTES = 20, 1000
#: stands for a value that is not kept
NOT_KEPT = Unreadable("", "it is not kept")

_MADE = "%made-"
#: comes before the value in the data of a record; nothing before it can be nested
_VALUE = b'"value":'
_DIRECTORY = re.compile(rb"([0-9a-f]{32}) ([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class DirectoryNode:
    """The node of a directory as it was read; ``stat`` is None if it was not there."""

    path: str
    #: the nonces of its making and of its last change
    made: str = ""
    change: str = ""
    stat: Any = None

    @classmethod
    def read(cls, path: str, data: bytes, stat: Any) -> DirectoryNode:
        """Understand a node; ValueError if it is none of ours."""
        found = _DIRECTORY.fullmatch(data or b"")
        if not found:
            raise ValueError(f"the node {path} is not a directory of records")
        return cls(path, found[1].decode(), found[2].decode(), stat)

    @property
    def revision(self) -> int:
        return revision_of(self.stat)

    def record(self, key: str) -> str:
        """Return the path of a record."""
        return f"{self.path}/{escaped(key)}"


def revision_of(stat: Any) -> int:
    """Return the revision of a directory from the stat of its node; None if it is not there.

    ``pzxid`` is when a child was made or deleted last, be it by the end of a session.
    """
    return 0 if stat is None else int(max(stat.mzxid, stat.pzxid))


def directory_data(made: str, change: str) -> bytes:
    """Return the data of the node of a directory."""
    return f"{made} {change}".encode()


def mark_of(directory: str, made: str) -> str:
    """Return the path of the child that tells a directory from one made earlier."""
    return f"{directory}/{_MADE}{made}"


@dataclass(frozen=True, slots=True)
class RecordNode:
    """The node of a record as it was read."""

    path: str
    value: Any = field(compare=False)
    session: str | None
    #: when the record was created, which may be before the node was made
    created: int
    czxid: int
    revision: int
    #: how often the node was written since it was made
    version: int
    #: the session with the servers that the node is bound to, 0 for none
    owner: int
    #: the bytes of its data
    size: int = field(compare=False)

    @classmethod
    def read(cls, path: str, data: bytes, stat: Any) -> RecordNode:
        """Understand a node; ValueError if it is none of ours."""
        try:
            fields = decoded(data)
            if isinstance(fields, Unreadable):
                head, _, text = data.partition(_VALUE)
                fields = json.loads(head + _VALUE + b"null}")
                fields["value"] = decoded(text.removesuffix(b"}"))
            value, session = fields["value"], fields.get("session")
            created = int(fields.get("created", stat.czxid))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the node {path} is not a record") from error
        numbers = stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner
        return cls(path, value, session, created, *numbers, len(data))

    def record(self, key: str) -> Record:
        """Return what the node stands for."""
        return Record(key, self.value, self.created, self.revision, self.session)


#: stands for a record that is there, and was not read
_UNREAD = RecordNode("", NOT_KEPT, None, 0, 0, -1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A directory and records in it, as they were read.

    Each change writes the node of the directory. So if that is unchanged when another change is
    made, so are the records, but for those that a session has taken along.
    """

    directory: DirectoryNode
    records: Mapping[str, RecordNode]
    #: the keys of all of its records, if they are known
    keys: Collection[str] | None = None
    #: whether they were all there at one moment, that of the directory's revision
    exact: bool = True

    @property
    def there(self) -> Mapping[str, RecordNode]:
        """The records that are there by its keys, be they read or not."""
        return {**dict.fromkeys(self.keys or (), _UNREAD), **self.records}

    def unread(self, keys: Iterable[str]) -> set[str]:
        """Return those of these keys that have records which were not read."""
        return {*keys}.intersection(self.keys or ()).difference(self.records)


class SeenLast(dict[str, DirectoryView]):
    """The last known state of some directories, by their paths; without large values.

    It may be out of date. A change that starts from it saves a read, and notices that. It is
    changed in single atomic steps.
    """

    def keep(self, seen: DirectoryView, keys: Collection[str] = ()) -> None:
        """Keep it, if it is not large; if not all keys are known, only what it says of ``keys``.

        The directory and its other records are then kept as they were before. That is of an earlier
        version, so the servers refuse whatever relies on it.
        """
        path, before = seen.directory.path, self.get(seen.directory.path)
        if before and before.keys is not None and before.directory.made == seen.directory.made:
            later = seen.directory.stat.version - before.directory.stat.version
            if seen.keys is None and later <= 0:
                return  # another thread has seen a later one
            gone = keys if seen.keys is None else {*before.keys}.difference(seen.keys)
            others = {key: node for key, node in before.records.items() if key not in gone}
            if seen.keys is None:
                every = {*before.keys}.difference(keys).union(seen.records)
                seen = replace(before, records={**others, **seen.records}, keys=every, exact=False)
            elif later == 0:  # so what was read of the other records counts still
                seen = replace(seen, records={**others, **seen.records})
        if seen.keys is None or len(seen.keys) > _MOST_RECORDS:
            self.pop(path, None)
            return
        if len(self) >= _MOST_DIRECTORIES:
            self.clear()
        self[path] = seen


def record_data(put: Put, created: int | None) -> bytes:
    """Return the data of the node of a record that is put.

    ``created`` is when the record was created, if the node was made later: to bind a record to a
    session, or to set it free, takes another node.
    """
    begin = "" if put.session is None else f'"session":{json.dumps(put.session)},'
    begin += "" if created is None else f'"created":{created},'
    return f'{{{begin}"value":{put.text}}}'.encode()


@dataclass(slots=True, eq=False)
class OpenSession:
    """A session of this process, known by ``name``."""

    name: str
    client: ZooKeeperClient
    shared: ZooKeeperSession
    seconds: float
    #: of clock()
    expires_at: float
    #: it was ended by its user
    ended: bool = False
    expired: bool = False

    @property
    def alive(self) -> bool:
        """Whether records may be bound to it."""
        return not (self.ended or self.expired or self.shared.over or self.client.dead)

    def renew(self, sent_at: float) -> None:
        """Let it run for its full length again; whether it was in time is seen after this.

        Several may do so at once, and the answer to an earlier request may be the later one.
        """
        self.expires_at = max(self.expires_at, sent_at + self.seconds)

    def expire(self) -> float:
        """Let it end if its time is over; return the seconds that it has left."""
        if clock() >= self.expires_at:
            # renew() sets the time, and then its caller looks at this. Here it is the other way
            # round. So if both happen at once, one sees the other.
            self.expired = True
            if clock() < self.expires_at:
                self.expired = False
        return 0.0 if self.expired else self.expires_at - clock()


class RecordReader(RecordStore):
    """The part of a store that reads records."""

    def __init__(self, root: str, client: Callable[[], ZooKeeperClient]) -> None:
        """``root`` is the path of the node of all directories; for ``client`` see the store."""
        self._root = root
        self._client = client
        self._seen_last = SeenLast()

    def _path(self, directory: str) -> str:
        return f"{self._root}/{escaped(directory)}"

    def read(self, directory: str, deadline: float | None = None) -> Snapshot:
        """See RecordStore.read().

        The list of the records' names and the revision are of one moment. A record was the same in
        that moment if it was written before, or if it was read before and has not been written
        since. If one was not, all are read again, in the request that lists them. So are those that
        were seen last.
        """
        path = self._path(directory)
        known = self._seen_last.get(path)
        again = [record.path for record in known.records.values()] if known else []
        _, nodes, stat = self._read(path, lambda keys, _: sorted(keys), again, deadline)
        records = (node.record(key) for key, node in nodes.items())
        return Snapshot.of(directory, revision_of(stat), records)

    def recall(self, directory: str, keys: Collection[str] = ()) -> Snapshot | None:
        """See RecordStore.recall()."""
        seen = self._seen_last.get(self._path(directory))
        if seen is None or not (keys or (seen.exact and len(seen.records) <= _FEW_RECORDS)):
            return None
        nodes = {key: seen.records.get(key) for key in keys} or seen.records
        records = [node.record(key) for key, node in nodes.items() if node is not None]
        if len(records) < len(nodes) or any(record.value is NOT_KEPT for record in records):
            return None
        found = Snapshot.of(directory, seen.directory.revision, records)
        return found if keys else replace(found, keys=[*(seen.keys or ())])

    def read_some(
        self,
        directory: str,
        keys: Collection[str],
        more: Callable[[Snapshot], Collection[str]],
        deadline: float | None = None,
    ) -> Snapshot:
        """See RecordStore.read_some(). Only the records that are needed are read.

        Without a sync: it is not older than what this process has seen or changed before.
        """
        path = self._path(directory)
        always = {f"{path}/{escaped(key)}": key for key in keys}

        def choose(every: Sequence[str], now: Mapping[str, RecordNode | None]) -> Collection[str]:
            there = {key: node.record(key) for one, key in always.items() if (node := now.get(one))}
            needed = more(Snapshot(directory, 0, there, keys=every))
            return {*needed, *(key for key in keys if key in every)}

        found, nodes, stat = self._read(path, choose, [*always], deadline, sync=False)
        records = (node.record(key) for key, node in nodes.items())
        return replace(Snapshot.of(directory, revision_of(stat), records), keys=found)

    def peek(self, directory: str, peek: Peek, deadline: float | None = None) -> Snapshot:
        """See RecordStore.peek()."""

        def choose(keys: Sequence[str], _: object) -> Sequence[str]:
            return first_keys(keys, peek.first)

        keys, nodes, stat = self._read(self._path(directory), choose, [], deadline)
        records = {key: node.record(key) for key, node in nodes.items()}
        counts, some = count_keys(keys, peek.count), list_keys(keys, peek.listed)
        return Snapshot(directory, revision_of(stat), records, counts=counts, keys=some)

    def missing(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Collection[str]:
        """See RecordStore.missing(). Unlike look() it reads once, however busy the directory is."""
        if not keys:
            return ()
        client, path = self._client(), self._path(directory)
        looks = [Stat(f"{path}/{escaped(key)}", None) for key in keys]
        _, *replies = client.ask([Sync(path), *looks], deadline)
        return {key for key, one in zip(keys, replies, strict=True) if not client.found(one)}

    def _read(
        self,
        path: str,
        choose: Callable[[Sequence[str], Mapping[str, RecordNode | None]], Collection[str]],
        again: list[str],
        deadline: float | None,
        *,
        sync: bool = True,
    ) -> tuple[Sequence[str], dict[str, RecordNode], Any]:
        """Return all keys of a directory, the records of those that were chosen, and its stat.

        That is None if it is not there. ``again``: paths that are read in the request that lists
        the keys. Without ``sync`` what the server says may be older than what others have written,
        and records that go meanwhile are left out.
        """
        client = self._client()
        before: dict[str, RecordNode | None] = {}
        while True:
            first = [Sync(path)] if sync else []
            reads = [GetData(each, None) for each in again]
            replies = client.ask([*first, GetChildren2(path, None), *reads], deadline)
            listed, *replies = replies[len(first) :]
            listing = client.found(listed)
            if listing is None:
                self._seen_last.keep(DirectoryView(DirectoryNode(path), {}))
                return [], {}, None
            children, stat = listing
            marks = [child for child in children if child.startswith(_MADE)]
            keys = [unescaped(child) for child in children if child not in marks]
            now = records_at(client, dict(zip(again, map(client.found, replies), strict=True)))
            paths = {key: f"{path}/{escaped(key)}" for key in choose(keys, now)}
            new = [each for each in paths.values() if each not in now]
            now |= records_at(client, client.find(GetData, new, deadline))
            nodes = {
                key: one
                for key, each in paths.items()
                if (one := now[each]) and _was_there(one, before.get(each), stat.mzxid)
            }
            gone = 0 if sync else sum(now[each] is None for each in paths.values())
            if len(nodes) + gone == len(paths):
                if marks:  # else it is somebody else's node
                    self._keep(path, marks[0].removeprefix(_MADE), keys, stat, nodes)
                return keys, nodes, stat
            before = {each: now[each] for each in paths.values()}
            again = [*paths.values()]

    def _keep(
        self, path: str, made: str, keys: list[str], stat: Any, nodes: Mapping[str, RecordNode]
    ) -> None:
        most = FEW_BYTES if len(nodes) <= _FEW_RECORDS else 0
        kept = {
            key: node if node.size <= most else replace(node, value=NOT_KEPT)
            for key, node in nodes.items()
        }
        seen = DirectoryNode(path, made, stat=stat)
        self._seen_last.keep(DirectoryView(seen, kept, keys))

    def look(
        self, directory: str, keys: Collection[str], deadline: float | None = None
    ) -> Snapshot:
        """See RecordStore.look(). All is of one moment if the directory did not change between."""
        client, path = self._client(), self._path(directory)
        paths = {f"{path}/{escaped(key)}": key for key in keys}
        reads = [GetData(each, None) for each in paths]
        while True:
            requests = [Sync(path), Stat(path, None), *reads, Stat(path, None)]
            _, first, *replies, last = client.ask(requests, deadline)
            before, after = (revision_of(client.found(reply)) for reply in (first, last))
            if before == after:
                break
        nodes = records_at(client, dict(zip(paths, map(client.found, replies), strict=True)))
        records = (node.record(paths[each]) for each, node in nodes.items() if node is not None)
        return Snapshot.of(directory, before, records)

    def get(self, directory: str, key: str, deadline: float | None = None) -> Record | None:
        client, path = self._client(), f"{self._path(directory)}/{escaped(key)}"
        _, read = client.ask([Sync(path), GetData(path, None)], deadline)
        node = records_at(client, {path: client.found(read)})[path]
        return None if node is None else node.record(key)


def records_at(client: ZooKeeperClient, found: Mapping[str, Any]) -> dict[str, RecordNode | None]:
    """Return what nodes say that were read, by path; None for those that are not there."""
    try:
        return {
            path: RecordNode.read(path, *node) if node else None for path, node in found.items()
        }
    except ValueError as error:
        raise client.unavailable(str(error)) from error


def _was_there(now: RecordNode, before: RecordNode | None, listed_at: int) -> bool:
    """Return whether a record was the same when the directory was listed.

    ``listed_at`` is the last change of the directory by then. Only what was changed by hand, past
    this store, may be newer than that.
    """
    return now.revision <= listed_at or (before is not None and before.revision == now.revision)
