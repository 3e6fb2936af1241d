"""kazoo's ways to run in a process, without threads between an answer and who waits for it."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from distlock.backends.zookeeper.wire import Doorbell, Wire
from distlock.owners import gevent_patched

#: Bytes that are sent even though there may be more to come.
_MANY = 65536


class _Direct:
    """Lets kazoo's connection thread call back by itself; for callbacks that never block.

    Besides, it limits how long one server may take to accept a connection, tells when the
    connection thread has ended, and ends it when a farewell takes too long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wire: Wire | None = None
        self.last_error: OSError | None = None
        self.connect_limit = float("inf")
        self.on_end: Callable[[], None] = lambda: None
        self._closes_at: float | None = None  # of time.monotonic()
        self._bell: Doorbell | None = None

    def close_within(self, seconds: float) -> None:
        """Break the connection if the session has not been ended by then."""
        self._closes_at = time.monotonic() + seconds

    def abandon(self) -> None:
        """Close this process's copies of what belongs to its parent, which notices nothing."""
        for each in (self.wire, self._bell):
            if each is not None:
                each.close()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def spawn(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            try:
                function(*args, **kwargs)
            finally:
                self.on_end()

        return super().spawn(run)  # type: ignore[misc]

    def create_socket_pair(self) -> tuple[Doorbell, Doorbell]:
        self._bell = Doorbell(super().create_socket_pair())  # type: ignore[misc]
        return self._bell, self._bell

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Wire:
        timeout = min(timeout, self.connect_limit)
        try:
            connection = super().create_connection(  # type: ignore[misc]
                *args, timeout=timeout, **kwargs
            )
        except OSError as error:
            self.last_error = error
            raise
        self.wire = Wire(connection)
        return self.wire

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait as ``select.select`` does, for wires and doorbells."""
        if writing:
            return [], list(writing), []  # a wire takes everything
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            ready = [each for each in reading if each.pending()]
            if ready and all(each.unsent < _MANY for each in reading):
                return ready, [], []  # there may be more to send along
            found = self._poll(reading, 0 if ready else self._rest(ends))
            if ready or found or (ends is not None and time.monotonic() >= ends):
                return ready + [each for each in found if each not in ready], [], []

    def _poll(self, reading: Sequence[Any], seconds: float | None) -> list[Any]:
        """Flush; return what can be read by then. None of it may also mean: go on flushing."""
        poll = select.poll()
        for each in reading:
            each.flush()
            poll.register(each.fileno(), select.POLLIN | (select.POLLOUT if each.unsent else 0))
        events = dict(poll.poll(None if seconds is None else seconds * 1000))
        return [each for each in reading if events.get(each.fileno(), 0) & ~select.POLLOUT]

    def _rest(self, ends: float | None) -> float | None:
        """Return the seconds until ``ends``, or until the end of a farewell if that is sooner."""
        if self._closes_at is not None:
            if time.monotonic() >= self._closes_at:
                raise TimeoutError("the server does not answer the farewell")
            ends = self._closes_at if ends is None else min(ends, self._closes_at)
        return None if ends is None else max(ends - time.monotonic(), 0.0)


class Threads(_Direct, SequentialThreadingHandler):  # type: ignore[misc]
    """For processes whose threads are threads."""


def new_handler() -> Any:
    """Return a handler for this process, kazoo's gevent one where gevent replaces threads."""
    if not gevent_patched():
        return Threads()
    from kazoo.handlers.gevent import SequentialGeventHandler

    class Greenlets(_Direct, SequentialGeventHandler):  # type: ignore[misc]
        """For processes whose threads are greenlets."""

    return Greenlets()
