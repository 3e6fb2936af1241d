"""The client of a ZooKeeper: its connection, its session, its requests and its leases.

A lease is lost when its node is deleted, or when the session ends in which the node was made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    NoAuthError,
    NoNodeError,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.protocol.serialization import Delete, Sync
from kazoo.protocol.states import KazooState, KeeperState

from distlock.backends.zookeeper.connection import REPORTED_AFTER, ZooKeeperConnection
from distlock.backends.zookeeper.options import ZooKeeperOptions, new_handler
from distlock.backends.zookeeper.requests import BATCH, NodeWatches, NotSent, Reply
from distlock.concurrency import fork
from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockUnavailable, NotPermitted
from distlock.types.lease import Lease, Owner
from distlock.types.values import batches

#: Why a lease was lost.
SESSION_OVER = "its ZooKeeper session ended"
NODE_DELETED = "its node in ZooKeeper was deleted: it was broken"

_REFUSALS = (AuthFailedError, SASLException, SessionClosedRequireSaslError)


@dataclass(slots=True, eq=False)
class ZooKeeperSession:
    """A session with the servers: its ephemeral nodes live as long as it does."""

    id: int
    timeout: float  # seconds
    over: bool = False


class ZooKeeperClient:
    """A client that connects by itself, from now on and again and again, until it is closed.

    ``on_begin`` and ``on_over`` are called with each session as it begins and ends, ``on_over``
    before requests can be sent in the next one; ``on_ping`` several times in the time-out of a
    session. They, and all callbacks, run on the client's own thread and must not block.
    """

    def __init__(
        self,
        options: ZooKeeperOptions,
        on_begin: Callable[[ZooKeeperSession], None],
        on_over: Callable[[ZooKeeperSession], None],
        on_ping: Callable[[], None],
    ) -> None:
        self.options = options
        self.session: ZooKeeperSession | None = None
        self.dead = False  # it will not connect again
        self._failure: Exception | None = None  # why
        self._on_begin = on_begin
        self._on_over = on_over
        self.on_ping = on_ping
        self._handler = new_handler(options.connect_limit)
        #: connects, and keeps the session alive
        self.kazoo = KazooClient(**options.arguments(self._handler))
        self.kazoo.add_listener(self._on_state)
        self.connection = ZooKeeperConnection(self.kazoo, self, options.greeting_limit)
        self._mutex = threading.Lock()
        #: those who wait until requests can be sent, in their order
        self._waiting: dict[Reply, None] = {}
        self.watches = NodeWatches(self.send_all)
        self.on_watch_event = self.watches.on_event
        fork.current().connections.add(self)
        self.kazoo.start_async()

    def close(self) -> None:
        """End the session, and with it everything that is held; waits a moment for the servers."""
        if not self.dead:
            self.connection.end_session()

    def leave_to_parent(self) -> None:
        """Drop the connection in a forked child; the session is the parent's."""
        self.dead = True
        self.connection.discard()

    # Asking

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self.connection.is_open

    def send(self, request: Any) -> Reply:
        """Send a request without waiting for anything; see send_all()."""
        return self.send_all([request])[0]

    def send_all(
        self, requests: Sequence[Any], only_if: Callable[[], bool] | None = None
    ) -> list[Reply]:
        """Send requests after all that were sent before; they get lost without a connection.

        See ZooKeeperConnection.submit() for ``only_if``.
        """
        return self.connection.submit(requests, only_if)

    def ask(self, requests: Sequence[Any], deadline: float | None) -> list[Reply]:
        """Send requests and wait for all answers; send them again if the connection breaks.

        Raises LockUnavailable if they are not answered in time. The server's answers, errors
        included, are in the replies.
        """
        ends = clock() + left(deadline, self.options.timeout)
        repeated = False
        while True:
            if not self.connected:
                connected = self.when_connected()
                if not connected.wait(left(ends, self.options.timeout)) or self.dead:
                    self.forget(connected)
                    error = self.unavailable()
                    error.maybe_applied = repeated
                    raise error
            replies = self.send_all(requests)
            if not replies[-1].wait(left(ends, self.options.timeout)):
                raise self.unavailable("does not answer")
            if not any(reply.lost for reply in replies):
                for reply in replies:
                    reply.repeated = repeated
                return replies
            # A request that was not sent was not carried out.
            lost = (reply for reply in replies if reply.lost)
            repeated = repeated or not all(isinstance(reply.error, NotSent) for reply in lost)

    def find(
        self, request: type[Any], paths: Sequence[str], deadline: float | None
    ) -> dict[str, Any]:
        """Ask for each of these nodes, some at a time; return the answers by path; see found()."""
        answers: dict[str, Any] = {}
        for some in batches(paths, BATCH):
            replies = self.ask([request(path, None) for path in some], deadline)
            answers |= zip(some, map(self.found, replies), strict=True)
        return answers

    def delete_node(self, session: ZooKeeperSession, path: str) -> None:
        """Delete a node of ``session`` without waiting, also after the connection has come back.

        The end of the session removes it too.
        """

        def delete(_: Reply | None = None) -> None:
            if self.session is session and not session.over:
                self.send(Delete(path, -1)).then(done)

        def done(reply: Reply) -> None:
            if reply.lost:
                self.when_connected().then(delete)

        delete()

    def when_connected(self) -> Reply:
        """Return what is settled when requests can be sent, or never will be; that may be now."""
        connected = Reply()
        with self._mutex:
            if waits := not self.connected and not self.dead:
                self._waiting[connected] = None
        if not waits:
            connected.settle()
        return connected

    def forget(self, connected: Reply) -> None:
        """Wait no more: an outage may be long, and many may give up in it. See when_connected()."""
        with self._mutex:
            self._waiting.pop(connected, None)

    def prove_alive(self, deadline: float | None) -> None:
        """Make sure that the session lasts for a lease from now on, by the leader's count.

        A sync goes to the leader, which alone decides when a session is over. The answer proves
        that it is not over yet. That is enough if the leader had heard of the session shortly
        before. If not, sync again after the time in which the leader hears of the first sync.
        """
        begun_at = clock()
        while True:
            sent_at = clock()
            (synced,) = self.ask([Sync(self.options.root)], deadline)
            self.checked(synced)
            timeout = self.session.timeout if self.session else 0.0
            unproven = timeout - self.options.lease_of(timeout)
            if self.counted_from(sent_at) + unproven >= begun_at:
                return
            pause = timeout * REPORTED_AFTER
            if left(deadline, pause) < pause:
                raise self.unavailable("does not prove in time that the session lasts")
            time.sleep(pause)

    def counted_from(self, at: float) -> float:
        """Return from when on the servers count this session's time-out; see SessionLiveness."""
        assert self.connection.liveness is not None, "it has never been connected"
        return self.connection.liveness.counted_from(at)

    def unavailable(self, problem: str = "", cause: Exception | None = None) -> LockUnavailable:
        """Return the error that says why the servers do not answer."""
        if not problem:
            refused = isinstance(self._failure, _REFUSALS)
            problem = "refuses the credentials" if refused else "cannot be reached"
        if not self.connected:
            cause = cause or self._failure or self._handler.last_error
        because = f" ({type(cause).__name__}: {cause})" if cause else ""
        kind = NotPermitted if isinstance(cause, (*_REFUSALS, NoAuthError)) else LockUnavailable
        error = kind(f"ZooKeeper at {self.options.hosts} {problem}{because}")
        error.__cause__ = cause
        return error

    def checked(self, reply: Reply) -> Any:
        """Return the answer; LockUnavailable if it is an error."""
        if reply.error is None:
            return reply.value
        raise self.unavailable("refused", reply.error) from reply.error

    def found(self, reply: Reply) -> Any:
        """Return the answer, None if there is no such node; LockUnavailable for other errors."""
        return None if isinstance(reply.error, NoNodeError) else self.checked(reply)

    # Callbacks of kazoo and the connection, on their thread

    def on_connect(self, session_timeout: float) -> None:
        """Begin a session, unless the one before goes on. Requests cannot be sent yet."""
        number = self.kazoo.client_id[0]
        if self.session is None or self.session.id != number or self.session.over:
            self._end_session()
            self.session = ZooKeeperSession(number, session_timeout)
            self._on_begin(self.session)

    def on_open(self) -> None:
        """Let those go on who have waited for this."""
        with self._mutex:
            waiting, self._waiting = self._waiting, {}
        for connected in waiting:
            connected.settle()

    def on_end(self, failure: Exception | None) -> None:
        """Note that kazoo was stopped, or has given up."""
        self._failure = self._failure or failure
        self.dead = True
        self.on_open()
        self.kazoo.close()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            return  # but not authenticated yet
        if self.kazoo.client_state == KeeperState.AUTH_FAILED:
            self._failure = AuthFailedError()
        self.connection.lose_requests()
        if state == KazooState.LOST:
            self._end_session()
        self.watches.on_disconnect()

    def _end_session(self) -> None:
        if self.session is not None and not self.session.over:
            self.session.over = True
            self._on_over(self.session)


@dataclass(frozen=True, slots=True, eq=False)
class ContenderNode:
    """A contender's node that this process has made."""

    session: ZooKeeperSession
    path: str
    czxid: int
    created_after: float  # of clock()


@dataclass(slots=True, eq=False)
class Grant:
    """A lease, and the node that stands for it."""

    lease: Lease
    client: ZooKeeperClient
    node: ContenderNode
    #: whether the caller has got it, and will release it or have it renewed
    taken: bool = False
    is_watched: bool = False

    def drop(self) -> None:
        """Delete the node without waiting for it."""
        self.client.delete_node(self.node.session, self.node.path)


class Grants:
    """The current grants of a process, at most one for each lock.

    ``on_loss`` is called with those that end otherwise than by being taken from here.
    """

    def __init__(self, on_loss: Callable[[Lease, str], None]) -> None:
        self._on_loss = on_loss
        self._mutex = threading.Lock()
        self._by_name: dict[str, Grant] = {}
        #: Why a lease was lost, by its nonce, while its holder may not have heard of it.
        self._lost: dict[str, str] = {}

    def add(self, grant: Grant) -> None:
        """Note a grant, before the caller gets it."""
        with self._mutex:
            self._by_name[grant.lease.name] = grant
        if grant.node.session.over:  # lose_all() may have run just before the line above
            self.lose(grant, SESSION_OVER)

    def note_taken(self, lease: Lease) -> None:
        """Note that the caller has got the lease."""
        if grant := self.find(lease.name, lease.nonce):
            grant.taken = True

    def drop_untaken(self) -> None:
        """Free what no caller took during its lease: its event loop may be stopped for good."""
        now = clock()
        for grant in self._by_name.copy().values():
            if not grant.taken and now >= grant.lease.deadline:
                self.drop(grant.lease)

    def find(self, name: str, nonce: str) -> Grant | None:
        """Return the grant that answers the claim with this nonce."""
        grant = self._by_name.get(name)
        return grant if grant is not None and grant.lease.nonce == nonce else None

    def remove(self, name: str, nonce: str) -> Grant | None:
        """Remove the grant that answers the claim with this nonce; None if it is not there."""
        with self._mutex:
            self._lost.pop(nonce, None)
            grant = self.find(name, nonce)
            if grant is not None:
                del self._by_name[name]
            return grant

    def drop(self, lease: Lease) -> None:
        """Remove the grant of this lease, and delete its node without waiting for it."""
        if grant := self.remove(lease.name, lease.nonce):
            grant.drop()

    def drop_of_owner(self, name: str, owner: Owner) -> None:
        """Free a lock that this owner held, before it asks for it again."""
        grant = self._by_name.get(name)
        if grant is not None and grant.lease.owner == owner:
            self.drop(grant.lease)

    def loss_reason(self, nonce: str) -> str | None:
        """Return why the lease with this nonce was lost; None if it was not."""
        return self._lost.get(nonce)

    def lose(self, grant: Grant, reason: str) -> None:
        """Note that a grant has ended, and call ``on_loss``; once."""
        with self._mutex:
            if self._by_name.get(grant.lease.name) is not grant:
                return
            del self._by_name[grant.lease.name]
            self._lost[grant.lease.nonce] = reason
        self._on_loss(grant.lease, reason)

    def lose_all(self, reason: str, session: ZooKeeperSession | None = None) -> None:
        """Note that all grants, or those of one session, have ended."""
        for grant in self._by_name.copy().values():
            if session is None or grant.node.session is session:
                self.lose(grant, reason)

    def watch(self, lease: Lease) -> bool:
        """Watch the node of a lease, and tell of a loss when it is deleted; False if it is lost."""
        grant = self.find(lease.name, lease.nonce)
        if grant is not None and not grant.is_watched:
            grant.is_watched = True
            watch = grant.client.watches.add(grant.node.path)
            watch.then(partial(self._on_watch_end, grant))
        return grant is not None

    def _on_watch_end(self, grant: Grant, watch: Reply) -> None:
        grant.is_watched = False  # the next renewal adds another
        if isinstance(watch.error, NoNodeError):
            self.lose(grant, NODE_DELETED)
