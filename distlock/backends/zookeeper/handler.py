"""kazoo's ways to run in a process, changed so that its thread handles our requests, too."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from distlock.backends.zookeeper.transport import OnAnswer, OnEvent, Transport
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import without_signals
from distlock.types.owners import gevent_patched

_READABLE = ~select.POLLOUT


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
        self._by_number: dict[int, Any] = {}  # what is polled, by its file number
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

        return without_signals(partial(super().spawn, run))  # type: ignore[misc]

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
        """Wait as ``select.select`` does for kazoo's data, and handle our replies meanwhile."""
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
        if self._polled != (transport, len(reading)):
            self._polled = transport, len(reading)
            self._polling = select.poll()
            self._by_number = {each.fileno(): each for each in reading}
            for number in self._by_number:
                self._polling.register(number, select.POLLIN)
        if not transport.flush():
            self._polled = None  # only this once
            self._polling.modify(transport.fileno(), select.POLLIN | select.POLLOUT)
        rest = min(ends, self._closes_at) - clock()
        if rest <= 0 and self._closes_at <= ends:
            raise TimeoutError("the server does not confirm the end of the session")
        events = self._polling.poll(None if rest == float("inf") else max(rest, 0.0) * 1000)
        return [self._by_number[number] for number, event in events if event & _READABLE]

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
