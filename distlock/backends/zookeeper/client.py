"""The client of a ZooKeeper: its connection, its session and its requests."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.protocol.states import KazooState, KeeperState

from distlock.backends.zookeeper.handler import new_handler
from distlock.backends.zookeeper.options import Options
from distlock.backends.zookeeper.requests import Delete, Reply
from distlock.backends.zookeeper.transport import Transport
from distlock.backends.zookeeper.watches import NodeWatches
from distlock.concurrency.clock import clock, left
from distlock.concurrency.pending import Latch
from distlock.exceptions import LockUnavailable

logger = logging.getLogger("distlock")

#: Seconds that a server gets to confirm the end of a session.
_CLOSE_LIMIT = 2.0
_REFUSALS = (AuthFailedError, SASLException, SessionClosedRequireSaslError)

#: The leader alone ends sessions. Every other server reports to it, twice in a tick, the sessions
#: that have sent something: half a tick, which is this part of a session of five ticks.
REPORTED_AFTER = 1 / 10
#: SessionLiveness keeps times in steps of this part of that time, and so many of them.
_STEP = 1 / 4
_MOST_TIMES = 64


class Session:
    """A session with the servers: its ephemeral nodes live as long as it does."""

    __slots__ = ("id", "over", "timeout")

    def __init__(self, number: int, timeout: float) -> None:
        self.id = number
        self.timeout = timeout
        self.over = False


class SessionLiveness:
    """From when on the leader counts the time-out of a session, as far as this side can know.

    It belongs to one connection. ``begun_at`` is a time before the connection was made, which the
    leader has confirmed; add() gets the time of each request that was answered.
    """

    def __init__(self, begun_at: float, session_timeout: float) -> None:
        self._reported_after = session_timeout * REPORTED_AFTER
        self._times = deque([begun_at], maxlen=_MOST_TIMES)
        self._begun_at = begun_at

    def add(self, sent_at: float) -> None:
        """Note that a request was answered which was sent at this time."""
        if sent_at - self._times[-1] >= self._reported_after * _STEP:
            self._times.append(sent_at)

    def counted_from(self, at: float) -> float:
        """Return from when on the leader counts at the least, if a request of ``at`` was answered.

        The answer proves that the session was alive and its server in contact with the leader. So
        the server's reports until then have arrived: the latest request before the last report
        counts.
        """
        latest = at - self._reported_after
        times = reversed(list(self._times))  # a copy, because answers go on coming
        return next((time for time in times if time <= latest), self._begun_at)


class Client:
    """A client that connects by itself, again and again, until it is closed.

    ``on_begin`` and ``on_over`` are called with each session as it begins and ends, ``on_over``
    before requests can be sent in the next one; ``on_tick`` several times in the time-out of a
    session. They, and all callbacks, run on the client's own thread and must not block.
    """

    def __init__(
        self,
        options: Options,
        on_begin: Callable[[Session], None],
        on_over: Callable[[Session], None],
        on_tick: Callable[[], None],
    ) -> None:
        self.options = options
        self.session: Session | None = None
        self.liveness: SessionLiveness | None = None  # none before the first connection
        self.dead = False  # it will not connect again
        self._failure: Exception | None = None  # why
        self._on_begin = on_begin
        self._on_over = on_over
        self._handler = new_handler()
        self._handler.connect_limit = options.connect_limit
        self._handler.greeting_limit = options.greeting_limit
        self._handler.on_end = self._on_end
        self._handler.on_open = self._on_open
        self._handler.on_answer = self._on_answer
        self._handler.on_tick = on_tick
        #: connects, and keeps the session alive
        self.kazoo = KazooClient(**options.arguments(self._handler))
        self.kazoo.add_listener(self._on_state)
        self._mutex = threading.Lock()
        self._transport: Transport | None = None  # while requests can be sent
        self._waiting: list[Callable[[], None]] = []
        self.watches = NodeWatches(self.send)
        self._handler.on_event = self.watches.on_event

    def start(self) -> None:
        """Begin to connect."""
        self.kazoo.start_async()

    def close(self) -> None:
        """End the session, and with it everything that is held; waits a moment for the servers."""
        if self.dead:
            return
        self._handler.close_within(_CLOSE_LIMIT)
        with contextlib.suppress(KazooException, OSError):
            self.kazoo.stop()
        with contextlib.suppress(Exception):  # a plain Exception if its thread still runs
            self.kazoo.close()

    def discard(self) -> None:
        """Drop the connection in a forked child; the session is the parent's."""
        self.dead = True
        self._handler.discard()

    # Asking

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._transport is not None

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port of the server that is connected to; None if there is none."""
        transport = self._transport
        return None if transport is None else transport.server

    def send(self, request: Any) -> Reply:
        """Send a request without waiting for anything; see send_all()."""
        return self.send_all([request])[0]

    def send_all(self, requests: Sequence[Any]) -> list[Reply]:
        """Send requests after all that were sent before; they get lost without a connection."""
        if transport := self._transport:
            return transport.submit(requests)
        replies = [Reply() for _ in requests]
        for reply in replies:
            reply.settle(error=ConnectionLoss())
        return replies

    def ask(self, requests: Sequence[Any], deadline: float | None) -> list[Reply]:
        """Send requests and wait for all answers; once more if the connection breaks.

        Raises LockUnavailable if they are not answered in time. The server's answers, errors
        included, are in the replies.
        """
        ends = clock() + left(deadline, self.options.timeout)
        repeated = False
        while True:
            self._wait_until_connected(ends)
            replies = self.send_all(requests)
            if not replies[-1].wait(left(ends, self.options.timeout)):
                raise self.unavailable("does not answer")
            if not any(reply.lost for reply in replies):
                for reply in replies:
                    reply.repeated = repeated
                return replies
            repeated = True

    def delete_node(self, session: Session, path: str) -> None:
        """Delete a node of ``session`` without waiting, also after the connection has come back.

        The end of the session removes it too.
        """

        def delete() -> None:
            if self.session is session and not session.over:
                self.send(Delete(path, -1)).then(done)

        def done(reply: Reply) -> None:
            if reply.lost:
                self.when_connected(delete)

        delete()

    def when_connected(self, callback: Callable[[], None]) -> None:
        """Call back as soon as requests can be sent, or never will be; that may be now."""
        with self._mutex:
            if not self.connected and not self.dead:
                self._waiting.append(callback)
                return
        callback()

    def counted_from(self, at: float) -> float:
        """Return from when on the servers count this session's time-out; see SessionLiveness."""
        assert self.liveness is not None, "it has never been connected"
        return self.liveness.counted_from(at)

    def unavailable(self, problem: str = "", cause: Exception | None = None) -> LockUnavailable:
        """Return the error that says why the servers cannot be asked."""
        if not problem:
            refused = isinstance(self._failure, _REFUSALS)
            problem = "refuses the credentials" if refused else "cannot be reached"
        if not self.connected:
            cause = cause or self._failure or self._handler.last_error
        because = f" ({type(cause).__name__}: {cause})" if cause else ""
        error = LockUnavailable(f"ZooKeeper at {self.options.hosts} {problem}{because}")
        error.__cause__ = cause
        return error

    def checked(self, reply: Reply) -> Any:
        """Return the answer; LockUnavailable if it is an error."""
        if reply.error is None:
            return reply.value
        raise self.unavailable("refused", reply.error) from reply.error

    def _wait_until_connected(self, ends: float) -> None:
        if self.connected:
            return
        connected = Latch()
        self.when_connected(connected.set)
        if not connected.wait(left(ends, self.options.timeout)) or self.dead:
            error = self.unavailable()
            error.maybe_applied = False
            raise error

    # What kazoo calls, on its thread

    def _on_open(self) -> None:
        transport = self._handler.transport
        self.liveness = SessionLiveness(transport.created_at, transport.session_timeout)
        self._begin_session(self.kazoo.client_id[0], transport.session_timeout)
        with self._mutex:
            self._transport = transport
        self._call_waiting()

    def _on_answer(self, sent_at: float) -> None:
        if self.liveness is not None:
            self.liveness.add(sent_at)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            return  # but not authenticated yet
        if transport := self._transport:
            self._transport = None
            self.kazoo.last_zxid = max(self.kazoo.last_zxid, transport.last_zxid)
        if state == KazooState.LOST:
            self._end_session()
        self.watches.on_disconnect()
        if self.kazoo.client_state == KeeperState.AUTH_FAILED:
            self._on_end(AuthFailedError())

    def _begin_session(self, number: int, timeout: float) -> None:
        if self.session is None or self.session.id != number or self.session.over:
            self._end_session()
            self.session = Session(number, timeout)
            self._on_begin(self.session)

    def _end_session(self) -> None:
        if self.session is not None and not self.session.over:
            self.session.over = True
            self._on_over(self.session)

    def _on_end(self, failure: Exception | None) -> None:
        """Note that kazoo has given up, or was stopped."""
        self._failure = self._failure or failure
        self.dead = True
        self._transport = None
        self._end_session()
        self._call_waiting()
        with contextlib.suppress(Exception):  # a plain Exception while its thread still runs
            self.kazoo.close()

    def _call_waiting(self) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            try:
                callback()
            except Exception:  # or the connection would break for everyone
                logger.exception("a callback of the ZooKeeper client failed")
