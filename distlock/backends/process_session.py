"""The session of a process, to which the records of most of its leases are bound."""

from __future__ import annotations

from collections.abc import Collection

from distlock.backends.store import Address, RecordStore, Renewal, Session
from distlock.concurrency import fork
from distlock.concurrency.clock import clock

#: A session is renewed before records are bound to it, if less than this part of it is left.
_FRESH = 2 / 3


class ProcessSession:
    """One session for many records: it is renewed once for all of them.

    It is opened when it is needed, and renewed by what uses it. Unused it ends by itself.
    """

    def __init__(self, store: RecordStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self.after_fork_in_child()
        fork.reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Have no session: it is the parent's."""
        self._session: Session | None = None

    def get(self, deadline: float | None) -> Session:
        """Return the session, with most of its time left. See RecordStore for the errors."""
        session = self._session
        if session is not None:
            now = clock()
            if session.deadline - now > session.seconds * _FRESH:
                return session
            running = now < session.deadline
            if running and session.id in self._store.renew([session.id], (), deadline).alive:
                return self._renewed(session, now)
        # Two threads may do this at once: then each has a session, and the last one stays.
        session = self._session = self._store.open_session(self._seconds, deadline)
        return session

    def latest(self, session: Session) -> Session:
        """Return a session as it was renewed last, if it is this one."""
        current = self._session
        return current if current is not None and current.id == session.id else session

    def drop(self) -> None:
        """Use another one from now on: this one has ended."""
        self._session = None

    def renew(
        self, sessions: Collection[str], records: Collection[Address], deadline: float | None
    ) -> Renewal:
        """See RecordStore.renew(); notes it if this session is among those renewed."""
        sent_at = clock()
        renewal = self._store.renew(sessions, records, deadline)
        if (session := self._session) is not None and session.id in renewal.alive:
            self._renewed(session, sent_at)
        return renewal

    def _renewed(self, session: Session, sent_at: float) -> Session:
        renewed = session.renewed(sent_at)
        if (current := self._session) is not None and current.id == session.id:
            self._session = renewed
        return renewed
