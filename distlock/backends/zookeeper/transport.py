"""A connection to a server that kazoo shares with requests of our own.

kazoo connects, authenticates and keeps the session alive. Our requests go past its queue: they are
sent on the thread of the caller, several at once, and each answer is handled on the connection
thread without a further thread. With kazoo's public methods instead, taking and freeing a lock
takes twice the processor time.

This is the one room that relies on how kazoo works inside: that it calls its handler's ``select``
before it reads and writes, with one socket while it connects and with two when it is done. So the
versions of kazoo are limited in ``pyproject.toml``.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Watch

from distlock.backends.zookeeper.requests import Reply, error_of
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import without_signals
from distlock.types.owners import gevent_patched

_INT = struct.Struct("!i")
_REQUEST = struct.Struct("!iii")  # length, number, type
_REPLY = struct.Struct("!iiqi")  # length, number, zxid, error
#: The first answer of a server begins with its length, the protocol's version and the session's
#: time-out in milliseconds; see ConnectResponse in ZooKeeper's zookeeper.jute.
_GREETING = struct.Struct("!iii")
_CHUNK = 16384

_EVENT, _PING = -1, -2
#: Our requests are numbered from here on; kazoo's, which are few, from 1.
_FIRST, _LAST = 2**30, 2**31 - 1

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_READABLE = ~select.POLLOUT

#: Gets the type and the path of an event of a watch.
OnEvent = Callable[[int, str], None]
#: Gets the time of clock() at which a request was sent that has been answered.
OnAnswer = Callable[[float], None]


class Transport:
    """One connection.

    Until ``open()`` all that comes is kazoo's: the greeting, and what it takes to authenticate.
    Then replies to our requests and events of watches are handled at once, and kazoo gets the rest.
    ``send``, ``recv``, ``pending``, ``fileno``, ``setblocking`` and ``close`` are called by kazoo,
    as those of a socket.
    """

    def __init__(
        self, socket: Any, wake: Callable[[], None], on_event: OnEvent, on_answer: OnAnswer
    ) -> None:
        self.last_zxid = 0
        self.is_open = False
        self._is_over = False
        #: A request may have been sent in part only, because its sender was interrupted.
        self._broken = False
        self._socket = socket
        self._is_encrypted = hasattr(socket, "pending")
        self._wake = wake
        self._on_event = on_event
        self._on_answer = on_answer
        # An encrypted socket must not be used by two threads at once.
        self._mutex = threading.Lock()
        self._unsent = bytearray()
        self._received = bytearray()
        self._for_kazoo = bytearray()
        self._greeting = b""
        self._has_ended = False  # the server has closed its end
        self._number = _FIRST
        self._unanswered: deque[tuple[int, Any, Reply, float]] = deque()
        self.created_at = self._pinged_at = clock()

    @property
    def session_timeout(self) -> float:
        """Seconds after which the server ends a session that it does not hear from."""
        return float(_GREETING.unpack(self._greeting)[2]) / 1000

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port of the server; None if the connection is closed."""
        try:
            host, port = self._socket.getpeername()[:2]
        except OSError:
            return None
        return host, port

    # Our requests, from any thread

    def submit(self, requests: Sequence[Any]) -> list[Reply]:
        """Send requests, in this order, on the calling thread; never waits."""
        replies = [Reply() for _ in requests]
        bodies = [bytes(request.serialize()) for request in requests]
        with self._mutex:
            if usable := self.is_open and not self._is_over:
                # Ctrl-C may end this anywhere, even between what the socket took and its note.
                was_broken, self._broken = self._broken, True
                try:
                    frames, sent_at = bytearray(), clock()
                    for request, body, reply in zip(requests, bodies, replies, strict=True):
                        self._number = _FIRST if self._number == _LAST else self._number + 1
                        self._unanswered.append((self._number, request, reply, sent_at))
                        frames += _REQUEST.pack(len(body) + 8, self._number, request.type) + body
                    if not was_broken:  # else close() answers
                        self._write(frames)
                        self._broken = False
                finally:
                    if self._broken:
                        self._shut_down()
        if not usable:
            for reply in replies:
                reply.settle(error=ConnectionLoss())
        return replies

    def _shut_down(self) -> None:
        """Send no more; the connection thread reads the end, and the session goes on in another."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _write(self, data: bytes | bytearray) -> None:
        """Send what goes without waiting; the connection thread sends the rest."""
        was_idle = not self._unsent
        self._unsent += data
        if was_idle and not self._flush():
            self._wake()

    def _flush(self) -> bool:
        """Send what goes; True if that was all. The mutex is held."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except _NOT_NOW:
            pass
        except OSError:  # reading will tell
            self._unsent.clear()
        return not self._unsent

    # The connection thread

    def open(self) -> None:
        """Let requests pass from now on."""
        with self._mutex:
            self.is_open = True
            self._received, self._for_kazoo = self._for_kazoo, bytearray()

    def flush(self) -> bool:
        """Send what can be sent now; True if that was all."""
        if not self._unsent:
            return True
        with self._mutex:
            if self._broken:
                self._unsent.clear()
                self._shut_down()
            return self._flush()

    def read(self) -> None:
        """Read what has come, and handle what is ours."""
        with self._mutex:
            self._receive(self._received)
        while (frame := self._next_frame()) is not None:
            self._handle(frame)

    def _receive(self, buffer: bytearray) -> None:
        try:
            while True:
                data = self._socket.recv(_CHUNK)
                self._has_ended = not data
                buffer += data
                # What an encrypted socket has decrypted already is not seen by poll().
                if len(data) < _CHUNK and not (self._is_encrypted and self._socket.pending()):
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

    def _handle(self, frame: bytes) -> None:
        _, answered, zxid, error = _REPLY.unpack_from(frame)
        if zxid > 0:
            self.last_zxid = zxid
        if answered == _EVENT:
            event, _ = Watch.deserialize(frame, _REPLY.size)
            self._on_event(event.type, event.path)
        elif answered < _FIRST:
            if answered == _PING:
                self._on_answer(self._pinged_at)
            self._for_kazoo += frame
        else:
            number, request, reply, sent_at = self._unanswered.popleft()
            self._on_answer(sent_at)
            if number != answered:
                raise OSError(f"the server answered request {answered} instead of {number}")
            if error:
                reply.settle(error=error_of(error))
            else:
                reply.settle(request.deserialize(frame, _REPLY.size))

    # kazoo

    def pending(self) -> int:
        """Return how much there is for kazoo to read; its end, too, is to be read."""
        return len(self._for_kazoo) or self._has_ended

    def send(self, data: Any) -> int:
        with self._mutex:
            self._pinged_at = clock()  # of all that kazoo sends, pings alone come after the opening
            if self._broken:
                self._shut_down()
            else:
                self._write(bytes(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self._for_kazoo and not self.is_open:
            self._receive(self._for_kazoo)
            if missing := _GREETING.size - len(self._greeting):
                self._greeting += self._for_kazoo[:missing]
        piece = bytes(self._for_kazoo[:size])
        del self._for_kazoo[:size]
        if not piece and not self._has_ended:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing yet")  # kazoo waits
        return piece

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def discard(self) -> None:
        """Close this process's copy of the connection, in a forked child.

        The mutex may be held by a thread that is not there.
        """
        self._socket.close()

    def close(self) -> None:
        with self._mutex:
            self._is_over = True
            self._socket.close()
            unanswered, self._unanswered = self._unanswered, deque()
        for _, _, reply, _ in unanswered:
            reply.settle(error=ConnectionLoss())


class TransportHandler:
    """Mixed into one of kazoo's handlers, it puts a :class:`Transport` around each connection.

    On the connection thread ``on_open`` is called when requests can be sent, ``on_event`` with
    each event of a watch, ``on_answer`` with each answer, pings included, ``on_tick`` several times
    in the time-out of a session, and ``on_end`` with what went wrong when kazoo has given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transport: Transport | None = None
        self.last_error: OSError | None = None
        self.connect_limit = float("inf")  # seconds for one server to accept a connection
        self.greeting_limit = float("inf")  # and to answer for the first time then
        self.on_open: Callable[[], None] = lambda: None
        self.on_event: OnEvent = lambda type, path: None
        self.on_answer: OnAnswer = lambda sent_at: None
        self.on_tick: Callable[[], None] = lambda: None
        self.on_end: Callable[[Exception | None], None] = lambda error: None
        self._wake_pair: tuple[Any, Any] | None = None
        self._polling = select.poll()
        self._polled: tuple[Transport, int] | None = None  # what that is for
        self._closes_at = float("inf")

    def close_within(self, seconds: float) -> None:
        """Break the connection if the session has not been ended by then."""
        self._closes_at = clock() + seconds

    def discard(self) -> None:
        """Close this process's copies of what belongs to its parent, which notices nothing."""
        if self.transport is not None:
            self.transport.discard()
        for end in self._wake_pair or ():
            end.close()

    # What kazoo calls

    def start(self) -> None:
        self._running = True  # no thread is needed: nothing is ever called back through kazoo

    def stop(self) -> None:
        self._running = False

    def spawn(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            failure = None
            try:
                function(*args, **kwargs)
            except Exception as error:  # kazoo has logged it
                failure = error
            self.on_end(failure)

        with without_signals():
            return super().spawn(run)  # type: ignore[misc]

    def create_socket_pair(self) -> Any:
        self._wake_pair = super().create_socket_pair()  # type: ignore[misc]
        return self._wake_pair

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **tls: Any
    ) -> Transport:
        try:
            connection = _connect(address, hostname, min(timeout, self.connect_limit), **tls)
        except OSError as error:
            self.last_error = type(error)(*error.args)  # a copy without the traceback's frames
            raise
        self.transport = Transport(connection, self._wake, self.on_event, self.on_answer)
        return self.transport

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Wait as ``select.select`` does for what is kazoo's, and meanwhile handle what is ours."""
        if writing:
            return [], writing, []  # a transport takes everything
        transport = self.transport
        assert transport is not None
        connected = len(reading) > 1  # kazoo has authenticated, and waits for requests as well
        if timeout is not None and not connected and not transport.is_open:
            timeout = min(timeout, self.greeting_limit)
        ends = float("inf") if timeout is None else clock() + timeout
        if connected and not transport.is_open:
            transport.open()
            self.on_open()
        while not (transport.pending() and transport in reading):
            ready = self._poll(transport, reading, ends)
            if transport.is_open and transport in ready:
                transport.read()
                ready.remove(transport)
            if ready:
                return ready, [], []
            if clock() >= ends:
                self.on_tick()
                return [], [], []
        return [transport], [], []

    def _poll(self, transport: Transport, reading: Sequence[Any], ends: float) -> list[Any]:
        """Return what can be read; none of it when the time is over, or there is more to flush."""
        if clock() >= self._closes_at:
            raise TimeoutError("the server does not confirm the end of the session")
        if self._polled != (transport, len(reading)):
            self._polled = transport, len(reading)
            self._polling = select.poll()
            for each in reading:
                self._polling.register(each.fileno(), select.POLLIN)
        if not transport.flush():
            self._polled = None  # only this once
            self._polling.modify(transport.fileno(), select.POLLIN | select.POLLOUT)
        ends = min(ends, self._closes_at)
        seconds = None if ends == float("inf") else max(ends - clock(), 0.0)
        events = self._polling.poll(None if seconds is None else seconds * 1000)
        numbers = [number for number, event in events if event & _READABLE]
        return [each for each in reading if each.fileno() in numbers]

    def _wake(self) -> None:
        # kazoo reads a byte that stands for no request, and waits again.
        if self._wake_pair is not None:
            with suppress(OSError):
                self._wake_pair[1].send(b"\0")


class ThreadingHandler(TransportHandler, SequentialThreadingHandler):  # type: ignore[misc]
    """For processes whose threads are threads."""


def new_handler() -> Any:
    """Return a handler for this process, based on kazoo's gevent one where gevent is in use."""
    if not gevent_patched():
        return ThreadingHandler()
    from kazoo.handlers.gevent import SequentialGeventHandler

    class GeventHandler(TransportHandler, SequentialGeventHandler):  # type: ignore[misc]
        """For processes whose threads are greenlets."""

    return GeventHandler()


def _connect(
    address: tuple[str, int],
    hostname: str,
    timeout: float,
    *,
    use_ssl: bool = False,
    ca: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    keyfile_password: str | None = None,
    verify_certs: bool = True,
    check_hostname: bool = True,
) -> socket.socket:
    """Return a connection; OSError if there is none in ``timeout`` seconds.

    Unlike kazoo's own function it leaves no socket open when that fails, and ``ca`` takes the place
    of the system's authorities.
    """
    connection = socket.create_connection(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not use_ssl:
            return connection
        context = ssl.create_default_context(cafile=ca)
        context.check_hostname = check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if verify_certs else ssl.CERT_NONE
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile, keyfile_password)
        return context.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise
