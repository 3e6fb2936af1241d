"""How kazoo runs in a process: its thread, its sockets, and how it waits for them."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from distlock.backends.settings import tls_context
from distlock.concurrency.threads import without_signals
from distlock.types.owners import gevent_patched


class Handler:
    """Mixed into one of kazoo's handlers: how kazoo runs in a process.

    ``connect_limit`` has the seconds that one server gets to accept a connection.
    """

    def __init__(self, connect_limit: float) -> None:
        super().__init__()
        self._connect_limit = connect_limit
        self.last_error: OSError | None = None  # why there was no connection

    def start(self) -> None:
        """Start no further thread: nothing is called back through kazoo."""

    def stop(self) -> None:
        pass

    def spawn(self, *args: Any, **kwargs: Any) -> Any:
        return without_signals(partial(super().spawn, *args, **kwargs))  # type: ignore[misc]

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **tls: Any
    ) -> socket.socket:
        try:
            return _connect(address, hostname, min(timeout, self._connect_limit), tls)
        except OSError as error:
            self.last_error = type(error)(*error.args)  # a copy without the traceback's frames
            raise

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Do as ``select.select`` does.

        kazoo's own makes an epoll object for each call, which takes several system calls. This
        takes one, because every answer to a request of a lock passes here.
        """
        polling, by_number = select.poll(), {each.fileno(): each for each in (*reading, *writing)}
        for number, each in by_number.items():
            polling.register(number, select.POLLIN if each in reading else select.POLLOUT)
        ready = [by_number[n] for n, _ in polling.poll(None if timeout is None else timeout * 1000)]
        can_read = [each for each in ready if each in reading]
        can_write = [each for each in ready if each in writing]
        return can_read, can_write, []


def new_handler(connect_limit: float) -> Any:
    """Return a handler for this process, based on kazoo's gevent one where gevent is in use."""
    base: Any = SequentialThreadingHandler
    if gevent_patched():
        from kazoo.handlers.gevent import SequentialGeventHandler

        base = SequentialGeventHandler
    return type("Handler", (Handler, base), {})(connect_limit)


def _connect(
    address: tuple[str, int], hostname: str, timeout: float, tls: Mapping[str, Any]
) -> socket.socket:
    """Return a connection; OSError if there is none in ``timeout`` seconds.

    Unlike kazoo's own function it leaves no socket open when that fails, and ``ca`` takes the place
    of the system's authorities.
    """
    connection = socket.create_connection(address, timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not tls["use_ssl"]:
            return connection
        # The files are read anew each time: they may have been replaced before they expired.
        return tls_context(tls).wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise
