"""One kazoo client: its session, its requests, and when it can be used."""

from __future__ import annotations

import contextlib
import logging
import threading
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

from distlock.backends.zookeeper.handlers import new_handler
from distlock.backends.zookeeper.options import Options
from distlock.backends.zookeeper.requests import Reply
from distlock.backends.zookeeper.watches import Watches
from distlock.backends.zookeeper.wire import Wire
from distlock.bell import Bell
from distlock.clock import clock, left
from distlock.exceptions import LockUnavailable

logger = logging.getLogger("distlock")

#: Seconds that a server gets to acknowledge the end of a session.
_FAREWELL = 2.0
_REFUSALS = (AuthFailedError, SASLException, SessionClosedRequireSaslError)


class Session:
    """A session with the servers: nodes that stand in line live as long as it does."""

    __slots__ = ("id", "over", "timeout")

    def __init__(self, number: int, timeout: float) -> None:
        self.id = number
        self.timeout = timeout
        self.over = False


class Client:
    """A client that connects by itself, again and again, until it is closed.

    ``on_begin`` and ``on_over`` are called with each session as it begins and ends, ``on_over``
    before anyone is told that there is a new one; ``on_tick`` several times in the time-out of a
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
        self.dead = False  # it will not connect again
        self._failure: Exception | None = None  # why
        self._on_begin = on_begin
        self._on_over = on_over
        self._handler = new_handler()
        self._handler.connect_limit = options.connect_limit
        self._handler.greeting_limit = options.greeting_limit
        self._handler.on_end = self._on_end
        self._handler.on_open = self._on_open
        self._handler.on_tick = on_tick
        self._kazoo = KazooClient(**options.arguments(self._handler))
        self._kazoo.add_listener(self._on_state)
        self._mutex = threading.Lock()
        self._wire: Wire | None = None  # while requests can be sent
        self._waiting: list[Callable[[], None]] = []
        self.watches = Watches(self.send)
        self._handler.on_event = self.watches.on_event

    def start(self) -> None:
        """Begin to connect."""
        self._kazoo.start_async()

    def close(self) -> None:
        """End the session, and with it everything that is held; waits a moment for the servers."""
        if self.dead:
            return
        self._handler.close_within(_FAREWELL)
        with contextlib.suppress(KazooException, OSError):
            self._kazoo.stop()
        with contextlib.suppress(Exception):  # a plain Exception if its thread still runs
            self._kazoo.close()

    def abandon(self) -> None:
        """Let go of the connection in a forked child; the session is the parent's."""
        self.dead = True
        self._handler.abandon()

    # Asking

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._wire is not None

    def send(self, request: Any) -> Reply:
        """Send a request without waiting for anything; see send_all()."""
        return self.send_all([request])[0]

    def send_all(self, requests: Sequence[Any]) -> list[Reply]:
        """Send requests after all that were sent before; they get lost without a connection."""
        if wire := self._wire:
            return wire.submit(requests)
        replies = [Reply() for _ in requests]
        for reply in replies:
            reply.set_exception(ConnectionLoss())
        return replies

    def ask(self, requests: Sequence[Any], deadline: float | None) -> list[Reply]:
        """Send requests and wait for all answers; once more if the connection breaks.

        Raises LockUnavailable if they are not answered in time. What the server said, errors
        included, is in the replies.
        """
        ends = clock() + left(deadline, self.options.timeout)
        repeated = False
        while True:
            self._await_connection(ends)
            replies = self.send_all(requests)
            if not replies[-1].wait(left(ends, self.options.timeout)):
                raise self.unavailable("does not answer")
            if not any(reply.lost for reply in replies):
                for reply in replies:
                    reply.repeated = repeated
                return replies
            repeated = True

    def when_connected(self, callback: Callable[[], None]) -> None:
        """Call back as soon as requests can be sent, or never will be; that may be now."""
        with self._mutex:
            if not self.connected and not self.dead:
                self._waiting.append(callback)
                return
        callback()

    def counted_from(self, at: float) -> float:
        """Return from when on the servers count this session's time-out; see Evidence."""
        return float(self._handler.wire.evidence.counted_from(at))

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

    def _await_connection(self, ends: float) -> None:
        if self.connected:
            return
        connected = Bell()
        self.when_connected(connected.ring)
        if not connected.wait(left(ends, self.options.timeout)) or self.dead:
            error = self.unavailable()
            error.maybe_applied = False
            raise error

    # What kazoo tells, on its thread

    def _on_open(self) -> None:
        self._begin_session()
        with self._mutex:
            self._wire = self._handler.wire
        self._call_waiting()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            return  # but not authenticated yet
        if wire := self._wire:
            self._wire = None
            self._kazoo.last_zxid = max(self._kazoo.last_zxid, wire.last_zxid)
            self._handler.hurry()
        if state == KazooState.LOST:
            self._end_session()
        self.watches.lose()
        if self._kazoo.client_state == KeeperState.AUTH_FAILED:
            self._on_end(AuthFailedError())

    def _begin_session(self) -> None:
        number, timeout = self._kazoo.client_id[0], self._handler.wire.session_timeout
        self._handler.wire.evidence.session_timeout = timeout
        self._handler.attend(timeout, self.options.server_count)
        if self.session is None or self.session.id != number or self.session.over:
            self._end_session()
            self.session = Session(number, timeout)
            self._on_begin(self.session)

    def _end_session(self) -> None:
        if self.session is not None and not self.session.over:
            self.session.over = True
            self._on_over(self.session)

    def _on_end(self, failure: Exception | None) -> None:
        """Note that kazoo has given up, or was told to."""
        self._failure = self._failure or failure
        self.dead = True
        self._wire = None
        self._end_session()
        self._call_waiting()
        with contextlib.suppress(Exception):  # a plain Exception while its thread still runs
            self._kazoo.close()

    def _call_waiting(self) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            try:
                callback()
            except Exception:  # or the connection would break for everyone
                logger.exception("a callback of the ZooKeeper client failed")
