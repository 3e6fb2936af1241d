"""kazoo's ways to run in a process, changed so that its connection thread handles our requests."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from distlock.backends.zookeeper.connecting import connect
from distlock.backends.zookeeper.wire import OnEvent, Wire
from distlock.clock import clock
from distlock.threads import without_signals
from distlock.types.owners import gevent_patched

_READABLE = ~select.POLLOUT

#: Parts of a session's time-out: how long a server may owe an answer before another one is asked;
#: how often that is looked at; and what all servers together have to take up a session again.
_MOST_SILENCE = 1 / 5
_LOOK = 1 / 12
_REUNION = 1 / 3


class Handler:
    """Mixed into one of kazoo's handlers, it puts a :class:`Wire` in the place of each connection.

    On the connection thread ``on_open`` is called when requests can be sent, ``on_event`` with the
    type and the path of each event of a watch, ``on_tick`` now and then, and ``on_end`` with what
    went wrong when kazoo has given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wire: Wire | None = None
        self.last_error: OSError | None = None
        self.connect_limit = float("inf")  # seconds for one server to accept a connection
        self.greeting_limit = float("inf")  # and to say something then
        self.on_open: Callable[[], None] = lambda: None
        self.on_event: OnEvent = lambda type, path: None
        self.on_tick: Callable[[], None] = lambda: None
        self.on_end: Callable[[Exception | None], None] = lambda error: None
        self._pair: tuple[Any, Any] | None = None
        self._polling = select.poll()
        self._polled: tuple[Wire, int] | None = None  # what that is for
        self._closes_at: float | None = None  # of time.monotonic()
        self._session_timeout = 0.0  # seconds; none yet
        self._servers = 1
        self._hurries_until = 0.0
        self._shunned: tuple[Any, float] | None = None  # an address, and until when

    def attend(self, session_timeout: float, servers: int) -> None:
        """See to it that the session outlasts the silence of one of so many servers."""
        self._session_timeout, self._servers = session_timeout, servers
        self._hurries_until = 0.0

    def hurry(self) -> None:
        """Give no server much time, until the session can be saved no more."""
        if not self._hurries_until:
            self._hurries_until = clock() + self._session_timeout

    def close_within(self, seconds: float) -> None:
        """Break the connection if the session has not been ended by then."""
        self._closes_at = time.monotonic() + seconds

    def abandon(self) -> None:
        """Close this process's copies of what belongs to its parent, which notices nothing."""
        if self.wire is not None:
            self.wire.abandon()
        for end in self._pair or ():
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
        self._pair = super().create_socket_pair()  # type: ignore[misc]
        return self._pair

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **kwargs: Any
    ) -> Wire:
        limit = min(timeout, self.connect_limit, self._reunion_limit)
        try:
            if self._shunned and self._shunned[0] == address and clock() < self._shunned[1]:
                raise ConnectionRefusedError("it has not answered, and others may")
            connection = connect(address, hostname, limit, **kwargs)
        except OSError as error:
            self.last_error = type(error)(
                *error.args
            )  # without the frames that it has gone through
            raise
        self.wire = Wire(connection, self._wake, lambda type, path: self.on_event(type, path))
        self.wire.address = address
        return self.wire

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Wait as ``select.select`` does for what is kazoo's, and meanwhile handle what is ours."""
        if writing:
            return [], writing, []  # a wire takes everything
        wire = self.wire
        assert wire is not None
        if timeout is not None and not wire.is_open and len(reading) == 1:  # kazoo is greeted
            timeout = min(timeout, self.greeting_limit, self._reunion_limit)
        ends = float("inf") if timeout is None else time.monotonic() + timeout
        if not wire.is_open and len(reading) > 1:  # kazoo has authenticated, and waits for requests
            wire.open()
            self.on_open()
        while not (wire.pending() and wire in reading):
            ready = self._poll(wire, reading, self._rest(ends))
            if not ready:
                self._shun_the_silent(wire)
            if wire.is_open and wire in ready:
                wire.read()
                ready.remove(wire)
            if time.monotonic() >= ends:
                self.on_tick()
                return ready, [], []
            if ready:
                return ready, [], []
        return [wire], [], []

    def _poll(self, wire: Wire, reading: Sequence[Any], seconds: float | None) -> list[Any]:
        """Return what can be read; none of it when the time is over, or there is more to flush."""
        if self._polled != (wire, len(reading)):
            self._polled = wire, len(reading)
            self._polling = select.poll()
            for each in reading:
                self._polling.register(each.fileno(), select.POLLIN)
        if not wire.flush():
            self._polled = None  # only this once
            self._polling.modify(wire.fileno(), select.POLLIN | select.POLLOUT)
        events = self._polling.poll(None if seconds is None else seconds * 1000)
        numbers = [number for number, event in events if event & _READABLE]
        return [each for each in reading if each.fileno() in numbers]

    @property
    def _reunion_limit(self) -> float:
        """Seconds that one server has to take up the session again; a dead one must not use all."""
        if clock() >= self._hurries_until:
            return float("inf")
        return self._session_timeout * _REUNION / self._servers

    def _shun_the_silent(self, wire: Wire) -> None:
        """Leave a server that owes an answer for too long, if there are others."""
        since = wire.silent_since
        if since is None or self._servers < 2 or not wire.is_open:
            return
        if clock() - since > self._session_timeout * _MOST_SILENCE:
            self._shunned = wire.address, clock() + self._session_timeout
            raise self.timeout_exception("a request is not answered")  # type: ignore[attr-defined]

    def _rest(self, ends: float) -> float | None:
        """Return the seconds until ``ends``, or until the end of a farewell if that is sooner."""
        if self._closes_at is not None:
            if time.monotonic() >= self._closes_at:
                raise TimeoutError("the server does not answer the farewell")
            ends = min(ends, self._closes_at)
        if self._session_timeout and self._servers > 1:
            ends = min(ends, time.monotonic() + self._session_timeout * _LOOK)
        return None if ends == float("inf") else max(ends - time.monotonic(), 0.0)

    def _wake(self) -> None:
        # kazoo reads a byte that stands for no request, and waits again.
        if self._pair is not None:
            with suppress(OSError):
                self._pair[1].send(b"\0")


class Threads(Handler, SequentialThreadingHandler):  # type: ignore[misc]
    """For processes whose threads are threads."""


def new_handler() -> Any:
    """Return a handler for this process, based on kazoo's gevent one where gevent rules."""
    if not gevent_patched():
        return Threads()
    from kazoo.handlers.gevent import SequentialGeventHandler

    class Greenlets(Handler, SequentialGeventHandler):  # type: ignore[misc]
        """For processes whose threads are greenlets."""

    return Greenlets()
