"""A TCP proxy before a server: the network that tests can break."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from queue import SimpleQueue
from typing import Self

from tests.servers.process import HOST, free_port

_CHUNK = 65536


class _Link:
    """One client's connection and its counterpart at the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.harmed = False  # bytes are missing: it can never be of use again
        self.forgotten = False  # the server's bytes lead nowhere
        self.reply_is_lost: threading.Event | None = None
        # What is under way in each direction, once that has taken time.
        self.requests: _Road | None = None
        self.replies: _Road | None = None
        self._open_ends = 2

    def cut(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def half_closed(self) -> bool:
        """Note that one direction has ended; tell whether both have."""
        self._open_ends -= 1
        return self._open_ends == 0

    def close(self) -> None:
        self.client.close()
        self.server.close()


class _Road:
    """One direction of a connection on which everything takes a while; it keeps the order."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._under_way: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        threading.Thread(target=self._arrive, name="proxy-road", daemon=True).start()

    def send(self, data: bytes, seconds: float) -> None:
        """Let this arrive in so many seconds; nothing at all is the end."""
        self._under_way.put((time.monotonic() + seconds, data))

    def _arrive(self) -> None:
        while True:
            due, data = self._under_way.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            if not data:
                with contextlib.suppress(OSError):
                    self._end.shutdown(socket.SHUT_WR)
                return
            _pass_on(data, self._end)


class Delay:
    """A request that is kept back until end(); ``kept_back`` is set once it has come."""

    def __init__(self) -> None:
        self.kept_back = threading.Event()
        self.over = threading.Event()

    def end(self) -> None:
        """Let the server have the request now."""
        self.over.set()


class Proxy:
    """Forwards connections to a server until told otherwise; a context manager.

    Every method takes effect at once, for the connections there are and for new ones.
    """

    def __init__(self, port: int, host: str = HOST) -> None:
        self.host = HOST
        self.port = free_port()
        self._target = (host, port)
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._drops_requests = False
        self._drops_replies = False
        self._losing: tuple[bytes, threading.Event] | None = None
        self._forgetting: tuple[bytes, threading.Event] | None = None
        self._delaying: tuple[bytes, Delay] | None = None
        self._refusing: bytes | None = None
        self._slowness = 0.0, 0.0
        self._ignoring: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._listen()

    @property
    def connections(self) -> int:
        """How many connections go through it now."""
        with self._lock:
            return len(self._links)

    def lead_new_to(self, port: int) -> None:
        """Lead new connections to another server on this machine; those there are go on."""
        self._target = (HOST, port)

    def cut(self) -> None:
        """Close all connections; new ones are accepted."""
        with self._lock:
            for link in self._links:
                link.cut()

    def refuse(self) -> None:
        """Close all connections and refuse new ones until `heal`."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut()

    def ignore(self) -> None:
        """Close all connections; new ones are neither accepted nor refused until `heal`."""
        self.refuse()
        # The queue of those that are not accepted yet is full: what else comes is dropped.
        self._ignoring = [socket.create_server((self.host, self.port), backlog=0)]
        with contextlib.suppress(TimeoutError):
            while True:
                self._ignoring.append(socket.create_connection((self.host, self.port), 0.2))

    def refuse_from(self, mark: bytes) -> None:
        """Close all connections, and then each whose client says ``mark``, until `heal`."""
        with self._lock:
            self._refusing = mark
        self.cut()

    def lead_to(self, port: int) -> None:
        """Close all connections, and lead new ones to another server on this machine."""
        self._target = (HOST, port)
        self.cut()

    def drop_requests(self) -> None:
        """Swallow what clients send until `heal`."""
        with self._lock:
            self._drops_requests = True

    def drop_replies(self) -> None:
        """Swallow what the server sends until `heal`."""
        with self._lock:
            self._drops_replies = True

    def silence(self) -> None:
        """Swallow everything until `heal`; connections stay open."""
        with self._lock:
            self._drops_requests = self._drops_replies = True

    def lose_reply(self, to: bytes = b"") -> threading.Event:
        """Lose the reply to the next request that contains ``to``, and its connection with it.

        The event is set when it has happened; the server has then carried out the request.
        """
        event = threading.Event()
        with self._lock:
            self._losing = (to, event)
        return event

    def forget(self, asked: bytes) -> threading.Event:
        """Swallow all replies, from the next request that contains ``asked``, on its connection.

        Both sides believe that it is open, as where a firewall has forgotten it. The event is set
        when that has begun.
        """
        event = threading.Event()
        with self._lock:
            self._forgetting = asked, event
        return event

    def forget_open(self) -> None:
        """Swallow all replies on the connections that are open now; see `forget`."""
        with self._lock:
            for link in self._links:
                link.forgotten = True

    def delay(self, asked: bytes) -> Delay:
        """Keep back the next request that contains ``asked``, and what follows on its connection.

        The server gets it when the delay ends, even if the client has hung up by then.
        """
        delay = Delay()
        with self._lock:
            self._delaying = (asked, delay)
        return delay

    def slow_down(self, requests: float = 0.0, replies: float = 0.0) -> None:
        """Let all that is sent from now on arrive so many seconds later, each direction its own."""
        with self._lock:
            self._slowness = requests, replies

    def heal(self) -> None:
        """Forward again, and at once; connections from which bytes are missing are cut."""
        with self._lock:
            self._drops_requests = self._drops_replies = False
            self._slowness = 0.0, 0.0
            self._losing = self._refusing = None
            for link in self._links:
                if link.harmed:
                    link.cut()
            refusing = self._listener is None
            ignoring, self._ignoring = self._ignoring, []
        for end in ignoring:
            end.close()
        if refusing:
            self._listen()

    def close(self) -> None:
        """Close all connections for good."""
        self.refuse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _listen(self) -> None:
        listener = socket.create_server((self.host, self.port), backlog=128)
        with self._lock:
            self._listener = listener
        self._spawn(self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._spawn(self._connect, client, listener)

    def _connect(self, client: socket.socket, listener: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        link = _Link(client, server)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links.add(link)
            if self._listener is not listener:
                link.cut()  # refused while it was being connected
        self._spawn(self._forward_requests, link)
        self._spawn(self._forward_replies, link)

    def _forward_requests(self, link: _Link) -> None:
        while data := _received(link.client):
            with self._lock:
                if self._refusing is not None and self._refusing in data:
                    link.cut()
                    break
                dropped = self._drops_requests
                link.harmed |= dropped
                if not dropped and self._losing and self._losing[0] in data:
                    link.reply_is_lost, self._losing = self._losing[1], None
                if self._forgetting is not None and self._forgetting[0] in data:
                    self._forgetting[1].set()
                    link.forgotten, self._forgetting = True, None
                delay = None
                if self._delaying is not None and self._delaying[0] in data:
                    delay, self._delaying = self._delaying[1], None
            if delay is not None:
                delay.kept_back.set()
                delay.over.wait()
            if not dropped:
                seconds, _ = self._slowness
                if seconds and link.requests is None:
                    link.requests = _Road(link.server)
                _go(link.requests, data, link.server, seconds)
        self._ended(link, link.server, link.requests, self._slowness[0])

    def _forward_replies(self, link: _Link) -> None:
        while data := _received(link.server):
            with self._lock:
                lost = link.reply_is_lost
                dropped = self._drops_replies or link.forgotten
                link.harmed |= dropped
            if lost:
                lost.set()  # before the client can notice
                link.cut()
                break
            if not dropped:
                _, seconds = self._slowness
                if seconds and link.replies is None:
                    link.replies = _Road(link.client)
                _go(link.replies, data, link.client, seconds)
        self._ended(link, link.client, link.replies, self._slowness[1])

    def _ended(self, link: _Link, other: socket.socket, road: _Road | None, seconds: float) -> None:
        with self._lock:
            if road is not None:
                road.send(b"", seconds)
            else:
                with contextlib.suppress(OSError):
                    other.shutdown(socket.SHUT_WR)
            if link.half_closed():
                self._links.discard(link)
                link.close()

    def _spawn(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, name="proxy", daemon=True).start()  # type: ignore[arg-type]


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(_CHUNK)
    except OSError:
        return b""


def _go(road: _Road | None, data: bytes, end: socket.socket, seconds: float) -> None:
    if road is None:
        _pass_on(data, end)
    else:
        road.send(data, seconds)


def _pass_on(data: bytes, end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other direction notices
        end.sendall(data)
