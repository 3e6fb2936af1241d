"""A few shared sessions with one database, and the one place where statements are tried again."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar
from weakref import ref

from django.core import mail
from django.db import connections

from distlock.backends.database import errors
from distlock.backends.database.connect import current_settings, open_session
from distlock.backends.database.connection import Session
from distlock.backends.database.permits import Permit, Permits
from distlock.backends.database.statements import Result, Statement
from distlock.clock import clock, left
from distlock.watchdog import watchdog

#: Seconds that the database gets for an answer even if the caller has less time left: the last look
#: at a lock is made when the time is up, and must not fail just for that.
SHORTEST_LIMIT = 0.25

#: Seconds that a session is kept while nobody uses it, unless the settings say otherwise.
IDLE = 60.0

logger = logging.getLogger("distlock")

T = TypeVar("T")

#: What to run; a function gets the session, for texts that depend on the server.
Request = Statement | Callable[[Session], Statement]


class Pool:
    """Sessions with one database, which the threads of a process share."""

    def __init__(
        self,
        database: str,
        *,
        timeout: float,
        sessions: int,
        idle: float | None = None,
        pooled: bool | None = False,
    ) -> None:
        """``timeout`` and ``idle`` are seconds: the most for any answer, and to keep a session.

        At most ``sessions`` are shared at a time; that many threads and no more ask at once, but
        for what must not wait for others, see work().

        ``idle=None`` is a minute, but nothing where Django's tests run: an open session would keep
        the test database from being dropped. See open_session() for ``pooled``.
        """
        self.database = database
        self.timeout = timeout
        self.sessions = sessions
        #: whether a pooler is known that may give every packet to another session of the server
        self.pooled = bool(pooled)
        self._pooled = pooled
        self._idle = idle
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Have no sessions; those of before a fork are the parent's."""
        self._mutex = threading.Lock()
        self._free: list[tuple[Session, float]] = []  # with when it was given back; newest last
        self._lent: dict[Session, ref[Permit]] = {}
        self._permits = Permits(self.sessions)
        self._reaping = False

    def limit(self, deadline: float | None) -> float:
        """Return the seconds that the server gets for an answer that is due by ``deadline``."""
        return max(left(deadline, self.timeout), min(SHORTEST_LIMIT, self.timeout))

    @property
    def busy(self) -> int:
        """How many sessions are in use now."""
        with self._mutex:
            return sum(permit() is not None for permit in self._lent.values())

    def run(self, request: Request, deadline: float | None = None) -> Result:
        """Run a statement that may be repeated: twice must be as good as once. See work()."""

        def work(session: Session, until: float) -> Result:
            statement = request(session) if callable(request) else request
            return session.run(statement, self.limit(until))

        return self.work(work, deadline)

    def work(
        self,
        work: Callable[[Session, float], T],
        deadline: float | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Do some work that may be repeated, with a shared session and when it must be done by.

        ``at_once``: if all sessions are lent, open one more.

        Tried once more, on a fresh session, if the first one turned out dead, and for as long as
        there is time if the engine chose it to end a deadlock. Raises a StatementFailed.
        """
        until = clock() + self.limit(deadline)
        dead = sent = False
        while True:
            began = clock()
            try:
                with _Loan(self, until, fresh=dead, at_once=at_once) as session:
                    return work(session, until)
            except (errors.ConnectionLost, errors.SerializationFailure, errors.Cancelled) as failed:
                sent = failed.maybe_applied = failed.maybe_applied or sent
                again = not (isinstance(failed, errors.ConnectionLost) and dead)
                dead = dead or isinstance(failed, errors.ConnectionLost)
                if not again or clock() >= until:
                    raise
            except errors.StatementFailed as failed:
                if isinstance(failed, errors.StatementTimeout):
                    self._distrust(began)
                failed.maybe_applied = failed.maybe_applied or sent
                raise

    def _distrust(self, moment: float) -> None:
        """Lend no more what was used before ``moment``, when a session fell silent.

        A network may have forgotten all connections that nothing went through for a while.
        """
        with self._mutex:
            for session, since in self._free:
                if since < moment:
                    session.usable = False

    @contextmanager
    def session(self, deadline: float | None = None) -> Iterator[Session]:
        """Lend a shared session, for statements that answer at once; raises NoSession."""
        with _Loan(self, clock() + self.limit(deadline)) as session:
            yield session

    def open(self, deadline: float | None = None, *, blocking: bool = False) -> Session:
        """Open a session that the caller alone uses, and closes; raises NoSession.

        ``blocking``: its statements may take as long as they like.
        """
        return self._open(self.limit(deadline), blocking=blocking)

    def close(self) -> None:
        """Close the sessions that nobody uses now, and the others when they are given back."""
        closer = Permit()
        self._close_forgotten(closer)
        with self._mutex:
            free = [session for session, _ in self._free]
            self._lent = dict.fromkeys(free, ref(closer))
            self._free = []
        for session in free:
            self._close(session)

    # What a loan consists of

    def lend(self, permit: Permit, until: float, *, fresh: bool, at_once: bool) -> Session:
        """Return a session for the holder of ``permit``, which is to be given back in any case."""
        if at_once:
            self._permits.take_at_once(permit)
        elif not self._permits.take(permit, self.limit(until)):
            raise errors.NoSession(f"none of {self.sessions} sessions was free in time")
        if session := self._take(permit, fresh):
            return session
        own = ref(permit)
        session = self._open(self.limit(until))
        with self._mutex:
            self._lent[session] = own
        return session

    def give_back(self, session: Session) -> None:
        """Keep a session for the next one if it can still be used, else close it."""
        keep = self.idle
        with self._mutex:
            wanted = session in self._lent and session.usable and keep > 0
            if wanted:
                # What is lent is not taken: interrupted here, it is lost to both and closed.
                self._free.append((session, clock()))
                self._lent.pop(session)
                if not self._reaping:
                    watchdog.add(keep, self._reap)
                    self._reaping = True
        if not wanted:
            self._close(session)

    def give_back_permit(self, permit: Permit) -> None:
        """Let another thread ask. Doing it twice does no harm."""
        self._permits.give_back(permit)

    def _open(self, limit: float, *, blocking: bool = False) -> Session:
        settings = current_settings(connections[self.database])
        session = open_session(
            self.database, limit, timeout=self.timeout, blocking=blocking, pooled=self._pooled
        )
        try:
            session.settings = settings
            if session.pooled != self.pooled:
                self._note_pooler(session.pooled)
        except BaseException:  # also Ctrl-C: nobody would close it
            session.close()
            raise
        return session

    def _note_pooler(self, pooled: bool) -> None:
        with self._mutex:
            news, self.pooled = self.pooled != pooled, pooled
        if news and pooled:
            logger.warning(
                "the database %r is reached through a connection pooler: locks in it are waited for"
                " by looking now and then, and not first come, first served. Set 'wait' in"
                " DISTLOCK's OPTIONS to 'poll' to agree with that, or to 'native' if the pooler"
                " keeps one session for each client (PgBouncer's pool_mode = session).",
                self.database,
            )

    def _take(self, permit: Permit, fresh: bool) -> Session | None:
        """Return a free session that is alive as far as can be told without asking."""
        self._close_forgotten(permit)
        settings = connections[self.database].settings_dict
        while (session := self._pop(ref(permit))) is not None:
            # Where one session was dead, others that have waited most likely are, too; and the
            # test runner points an alias to another database.
            current = not fresh and session.settings == settings
            if current and session.usable and not session.stale:
                return session
            session.usable = False
            self.give_back(session)
        return None

    def _pop(self, own: ref[Permit]) -> Session | None:
        with self._mutex:
            while self._free:
                session, _ = self._free[-1]
                lent = session in self._lent  # an interrupt came between the two steps of this
                if not lent:
                    self._lent[session] = own
                self._free.pop()
                if not lent:
                    return session
        return None

    def _close_forgotten(self, closer: Permit) -> None:
        """Close what an interrupt has kept its borrower from giving back."""
        with self._mutex:
            forgotten = [session for session, permit in self._lent.items() if permit() is None]
            if forgotten:
                self._lent.update(dict.fromkeys(forgotten, ref(closer)))
                self._free = [free for free in self._free if free[0] not in forgotten]
        for session in forgotten:
            self._close(session)

    def _close(self, session: Session) -> None:
        """Close what is lent to the caller, who alone may do so; drivers do not bear two."""
        session.close()
        with self._mutex:
            self._lent.pop(session, None)

    @property
    def idle(self) -> float:
        """The seconds that a session is kept while nobody uses it."""
        if self._idle is not None:
            return self._idle
        return 0.0 if hasattr(mail, "outbox") else IDLE

    def _reap(self) -> None:
        keep = self.idle
        with self._mutex:
            now = clock()
            kept = [(session, since) for session, since in self._free if now - since < keep]
            old = [session for session, since in self._free if now - since >= keep]
            reaped = [session for session in old if session not in self._lent]
            self._free = kept
            self._reaping = bool(kept)
            if kept:
                watchdog.add(kept[0][1] + keep - clock(), self._reap)
        for session in reaped:
            session.close()


class _Loan:
    """A session and the permit to use it, for a ``with`` block.

    No generator: one that an interrupt left behind would be ended by the garbage collector, perhaps
    while the thread has a mutex that is needed for that.
    """

    def __init__(
        self, pool: Pool, until: float, *, fresh: bool = False, at_once: bool = False
    ) -> None:
        self._pool = pool
        self._until = until
        self._fresh = fresh
        self._at_once = at_once
        self._permit = Permit()
        self._session: Session | None = None

    def __enter__(self) -> Session:
        try:
            self._session = self._pool.lend(
                self._permit, self._until, fresh=self._fresh, at_once=self._at_once
            )
            return self._session
        except BaseException:  # also Ctrl-C: there will be no __exit__
            self._pool.give_back_permit(self._permit)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session = self._session
        assert session is not None
        try:
            # After a failed statement the session knows by itself whether it can go on.
            if exc is not None and not isinstance(exc, errors.StatementFailed):
                session.usable = False
            self._pool.give_back(session)
        finally:
            self._pool.give_back_permit(self._permit)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in _pools:
        pool.reset()


@atexit.register
def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
