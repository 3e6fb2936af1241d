"""Sessions are opened on threads of their own: a driver that connects cannot be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable

from distlock.backends.database.errors import NoSession
from distlock.backends.database.session import Session
from distlock.bell import Bell
from distlock.threads import start


def arrived(limit: float, opening: Callable[[], Session]) -> Session:
    """Open on a thread of its own, and do not wait for longer than the limit."""
    arrival = _Arrival(opening)
    try:
        start(arrival.run, "distlock-connect")
        return arrival.result(limit)
    except BaseException:  # also Ctrl-C: the session would be opened for nobody, and stay
        arrival.abandon()
        raise


class _Arrival:
    """A session that another thread opens, and closes if nobody wants it any more."""

    def __init__(self, opening: Callable[[], Session]) -> None:
        self._opening = opening
        self._mutex = threading.Lock()
        self._over = Bell()
        self._unwanted = False
        self._session: Session | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            session = self._opening()
        except BaseException as error:
            self._error = error
        else:
            with self._mutex:
                self._session = session
                unwanted = self._unwanted
            if unwanted:
                session.close()
        self._over.ring()

    def result(self, limit: float) -> Session:
        if self._over.wait(limit) and self._error is not None:
            raise self._error
        with self._mutex:
            session = self._session
            self._unwanted = session is None
        if session is None:
            raise NoSession(f"cannot connect within {limit:.3g} s")
        return session

    def abandon(self) -> None:
        """Want it no more. Doing it twice does no harm."""
        with self._mutex:
            self._unwanted = True
            session = self._session
        if session is not None:
            session.close()
