"""The record store in ZooKeeper, and the sessions of it, which share the one with the servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import Delete as DeleteNode
from kazoo.protocol.serialization import Exists as Stat
from kazoo.protocol.serialization import GetChildren, GetChildren2, GetData, Sync

from distlock.backends.store import (
    Address,
    Change,
    Condition,
    Delete,
    Exists,
    Renewal,
    Session,
)
from distlock.backends.zookeeper.changes import Applying
from distlock.backends.zookeeper.client import ZooKeeperClient, ZooKeeperSession
from distlock.backends.zookeeper.options import ZooKeeperOptions
from distlock.backends.zookeeper.records import (
    DirectoryNode,
    OpenSession,
    RecordReader,
    mark_of,
    records_at,
    revision_of,
)
from distlock.backends.zookeeper.requests import BATCH, GetEphemerals, Multi, Reply
from distlock.backends.zookeeper.tree import RECORDS, escaped, unescaped
from distlock.concurrency.clock import backoff, clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.threads import call_after, start
from distlock.exceptions import LockError
from distlock.types.lease import RELIED_ON, SweepResult, new_nonce
from distlock.types.values import batches

#: Seconds between two attempts to end a session whose records could not be removed.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class RecordSessions:
    """The sessions of this process that have not ended, or whose records are still to be removed.

    A session that is not renewed in time is ended here: the servers keep the process's session for
    the sake of its other leases. ``remove`` removes the records of a session by a deadline, or
    raises LockUnavailable.
    """

    def __init__(self, remove: Callable[[OpenSession, float | None], None]) -> None:
        self._remove = remove
        #: by name; changed in single atomic steps
        self._sessions: dict[str, OpenSession] = {}

    def open(
        self, client: ZooKeeperClient, shared: ZooKeeperSession, seconds: float, sent_at: float
    ) -> OpenSession:
        """Open a session that ends ``seconds`` after ``sent_at``, unless it is renewed."""
        session = OpenSession(new_nonce(), client, shared, seconds, sent_at + seconds)
        self._sessions[session.name] = session
        self._look_after(seconds, session)
        return session

    def alive(self, name: str) -> OpenSession | None:
        """Return a session if it has not ended."""
        session = self._sessions.get(name)
        return session if session is not None and session.alive else None

    def end(self, name: str, deadline: float | None) -> None:
        """End a session, and remove its records; what fails is tried again in the background."""
        session = self._sessions.get(name)
        if session is None:
            return
        # From here on nothing is sent that binds a record to it; what was sent is removed below.
        ends_elsewhere, session.ended = session.ended, True
        try:
            self._remove(session, deadline)
            ends_elsewhere = True
        finally:
            if not ends_elsewhere:
                self._end_in_background(session)
        self._sessions.pop(name, None)

    def _look_after(self, seconds: float, session: OpenSession) -> None:
        """See later whether a session has been renewed; end it if not."""

        def look() -> None:
            if session.name not in self._sessions or session.ended:
                return
            if remaining := session.expire():
                self._look_after(remaining, session)
            else:
                self._end_in_background(session)

        with suppress(RuntimeError):  # no more threads: it ends with the process's
            call_after(seconds, look)

    def _end_in_background(self, session: OpenSession) -> None:
        try:
            start(self._end_later, "distlock-end-session", session)
        except RuntimeError:  # no more threads can be started yet
            with suppress(RuntimeError):  # then it ends with the process's
                call_after(_LONGEST_PAUSE, partial(self._end_in_background, session))

    def _end_later(self, session: OpenSession) -> None:
        for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
            if session.name not in self._sessions:
                return
            with suppress(LockError):
                self._remove(session, None)
                self._sessions.pop(session.name, None)
                return
            time.sleep(pause)


class ZooKeeperStore(RecordReader):
    """Records that are nodes; those that are bound to a session are ephemeral.

    A process has one session with the servers, which its locks use, too. Each session of the store
    has an id of its own, which the data of its records has, so that it can be ended alone. This
    process ends it if it is not renewed in time; the servers end all sessions of a process that
    they do not hear from. No other process can use or end it.
    """

    def __init__(self, options: ZooKeeperOptions, client: Callable[[], ZooKeeperClient]) -> None:
        """``client`` returns the client of this process, which may not be connected yet."""
        super().__init__(f"{options.root}/{RECORDS}", client)
        self._options = options
        self._sessions = RecordSessions(self._remove_records)

    # Changing records; RecordReader reads them

    def apply(
        self,
        directory: str,
        changes: Sequence[Change],
        conditions: Collection[Condition] = (),
        deadline: float | None = None,
    ) -> int | None:
        """See RecordStore.apply().

        A server takes at most 1 MiB at once: ValueError for more. If the connection breaks, this
        finds out whether the change was made, unless others have changed the directory since.
        """
        path, known = self._path(directory), (self._sessions.alive, self._seen_last)
        revision = Applying(self._client(), path, changes, conditions, *known, deadline).run()
        if revision is not None:
            self._tell_observers(directory, revision)
        return revision

    def directories(self, prefix: str = "", deadline: float | None = None) -> list[str]:
        stats = self._stats(self._client(), prefix, deadline)
        return sorted(name for name, stat in stats.items() if stat.numChildren > 1)

    # Sessions

    def open_session(self, seconds: float, deadline: float | None = None) -> Session:
        """See RecordStore.open_session(). It is relied on for no longer than a lock's lease.

        Unless it is renewed, this process ends it after ``seconds``.
        """
        client, sent_at = self._client(), clock()
        client.prove_alive(deadline)
        shared = client.session
        assert shared is not None, "it was connected"
        session = self._sessions.open(client, shared, seconds, sent_at)
        relied_on = min(seconds, self._options.lease_of(shared.timeout))
        return Session(session.name, relied_on, sent_at + relied_on * RELIED_ON)

    def renew(
        self,
        sessions: Collection[str],
        records: Collection[Address] = (),
        deadline: float | None = None,
    ) -> Renewal:
        """See RecordStore.renew(). It proves that the servers count the session as alive."""
        if not sessions and not records:
            return Renewal(frozenset(), frozenset(), frozenset(), frozenset())
        client, sent_at = self._client(), clock()
        # Either way a sync comes first, so that what is read of the records is not older.
        if running := [session for name in sessions if (session := self._sessions.alive(name))]:
            client.prove_alive(deadline)
            for session in running:
                session.renew(sent_at)
        elif records:
            client.ask([Sync(self._root)], deadline)
        paths = {f"{self._path(address[0])}/{escaped(address[1])}": address for address in records}
        found = client.find(Stat, [*paths], deadline)
        present = frozenset(address for path, address in paths.items() if found[path])
        alive = frozenset(filter(self._sessions.alive, sessions))
        return Renewal(alive, frozenset(sessions) - alive, present, frozenset(records) - present)

    def end_session(self, session: str, deadline: float | None = None) -> None:
        """See RecordStore.end_session(). Remaining records are removed in the background."""
        self._sessions.end(session, deadline)

    def _remove_records(self, session: OpenSession, deadline: float | None) -> None:
        client = session.client
        if client.dead:
            return
        _, listed = client.ask([Sync(self._root), GetEphemerals(f"{self._root}/")], deadline)
        found = client.find(GetData, client.checked(listed), deadline)
        known = self._sessions.alive, self._seen_last
        for path, node in records_at(client, found).items():
            if node is not None and node.session == session.name:
                above, _, last = path.rpartition("/")
                delete, this = Delete(unescaped(last)), Exists(unescaped(last), node.revision)
                # If this is refused, it is another's record by now, or gone.
                Applying(client, above, [delete], [this], *known, deadline).run()

    # Waking up

    def watch(self, directory: str, since: int, key: str | None = None) -> Pending[None]:
        """See RecordStore.watch().

        Watches of the servers, who forget them with the connection: then all are answered. When one
        is abandoned, the servers are asked to forget it.
        """
        client, node = self._client(), DirectoryNode(self._path(directory))
        path = node.path if key is None else node.record(key)
        children = [GetChildren2(path, True)] if key is None else []
        # A node that is not there is watched, too: until it comes, or the watch is cancelled.
        watch, replies = client.watches.register(path, [Stat(path, True), *children])
        cancel = partial(client.watches.cancel, path, watch)

        def stop() -> None:
            # The garbage collector may call this in a thread that has a mutex of the client.
            with suppress(RuntimeError):  # no more threads: it ends by itself
                call_after(0.0, cancel)

        def look(last: Reply) -> None:
            """Answer now what has changed already; all replies are there."""
            first = replies[0]
            if key is not None and last is first and isinstance(first.error, NoNodeError):
                # It was put or removed already if the directory has changed since.
                client.send(Stat(node.path, None)).then(look)
            elif _has_changed(first, last, since, key):
                cancel()

        pending: Pending[None] = Pending(stop)
        watch.then(lambda _: pending.resolve(None))
        replies[-1].then(look)
        return pending

    # Clearing

    def sweep(self, deadline: float | None = None) -> SweepResult:
        """Remove the directories that have no records; the servers end sessions by themselves."""
        client = self._client()
        stats = self._stats(client, "", deadline)
        empty = [self._path(name) for name, stat in stats.items() if stat.numChildren <= 1]
        removals = []
        for path, node in client.find(GetData, empty, deadline).items():
            with suppress(ValueError):  # somebody else's node
                if node:
                    mark = mark_of(path, DirectoryNode.read(path, *node).made)
                    removals.append(Multi([DeleteNode(mark, -1), DeleteNode(path, -1)]))
        removed = 0
        for some in batches(removals, BATCH):
            # The server does not remove one with records: its node has children.
            removed += sum(reply.error is None for reply in client.ask(some, deadline))
        return SweepResult(removed=removed)

    # Reading nodes

    def _stats(
        self, client: ZooKeeperClient, prefix: str, deadline: float | None
    ) -> dict[str, Any]:
        """Return the stats of the directories whose names begin with a prefix, by name."""
        _, listed = client.ask([Sync(self._root), GetChildren(self._root, None)], deadline)
        names = [unescaped(each) for each in client.found(listed) or ()]
        paths = {self._path(name): name for name in names if name.startswith(prefix)}
        found = client.find(Stat, [*paths], deadline)
        return {paths[path]: stat for path, stat in found.items() if stat is not None}


def _has_changed(first: Reply, last: Reply, since: int, key: str | None) -> bool:
    """Return whether a watch is to be answered at once; see ZooKeeperStore.watch()."""
    if any(reply.error and not isinstance(reply.error, NoNodeError) for reply in (first, last)):
        return True
    if key is None:
        stats = [first.value, last.value and last.value[1]]
    elif first.value:
        return bool(first.value.mzxid > since)
    else:
        stats = [last.value]
    # Where there is no directory, none was there at revision 0.
    return any(revision_of(stat) > since if stat else since > 0 for stat in stats)
