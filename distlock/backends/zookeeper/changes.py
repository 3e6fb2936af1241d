"""One change of a directory of records: read what it depends on, then write it in one step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, GetData, SetData, Sync

from distlock.backends.store import Absent, Change, Condition, Exists, Put, SessionEnded
from distlock.backends.zookeeper.client import Client, Session
from distlock.backends.zookeeper.record_nodes import (
    DirectoryNode,
    RecordNode,
    directory_data,
    mark_of,
    new_nonce,
    record_data,
)
from distlock.backends.zookeeper.requests import Multi, NotSent, Reply, batches
from distlock.backends.zookeeper.tree import make_path
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import left
from distlock.exceptions import LockUnavailable

#: Bytes of a request; servers take 1,048,575 unless ``jute.maxbuffer`` says otherwise.
_MAX_REQUEST = 1_000_000
#: Seconds between two attempts, once others have been faster twice.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1

_EPHEMERAL = 1


@dataclass(slots=True, eq=False)
class OpenSession:
    """A session of this process: one of several that share the session with the servers."""

    client: Client
    shared: Session
    ended: bool = False

    @property
    def alive(self) -> bool:
        """Whether records may be bound to it."""
        return not (self.ended or self.shared.over or self.client.dead)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The nodes that a change depends on, as they were read, the directory first.

    Each change writes the node of the directory. So if that is unchanged when the change is made,
    so are the records, but for those that a session has taken along.
    """

    directory: DirectoryNode
    records: dict[str, RecordNode]

    def holds(self, condition: Condition) -> bool:
        if isinstance(condition, Absent):
            return condition.key not in self.records
        if isinstance(condition, Exists):
            found = self.records.get(condition.key)
            return found is not None and condition.revision in (None, found.revision)
        return self.directory.revision == condition.revision


class Applying:
    """One call of RecordStore.apply().

    A change is one request that the server carries out as a whole, if the directory is as it was
    read. If not, all is read again. If the reply is lost, the nonce of the change in the node of
    the directory tells whether the change was made: requests of a session that has gone on to
    another connection are refused, and a sync is answered after those that were not.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        changes: Sequence[Change],
        conditions: Collection[Condition],
        sessions: Callable[[str], OpenSession | None],
        deadline: float | None,
    ) -> None:
        self._client = client
        self._path = path
        self._changes = changes
        self._conditions = conditions
        self._sessions = sessions
        self._deadline = deadline
        self._nonce = new_nonce()
        asked = [each.key for each in conditions if isinstance(each, Absent | Exists)]
        #: without repetition, in their order
        self._keys = list(dict.fromkeys([*asked, *(change.key for change in changes)]))
        self._maybe_applied = False

    def run(self) -> int | None:
        """Make the change; return its revision, None if a condition does not hold."""
        try:
            return self._run()
        except LockUnavailable as error:
            error.maybe_applied = self._maybe_applied
            raise

    def _run(self) -> int | None:
        refused: tuple[_Seen, Exception | None] | None = None
        sure = False  # that nothing newer than what is read was there before
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        seen = self._look(sure)
        while True:
            if not all(map(seen.holds, self._conditions)):
                if sure:
                    return None
                sure, seen = True, self._look(True)
                continue
            bound = self._bound()
            multi = Multi(self._operations(seen, bound))
            if multi.size > _MAX_REQUEST:
                raise ValueError(
                    f"the changes of one step have {multi.size} bytes; ZooKeeper takes at most"
                    f" {_MAX_REQUEST}"
                )
            reply = self._send(multi, bound)
            if reply.error is None:
                return int(reply.value[0].mzxid)
            if isinstance(reply.error, NoNodeError) and seen.directory.stat is None:
                self._make_root()
            elif not reply.lost and not isinstance(
                reply.error, BadVersionError | NodeExistsError | NoNodeError
            ):
                raise self._client.unavailable("refuses", reply.error)
            before, seen = seen, self._look(True)
            sure = True
            if reply.lost and not isinstance(reply.error, NotSent):
                revision = self._outcome(before.directory, seen.directory)
                if revision is not None:
                    return revision
                self._maybe_applied = False
            elif refused is not None and not reply.lost:
                if seen == refused[0]:  # nobody was faster, so it will always be refused
                    raise self._client.unavailable("refuses", reply.error)
                time.sleep(left(self._deadline, next(pauses)))
            refused = seen, reply.error

    def _look(self, sure: bool) -> _Seen:
        """Read the directory, then the records; ``sure``: as the leader knows them now."""
        directory, requests = DirectoryNode(self._path), [GetData(self._path, None)]
        requests += [GetData(directory.record(key), None) for key in self._keys]
        replies: list[Reply] = []
        for some in batches(requests):
            sync = [Sync(self._path)] if sure and not replies else []
            replies += self._client.ask([*sync, *some], self._deadline)[len(sync) :]
        try:
            if found := self._client.found(replies[0]):
                directory = DirectoryNode.read(self._path, *found)
            records = {
                key: RecordNode.read(directory.record(key), *found)
                for key, reply in zip(self._keys, replies[1:], strict=True)
                if (found := self._client.found(reply))
            }
        except ValueError as error:
            raise self._client.unavailable(str(error)) from error
        return _Seen(directory, records)

    def _bound(self) -> dict[str, OpenSession]:
        """Return the sessions that records are to be bound to."""
        names = {each.session for each in self._changes if isinstance(each, Put)} - {None}
        found = {name: self._sessions(name) for name in names if name is not None}
        bound = {name: session for name, session in found.items() if session and session.alive}
        if len(bound) < len(names):
            raise SessionEnded(f"a session for records of {self._path!r} has ended")
        return bound

    def _operations(self, seen: _Seen, bound: dict[str, OpenSession]) -> list[Any]:
        """Return the parts of the request; the first that sets a node sets the directory's."""
        acl, path, directory = self._client.options.acl, self._path, seen.directory
        made, version = directory.made, 0
        if directory.stat is None:
            made = self._nonce
            operations = [Create(path, b"", acl, 0), Create(mark_of(path, made), b"", acl, 0)]
        else:
            operations = [CheckVersion(mark_of(path, made), -1)]
            version = directory.stat.version
        operations.append(SetData(path, directory_data(made, self._nonce), version))
        last = {change.key: change for change in self._changes}
        anew = {change.key for change in self._changes if not isinstance(change, Put)}
        for key in self._keys:
            old, change, node = seen.records.get(key), last.get(key), directory.record(key)
            if change is None:
                if old is not None:  # a session may take it along before this is carried out
                    operations.append(CheckVersion(node, old.stat.version))
                continue
            if not isinstance(change, Put):
                if old is not None:
                    operations.append(Delete(node, old.stat.version))
                continue
            session, created = change.session, None
            owner = 0 if session is None else bound[session].shared.id
            if old is not None and key not in anew:
                created = old.created
            if old is not None and created is not None and old.stat.ephemeralOwner == owner:
                kept = None if created == old.stat.czxid else created
                data = record_data(change.text, session, kept)
                operations.append(SetData(node, data, old.stat.version))
                continue
            if old is not None:
                operations.append(Delete(node, old.stat.version))
            data = record_data(change.text, session, created)
            operations.append(Create(node, data, acl, _EPHEMERAL if owner else 0))
        return operations

    def _send(self, multi: Multi, bound: dict[str, OpenSession]) -> Reply:
        """Send the change, if the sessions are those of the connection, and wait for the reply."""
        client = self._client

        def may_send() -> bool:
            return all(each.alive and each.shared is client.session for each in bound.values())

        self._maybe_applied = True
        (reply,) = client.send_all([multi], may_send)
        if not reply.wait(left(self._deadline, client.options.timeout)):
            raise client.unavailable("does not answer")
        # What was lost may have been carried out.
        self._maybe_applied = reply.lost and not isinstance(reply.error, NotSent)
        return reply

    def _outcome(self, before: DirectoryNode, now: DirectoryNode) -> int | None:
        """Return the revision of a change whose reply was lost; None if it was not made.

        LockUnavailable if later changes hide that.
        """
        if now.change == self._nonce:
            return int(now.stat.mzxid)
        if now.made == self._nonce:
            return int(now.stat.czxid)
        # One change at most was made to the version that this one was to change.
        if now.made and now.made == before.made and now.stat.version <= before.stat.version + 1:
            return None
        raise self._client.unavailable("has lost the reply to a change")

    def _make_root(self) -> None:
        """Make the node of all directories; what is above it is made, too."""
        made = make_path(self._client, self._path.rpartition("/")[0])
        if not made.wait(left(self._deadline, self._client.options.timeout)):
            raise self._client.unavailable("does not answer")
        if not made.lost and not isinstance(made.error, NodeExistsError):
            self._client.checked(made)
