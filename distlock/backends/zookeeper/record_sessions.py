"""The sessions of a store in ZooKeeper: several that share the one session with the servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from distlock.backends.zookeeper.client import Client, Session
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import start
from distlock.concurrency.timers import call_after
from distlock.exceptions import LockError
from distlock.types.lease import new_nonce

#: Seconds between two attempts to end a session whose records could not be removed.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True, eq=False)
class OpenSession:
    """A session of this process, known by ``name``."""

    name: str
    client: Client
    shared: Session
    seconds: float
    #: of clock()
    expires_at: float
    #: it was ended by its user
    ended: bool = False
    expired: bool = False

    @property
    def alive(self) -> bool:
        """Whether records may be bound to it."""
        return not (self.ended or self.expired or self.shared.over or self.client.dead)

    def renew(self, sent_at: float) -> None:
        """Let it run for its full length again; whether it was in time is seen after this.

        Several may do so at once, and the answer to an earlier request may be the later one.
        """
        self.expires_at = max(self.expires_at, sent_at + self.seconds)

    def expire(self) -> float:
        """Let it end if its time is over; return the seconds that it has left."""
        if clock() >= self.expires_at:
            # renew() sets the time, and then its caller looks at this. Here it is the other way
            # round. So if both happen at once, one sees the other.
            self.expired = True
            if clock() < self.expires_at:
                self.expired = False
        return 0.0 if self.expired else self.expires_at - clock()


class RecordSessions:
    """The sessions of this process that have not ended, or whose records are still to be removed.

    What is not renewed in time is ended here: the servers keep the process's session for the sake
    of its other leases. ``remove`` removes the records of a session by a deadline, or raises
    LockUnavailable.
    """

    def __init__(self, remove: Callable[[OpenSession, float | None], None]) -> None:
        self._remove = remove
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Have no sessions: they are the parent's."""
        #: by name; changed in single atomic steps
        self._sessions: dict[str, OpenSession] = {}

    def open(self, client: Client, shared: Session, seconds: float, sent_at: float) -> OpenSession:
        """Open a session that ends so many seconds after ``sent_at``, unless it is renewed."""
        session = OpenSession(new_nonce(), client, shared, seconds, sent_at + seconds)
        self._sessions[session.name] = session
        self._look_after(seconds, session)
        return session

    def alive(self, name: str) -> OpenSession | None:
        """Return a session if it has not ended."""
        session = self._sessions.get(name)
        return session if session is not None and session.alive else None

    def end(self, name: str, deadline: float | None) -> None:
        """End a session, and remove its records; what fails is tried again in the background."""
        session = self._sessions.get(name)
        if session is None:
            return
        # From here on nothing is sent that binds a record to it; what was sent is removed below.
        session.ended, ended_before = True, session.ended
        try:
            self._remove(session, deadline)
        except BaseException:
            if not ended_before:
                self._end_in_background(session)
            raise
        self._sessions.pop(name, None)

    def _look_after(self, seconds: float, session: OpenSession) -> None:
        """See in so many seconds whether a session has been renewed; end it if not."""

        def look() -> None:
            if session.name not in self._sessions or session.ended:
                return
            if remaining := session.expire():
                self._look_after(remaining, session)
            else:
                self._end_in_background(session)

        with suppress(RuntimeError):  # no more threads can be had: it ends with the process's
            call_after(seconds, look)

    def _end_in_background(self, session: OpenSession) -> None:
        try:
            start(self._end_later, "distlock-end-session", session)
        except RuntimeError:  # no more threads can be had yet
            with suppress(RuntimeError):  # then it ends with the process's
                call_after(_LONGEST_PAUSE, partial(self._end_in_background, session))

    def _end_later(self, session: OpenSession) -> None:
        for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
            if session.name not in self._sessions:
                return
            with suppress(LockError):
                self._remove(session, None)
                self._sessions.pop(session.name, None)
                return
            time.sleep(pause)
