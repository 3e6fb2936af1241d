"""The connection to a server: kazoo makes it, and requests of ours go over it, too.

Once kazoo has connected and authenticated, :class:`ZooKeeperConnection` takes the place of the part
of kazoo that reads and writes. Requests are sent on the thread of the caller, several at once, and
each answer is handled on the connection thread without a further thread. With kazoo's public
methods taking and freeing a lock makes about 0.8 times the cycles.

So this relies on how kazoo works inside: on the methods of its ``ConnectionHandler`` that are
overridden here. Its versions are limited in ``pyproject.toml``.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ConnectionLoss, ZookeeperError
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import CloseInstance, Watch

from distlock.backends.zookeeper.requests import NotSent, Reply, error_of
from distlock.concurrency.clock import clock

_INT = struct.Struct("!i")
_REQUEST = struct.Struct("!iii")  # length, number, type
_REPLY = struct.Struct("!iiqi")  # length, number, zxid, error
_CHUNK = 16384
_MOST_NUMBERS = 2**31 - 1  # a number is an int of Java's; those of pings and events are negative

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

#: Seconds that a server gets to confirm the end of a session.
_CLOSE_LIMIT = 2.0

#: The leader alone ends sessions. Every other server reports to it, twice in a tick, the sessions
#: that have sent something: half a tick, which is this part of a session of five ticks.
REPORTED_AFTER = 1 / 10
#: How many times SessionLiveness keeps, each at least REPORTED_AFTER of a session after another.
_MOST_TIMES = 8


class SessionLiveness:
    """From when on the leader counts the time-out of a session, as far as this side can know.

    It belongs to one connection. ``begun_at`` is a time before the connection was made, which the
    leader has confirmed; add() gets the time of each request that was answered.
    """

    def __init__(self, begun_at: float, session_timeout: float) -> None:
        self._reported_after = session_timeout * REPORTED_AFTER
        #: Replaced when it changes: others read it without a mutex.
        self._times: tuple[float, ...] = (begun_at,)
        self._begun_at = begun_at

    def add(self, sent_at: float) -> None:
        """Note that a request was answered which was sent at this time."""
        if sent_at - self._times[-1] >= self._reported_after:
            self._times = (*self._times[1 - _MOST_TIMES :], sent_at)

    def counted_from(self, at: float) -> float:
        """Return from when on the leader counts at the least, if a request of ``at`` was answered.

        The answer proves that the session was alive and its server in contact with the leader. So
        the server's reports until then have arrived: the latest request before the last report
        counts.
        """
        latest = at - self._reported_after
        return next((time for time in reversed(self._times) if time <= latest), self._begun_at)


class Events(Protocol):
    """The callbacks of a connection, on its own thread. None of them may block."""

    def on_connect(self, session_timeout: float) -> None:
        """A server has answered, and will end the session after ``seconds`` of silence."""

    def on_open(self) -> None:
        """Requests can be sent."""

    def on_watch_event(self, type: int, path: str) -> None:
        """The server has sent the event of a watch."""

    def on_ping(self) -> None:
        """A ping was sent: this happens several times in the time-out of a session."""

    def on_end(self, failure: Exception | None) -> None:
        """Kazoo was stopped, or has given up because of ``failure``."""


class ZooKeeperConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, to one server after the other, with requests of our own on it.

    ``greeting_limit`` has the seconds that a server gets to answer for the first time.
    """

    def __init__(self, kazoo: KazooClient, events: Events, greeting_limit: float) -> None:
        made = kazoo._connection
        super().__init__(kazoo, made.retry_sleeper, kazoo.logger, made.sasl_options)
        kazoo._connection = self
        self.is_open = False
        self.liveness: SessionLiveness | None = None  # none before the first connection
        self._events = events
        self._greeting_limit = greeting_limit
        # It keeps requests in order. Also, an encrypted socket must not be used by two threads.
        self._mutex = threading.Lock()
        self._number = 0
        self._unanswered: deque[tuple[int, Any, Reply, float]] = deque()
        self._unsent = bytearray()
        self._received = bytearray()
        self._pinged_at = 0.0

    # From any thread

    def submit(
        self, requests: Sequence[Any], only_if: Callable[[], bool] | None = None
    ) -> list[Reply]:
        """Send requests, in this order, on the calling thread; never waits.

        ``only_if`` decides, in the moment in which they would be sent, whether they are. It must
        not block. No session begins in that moment.
        """
        replies = [Reply() for _ in requests]
        bodies = [bytes(request.serialize()) for request in requests]
        with self._mutex:
            if is_sent := self.is_open and (only_if is None or only_if()):
                is_noted = False
                try:
                    frames, sent_at = bytearray(), clock()
                    for request, body, reply in zip(requests, bodies, replies, strict=True):
                        self._number = self._number % _MOST_NUMBERS + 1
                        self._unanswered.append((self._number, request, reply, sent_at))
                        frames += _REQUEST.pack(len(body) + 8, self._number, request.type) + body
                    self._send(frames)
                    is_noted = True
                finally:
                    # Ctrl-C may come anywhere, also between what was sent and the note of it.
                    if not is_noted:
                        self.shut_down()
        if not is_sent:
            for reply in replies:
                reply.settle(error=NotSent())
        return replies

    def shut_down(self) -> None:
        """Send no more; the connection thread reads the end, and the session goes on in another."""
        with suppress(OSError, AttributeError):  # there may be no socket
            self._socket.shutdown(socket.SHUT_RDWR)

    def end_session(self) -> None:
        """End the session, and do not connect again; waits a moment for the server."""
        self.client._stopped.set()
        self.submit([CloseInstance])
        if not self.connection_stopped.wait(_CLOSE_LIMIT):
            self.shut_down()

    def discard(self) -> None:
        """Close this process's copies of the sockets, in a forked child.

        The mutex may be held by a thread that is not there. The parent notices nothing.
        """
        for each in (self._socket, self._read_sock, self._write_sock):
            if each is not None:
                each.close()

    def lose_requests(self) -> None:
        """Answer what was sent with ConnectionLoss, and send no more before the next connection."""
        with self._mutex:
            self.is_open = False
            unanswered, self._unanswered = self._unanswered, deque()
        for _, _, reply, _ in unanswered:
            reply.settle(error=ConnectionLoss())

    def _send(self, data: bytes | bytearray) -> None:
        """Send what goes without waiting, and let the connection thread send the rest."""
        was_idle = not self._unsent
        self._unsent += data
        if was_idle and not self._flush():
            self._write_sock.send(b"\0")

    def _flush(self) -> bool:
        """Send what goes without waiting; True if that was all. The mutex is held."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except _NOT_NOW:
            return False
        except OSError:  # the connection thread finds the error when it reads
            self._unsent.clear()
        return True

    # Callbacks of kazoo, on the connection thread

    def zk_loop(self) -> None:
        failure = None
        try:
            super().zk_loop()
        except Exception as error:  # kazoo has logged it
            failure = error
        self._events.on_end(failure)

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        begun_at = clock()
        self._number, self._unsent, self._received = 0, bytearray(), bytearray()
        read_timeout, connect_timeout = super()._connect(host, hostip, port)
        session_timeout = round(read_timeout * 3 / 2) / 1000  # kazoo reads for two thirds of it
        self.liveness = SessionLiveness(begun_at, session_timeout)
        self._events.on_connect(session_timeout)
        self.is_open = True
        if self.client._stopped.is_set():  # meanwhile: end_session() could not send this
            self.submit([CloseInstance])
        self._events.on_open()
        return read_timeout, connect_timeout

    def _read(self, length: int, timeout: float) -> Any:
        # It is called only until the connection is open.
        return super()._read(length, min(timeout, self._greeting_limit))

    def _write(self, data: bytes, timeout: float) -> None:
        with self._mutex:
            self._send(data)

    def _send_ping(self, connect_timeout: float) -> None:
        if not self.ping_outstanding.is_set():  # else the next answer is to the earlier one
            self._pinged_at = clock()
        super()._send_ping(connect_timeout)
        self._events.on_ping()

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send the rest of what did not go at once: _send() has woken this thread."""
        self._read_sock.recv(1)
        with self._mutex:
            done = self._flush()
        while not done:
            if not self.handler.select([], [self._socket], [], connect_timeout)[1]:
                raise self.handler.timeout_exception("socket time-out during write")
            with self._mutex:
                done = self._flush()

    def _read_socket(self, read_timeout: float) -> int | None:
        """Read, and handle all that has come; CLOSE_RESPONSE if that was the session's end."""
        self._receive()
        while (frame := self._next_frame()) is not None:
            if self._handle(frame) is CloseInstance:
                return int(CLOSE_RESPONSE)
        return None

    def _receive(self) -> None:
        is_encrypted = hasattr(self._socket, "pending")
        with self._mutex:
            try:
                while True:
                    data = self._socket.recv(_CHUNK)
                    if not data:
                        raise ConnectionDropped("socket connection broken")
                    self._received += data
                    # poll() does not see data that an encrypted socket has decrypted already.
                    if len(data) < _CHUNK and not (is_encrypted and self._socket.pending()):
                        return
            except _NOT_NOW:
                pass

    def _next_frame(self) -> bytes | None:
        if len(self._received) < _INT.size:
            return None
        end = _INT.size + _INT.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        frame = bytes(self._received[:end])
        del self._received[:end]
        return frame

    def _handle(self, frame: bytes) -> Any:
        """Handle one message of the server; return the request that it answers, if any."""
        assert self.liveness is not None
        _, answered, zxid, error = _REPLY.unpack_from(frame)
        if zxid > 0:
            self.client.last_zxid = zxid
        if answered == WATCH_XID:
            event, _ = Watch.deserialize(frame, _REPLY.size)
            self._events.on_watch_event(event.type, event.path)
            return None
        if answered == PING_XID:
            self.ping_outstanding.clear()
            self.liveness.add(self._pinged_at)
            return None
        number, request, reply, sent_at = self._unanswered.popleft()
        if number != answered:
            reply.settle(error=ConnectionLoss())
            raise ConnectionDropped(f"the server answered request {answered} instead of {number}")
        self.liveness.add(sent_at)
        if error:
            reply.settle(error=error_of(error))
        elif request is CloseInstance:
            reply.settle()
        else:
            try:
                value = request.deserialize(frame, _REPLY.size)
            except ZookeeperError as refused:  # a part of it
                reply.settle(error=refused)
            else:
                reply.settle(value)
        return request
