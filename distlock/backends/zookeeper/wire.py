"""What kazoo's connection thread reads, writes and sleeps on."""

from __future__ import annotations

import ssl
import struct
import threading
from typing import Any

#: The first answer of a server begins with its length, the protocol's version and the session's
#: time-out in milliseconds; see ConnectResponse in ZooKeeper's zookeeper.jute.
_GREETING = struct.Struct("!iii")
_PIECE = 65536

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Wire:
    """A connection to a server with buffers, and a note of how long sessions last there.

    Requests that are sent together leave together, and replies that come together are read
    together. kazoo itself reads twice for each reply, and keeps the session's time-out to itself.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._received = memoryview(b"")
        self._unsent = bytearray()
        self._greeting = b""
        self._is_encrypted = hasattr(socket, "pending")

    @property
    def session_timeout(self) -> float:
        """Seconds after which the server ends a session that it does not hear from."""
        return float(_GREETING.unpack(self._greeting)[2]) / 1000

    def recv(self, size: int) -> bytes:
        if not self._received:
            self._received = memoryview(self._socket.recv(_PIECE))
            if missing := _GREETING.size - len(self._greeting):
                self._greeting += bytes(self._received[:missing])
        piece = self._received[:size]
        self._received = self._received[size:]
        return bytes(piece)

    def pending(self) -> int:
        """Return how many bytes can be read without asking the network."""
        if self._received or not self._is_encrypted:
            return len(self._received)
        return int(self._socket.pending())

    def send(self, data: bytes) -> int:
        """Take ``data``, to be sent with the next flush()."""
        self._unsent += data
        return len(data)

    def flush(self) -> None:
        """Send as much as goes without waiting."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except _NOT_NOW:
            pass

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def close(self) -> None:
        self._socket.close()


class Doorbell:
    """Both ends of the pair of sockets by which kazoo tells its connection thread of requests.

    kazoo writes a byte for each request and reads one for each that it has sent. A pair of sockets
    is full after some hundred bytes, and would block whoever asks while there is no connection.
    This one counts, and has a byte in the pair for as long as the count is not zero.
    """

    unsent = 0

    def __init__(self, pair: tuple[Any, Any]) -> None:
        self._reading, self._writing = pair
        self._mutex = threading.Lock()
        self._rings = 0

    def send(self, data: bytes) -> int:
        with self._mutex:
            self._rings += 1
            if self._rings == 1:
                self._writing.send(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        with self._mutex:
            if self._rings == 0:
                raise BlockingIOError
            self._rings -= 1
            return bytes(self._reading.recv(size)) if self._rings == 0 else b"\0"

    def pending(self) -> int:
        """Return how many requests wait to be sent."""
        return self._rings

    def flush(self) -> None:
        """Nothing waits here."""

    def fileno(self) -> int:
        return int(self._reading.fileno())

    def close(self) -> None:
        self._reading.close()
        self._writing.close()
