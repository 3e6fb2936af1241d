"""A connection to a server that kazoo shares with requests of our own.

kazoo connects, authenticates and keeps the session alive. Our requests go past its queue: they are
sent on the thread of the caller, several at once, and each answer is handled on the connection
thread without a further thread. With kazoo's public methods instead, taking and freeing a lock
takes twice the processor time.

This and ``handler`` rely on how kazoo works inside: it calls its handler's ``select`` before it
reads and writes, with one socket while it connects and with two when it is done. So the versions
of kazoo are limited in ``pyproject.toml``.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Watch

from distlock.backends.zookeeper.requests import Reply, error_of
from distlock.concurrency.clock import clock

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
        except OSError:  # the connection thread finds the error when it reads
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
        """Read, and handle replies to our requests and events of watches."""
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
