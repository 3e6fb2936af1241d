"""The session that the records of one process share."""

from __future__ import annotations

import threading
from collections.abc import Collection

from distlock.backends.store import Address, RecordStore, Renewal, Session
from distlock.concurrency.clock import clock

#: It is renewed before records are bound to it, if less than this part of it is left.
_FRESH = 2 / 3


class ProcessSession:
    """One session for many records: it is renewed once for all of them.

    It is opened when it is needed, and renewed by what uses it. Unused it ends by itself.
    """

    def __init__(self, store: RecordStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        #: protects the choice of the session; nothing is asked while it is taken
        self._mutex = threading.Lock()
        self._session: Session | None = None

    def get(self, deadline: float | None) -> Session:
        """Return the session, with most of its time left. See RecordStore for the errors."""
        session = self._session
        if session is not None:
            now = clock()
            if session.deadline - now > session.seconds * _FRESH:
                return session
            if now < session.deadline:
                if session.id in self._store.renew([session.id], (), deadline).alive:
                    return self._renewed(session, now)
                self.drop(session)
        new = self._store.open_session(self._seconds, deadline)
        with self._mutex:
            # Another thread may have been faster. Records on two sessions would be renewed by no
            # one rule; the one that is not used ends by itself.
            if (current := self._session) is None or clock() >= current.deadline:
                current = self._session = new
        return current

    def latest(self, session: Session) -> Session:
        """Return a session as it was renewed last, if it is this one."""
        current = self._session
        return current if current is not None and current.id == session.id else session

    @property
    def lasts_until(self) -> float:
        """Until when, by the local clock, the records of the session may be there at most."""
        session = self._session
        return 0.0 if session is None else session.deadline + session.seconds

    def drop(self, session: Session) -> None:
        """Use another one from now on: this one has ended."""
        with self._mutex:
            if self._session is not None and self._session.id == session.id:
                self._session = None

    def renew(
        self, sessions: Collection[str], records: Collection[Address], deadline: float | None
    ) -> Renewal:
        """See RecordStore.renew(); notes it if this session is among those renewed."""
        sent_at = clock()
        renewal = self._store.renew(sessions, records, deadline)
        if (session := self._session) is not None:
            if session.id in renewal.alive:
                self._renewed(session, sent_at)
            elif session.id in renewal.ended:
                self.drop(session)
        return renewal

    def _renewed(self, session: Session, sent_at: float) -> Session:
        renewed = session.renewed(sent_at)
        with self._mutex:
            current = self._session
            # An answer may come after that to a later request.
            if current is not None and current.id == renewed.id:
                renewed = max(current, renewed, key=lambda one: one.deadline)
                self._session = renewed
        return renewed
