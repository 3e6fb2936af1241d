"""One change of a directory of records: read what it depends on, then write it in one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, GetData, SetData, Sync
from kazoo.protocol.serialization import Exists as Stat

from distlock.backends.store import (
    Absent,
    Change,
    Condition,
    Exists,
    Overtaken,
    Put,
    SessionEnded,
    holds,
)
from distlock.backends.zookeeper.client import ZooKeeperClient
from distlock.backends.zookeeper.records import (
    FEW_BYTES,
    NOT_KEPT,
    DirectoryNode,
    DirectoryView,
    OpenSession,
    RecordNode,
    SeenLast,
    directory_data,
    mark_of,
    record_data,
)
from distlock.backends.zookeeper.requests import BATCH, Multi, NotSent, Reply
from distlock.backends.zookeeper.tree import creates_of
from distlock.concurrency.clock import left
from distlock.exceptions import LockUnavailable
from distlock.types.lease import new_nonce
from distlock.types.values import batches, decoded

#: Bytes of a request; servers take 1,048,575 unless ``jute.maxbuffer`` says otherwise.
_MAX_REQUEST = 1_000_000
_OTHERS_WERE_FASTER = (BadVersionError, NodeExistsError, NoNodeError)
_EPHEMERAL = 1


@dataclass(eq=False)
class Applying:
    """One call of RecordStore.apply().

    A change is one request that the server carries out as a whole, if the directory is as it was
    read. If not, all is read again. If the reply is lost, the nonce of the change in the node of
    the directory tells whether the change was made: requests of a session that has gone on to
    another connection are refused, and a sync is answered after those that were not.
    """

    client: ZooKeeperClient
    path: str
    changes: Sequence[Change]
    conditions: Collection[Condition]
    sessions: Callable[[str], OpenSession | None]
    seen_last: SeenLast
    deadline: float | None

    def __post_init__(self) -> None:
        self._nonce = new_nonce()
        asked = [each.key for each in self.conditions if isinstance(each, Absent | Exists)]
        #: without repetition, in their order
        self._keys = list(dict.fromkeys([*asked, *(change.key for change in self.changes)]))
        #: what is to become of each key; those that are deleted, if only to be put again
        self._last = {change.key: change for change in self.changes}
        self._deleted = {change.key for change in self.changes if not isinstance(change, Put)}
        #: of which the versions are compared, in place of that of the directory
        self._lasting = {
            one.key for one in self.conditions if isinstance(one, Exists) and one.lasting
        }
        self._maybe_applied = False
        self._overtaken = False

    def run(self) -> int | None:
        """Make the change; return its revision, None if a condition does not hold."""
        try:
            return self._run()
        except LockUnavailable as error:
            error.maybe_applied = self._maybe_applied
            raise

    def _run(self) -> int | None:
        sure = False  # that what was read is not older than this call
        known = self.seen_last.get(self.path)
        if known is not None and known.unread(self._last.keys() - self._deleted):
            known = None
        seen = known or self._look(sync=False)
        while True:
            now = seen.directory.revision, seen.there
            if not all(holds(each, *now) for each in self.conditions):
                if sure:
                    return None
                sure, seen = True, self._look(sync=True)
                continue
            bound = self._bound()
            multi = Multi(self._operations(seen, bound))
            root = None if seen.directory.stat is not None else self._have_root()
            before, reply = seen, self._send(multi, bound)
            if reply.error is None:
                return self._keep(seen, self._after(seen, bound, reply.value[0]))
            if reply.lost:
                seen = self._look(sync=True)
                if not isinstance(reply.error, NotSent):
                    made = self._outcome(before.directory, seen.directory, root)
                    if made is not None:
                        return made
                    self._maybe_applied = False
            else:
                if not isinstance(reply.error, _OTHERS_WERE_FASTER):
                    raise self.client.unavailable("refuses", reply.error)
                seen = self._look(sync=False)
                if seen == before and root is None:  # nobody was faster
                    raise self.client.unavailable("refuses", reply.error)
                self._overtaken = True
            sure = True

    def _look(self, *, sync: bool) -> DirectoryView:
        """Read what the change depends on; with ``sync`` as the leader knows it now."""
        directory, records = DirectoryNode(self.path), {}
        paths = [self.path, *map(directory.record, self._keys)]
        replies: list[Reply] = []
        for some in batches([GetData(path, None) for path in paths], BATCH):
            first = [Sync(self.path)] if sync and not replies else []
            replies += self.client.ask([*first, *some], self.deadline)[len(first) :]
        try:
            if found := self.client.found(replies[0]):
                directory = DirectoryNode.read(self.path, *found)
            for key, reply in zip(self._keys, replies[1:], strict=True):
                if found := self.client.found(reply):
                    records[key] = RecordNode.read(directory.record(key), *found)
        except ValueError as error:
            raise self.client.unavailable(str(error)) from error
        return DirectoryView(directory, records)

    def _bound(self) -> dict[str, OpenSession]:
        """Return the sessions that records are to be bound to."""
        names = {each.session for each in self.changes if isinstance(each, Put)} - {None}
        found = [self.sessions(name) for name in names if name is not None]
        bound = {session.name: session for session in found if session is not None}
        if len(bound) < len(names):
            raise SessionEnded(f"a session for records of {self.path!r} has ended")
        return bound

    def _operations(self, seen: DirectoryView, bound: dict[str, OpenSession]) -> list[Any]:
        """Return the parts of the request; the first that sets a node sets the directory's."""
        acl, path, directory = self.client.options.acl, self.path, seen.directory
        made, version = directory.made, 0
        if directory.stat is None:
            made = self._nonce
            operations = [Create(path, b"", acl, 0), Create(mark_of(path, made), b"", acl, 0)]
        else:
            operations = [CheckVersion(mark_of(path, made), -1)]
            version = directory.stat.version if self._relies_on_version(seen) else -1
        operations.append(SetData(path, directory_data(made, self._nonce), version))
        there = seen.there
        # A session may take a record along before this is carried out: each is checked.
        for key in self._keys:
            old, change, node = there.get(key), self._last.get(key), directory.record(key)
            found = old.version if old is not None and key in self._lasting else -1
            if not isinstance(change, Put):
                if old is not None:
                    operations.append((Delete if change else CheckVersion)(node, found))
                elif version == -1:  # there is no other way to check that nothing is there
                    operations += [Create(node, b"", acl, 0), Delete(node, -1)]
                continue
            owner = _owner(change, bound)
            kept = None if key in self._deleted else old
            if kept is not None and kept.owner == owner:
                created = None if kept.created == kept.czxid else kept.created
                operations.append(SetData(node, record_data(change, created), found))
                continue
            if old is not None:
                operations.append(Delete(node, found))
            created = None if kept is None else kept.created
            flags = _EPHEMERAL if owner else 0
            operations.append(Create(node, record_data(change, created), acl, flags))
        return operations

    def _after(
        self, seen: DirectoryView, bound: dict[str, OpenSession], stat: Any
    ) -> DirectoryView:
        """Return the snapshot after the change; ``stat`` is that of the directory's node."""
        directory, revision = seen.directory, int(stat.mzxid)
        version = 0 if directory.stat is None else directory.stat.version
        made = directory.made or self._nonce
        records = {**seen.records}
        for key, change in self._last.items():
            old = records.pop(key, None)
            if isinstance(change, Put):
                owner, node = _owner(change, bound), directory.record(key)
                kept = None if key in self._deleted else old
                created = revision if kept is None else kept.created
                same = kept if kept is not None and kept.owner == owner else None
                czxid, sets = (same.czxid, same.version + 1) if same else (revision, 0)
                size = len(record_data(change, created))
                value = decoded(change.text) if size <= FEW_BYTES else NOT_KEPT
                records[key] = RecordNode(
                    node, value, change.session, created, czxid, revision, sets, owner, size
                )
        # Each change adds one to the version. If others have changed something in between, not all
        # is known.
        before = () if directory.stat is None else seen.keys
        keys = None
        if before is not None and stat.version == version + 1:
            keys = {*before}.difference(self._last).union(self._last.keys() & records.keys())
        after = DirectoryNode(self.path, made, self._nonce, stat)
        # Records that sessions have taken along meanwhile are in it, and have changed no version.
        exact = directory.stat is None or (seen.exact and stat.pzxid <= directory.revision)
        return DirectoryView(after, records, keys, exact)

    def _keep(self, seen: DirectoryView, after: DirectoryView) -> int:
        """Keep what the change has left behind; return its revision."""
        self.seen_last.keep(after, {*self._keys} - seen.unread({*self._keys} - {*self._last}))
        return int(after.directory.stat.mzxid)

    def _relies_on_version(self, seen: DirectoryView) -> bool:
        """Return whether another change in between could make this one wrong.

        Not if each part can be carried out in one way only: creating an absent record, deleting a
        present one, and checking that any or no record exists. So joining or leaving does not wait
        for others that are faster.
        """
        for condition in self.conditions:
            match condition:
                case Absent() | Exists(revision=None) | Exists(lasting=True):
                    continue
            return True
        there = seen.there
        return any(
            isinstance(change, Put) is (key in there)
            for key, change in self._last.items()
            if key not in self._lasting
        )

    def _send(self, multi: Multi, bound: dict[str, OpenSession]) -> Reply:
        """Send the change, if the sessions are those of the connection, and await the reply."""
        client = self.client
        if multi.size > _MAX_REQUEST:
            raise ValueError(
                f"the changes of one step have {multi.size} bytes; ZooKeeper takes at most"
                f" {_MAX_REQUEST}"
            )
        if left(self.deadline, 1.0) <= 0:
            if self._overtaken:
                raise Overtaken(f"others changed {self.path} before each attempt to change it")
            raise client.unavailable(f"has not carried out a change of {self.path} in time")

        def may_send() -> bool:
            return all(each.alive and each.shared is client.session for each in bound.values())

        self._maybe_applied = True
        (reply,) = client.send_all([multi], may_send)
        if not reply.wait(left(self.deadline, client.options.timeout)):
            raise client.unavailable("does not answer")
        # A lost request may have been carried out.
        self._maybe_applied = reply.lost and not isinstance(reply.error, NotSent)
        return reply

    def _outcome(self, before: DirectoryNode, now: DirectoryNode, root: int | None) -> int | None:
        """Return the revision of a change whose reply was lost; None if it was not made.

        LockUnavailable if later changes hide that. ``root`` is what _have_root() returned.
        """
        if now.change == self._nonce:
            return int(now.stat.mzxid)
        if now.made == self._nonce:
            return int(now.stat.czxid)
        # One change at most was made to the version that this one was to change.
        if now.made and now.made == before.made and now.stat.version <= before.stat.version + 1:
            return None
        if now.stat is None and root is not None and root == self._have_root():
            return None
        raise self.client.unavailable("has lost the reply to a change")

    def _have_root(self) -> int:
        """Make the node of all directories if it is missing; return its last change.

        That grows when a directory is made or removed.
        """
        root = self.path.rpartition("/")[0]
        while True:
            _, read = self.client.ask([Sync(root), Stat(root, None)], self.deadline)
            if stat := self.client.found(read):
                return int(stat.pzxid)
            made = self.client.ask(creates_of(self.client, root), self.deadline)[-1]
            if not isinstance(made.error, NodeExistsError):
                self.client.checked(made)


def _owner(put: Put, bound: dict[str, OpenSession]) -> int:
    return 0 if put.session is None else bound[put.session].shared.id
