"""A session of our own that stands in one queue of the server at a time, or came to its end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress

from distlock.backends.database.connection import Session
from distlock.backends.database.errors import Cancelled, StatementFailed
from distlock.backends.database.queue.advisory_locks import AdvisoryLocks
from distlock.backends.database.statements import Result, Statement
from distlock.clock import clock

_NOTHING = Statement("SELECT 1")

#: Seconds that one who is called out of a wait has to come.
_DEAF = 1.0


class WaitSession:
    """Where one waits. One thread at a time uses it; cancel() and hang_up() are for others."""

    def __init__(self, session: Session, native: AdvisoryLocks, limit: float) -> None:
        """Prepare the session; ``limit`` is the seconds that the server gets for a short answer."""
        self.session = session
        self.native = native
        self.limit = limit
        self.ident = int(session.run(native.set_up(), limit).rows[0][0])
        #: the native lock that this session has, and the last one that it stood in the queue for
        self.key: str | None = None
        self.last_key: str | None = None
        self.last_name: str | None = None  # of the lock that it belongs to
        #: what it got when it stood aside; it does so until it is closed
        self.ticket: int | None = None
        self._calling = threading.Lock()
        self._waiting: object = None  # who waits here, while the server keeps us waiting
        self._asked_at = 0.0  # when that began
        self._called_at: float | None = None  # first, during the last question

    @property
    def usable(self) -> bool:
        return self.session.usable and not self.session.stale

    @property
    def free(self) -> bool:
        """Whether it has no native lock of any kind."""
        return self.key is None and self.ticket is None

    def key_of(self, name: str) -> str:
        """Return the native lock of the lock ``name``."""
        return self.native.key(str(self.session.settings.get("NAME") or ""), name)

    def run(self, statement: Statement) -> Result:
        """Run a statement that answers at once. Nobody calls it out."""
        self._drain_cancel()
        return self.session.run(statement, self.limit)

    def take(self, statement: Statement) -> Result:
        """Run what takes the row, in the words of a dialect, unless somebody stands aside.

        Nobody calls it out.
        """
        assert self.key is not None
        self._drain_cancel()
        return self.session.run(self.native.take(self.key, statement), self.limit)

    def is_somebody_aside(self) -> bool:
        """Ask whether anybody stands aside, before the queue of which this one is the head."""
        assert self.key is not None
        question = self.native.is_somebody_aside(self.key)
        return question is not None and bool(self.run(question).rows[0][0])

    def stand_aside(self, name: str, waited: float) -> None:
        """Come before all who stand in the queue of ``name``, by the seconds it has waited."""
        self.last_name, self.last_key = name, self.key_of(name)
        answer = self.run(self.native.stand_aside(self.last_key, waited))
        self.ticket = int(answer.rows[0][0])

    def wait(self, name: str, waiter: object, sign: str = "") -> None:
        """Wait for the native lock of ``name``; ``key`` tells afterwards whether it was got.

        Nothing is written meanwhile, so a session whose client has died takes nothing. ``sign`` is
        a comment that others can read. A ``waiter`` that was called out comes back without the
        native lock, or raises Cancelled, with or without it.
        """
        self._drain_cancel()
        self.last_name, self.last_key = name, self.key_of(name)
        enter = Statement(f"{sign}{self.native.enter(self.last_key)}")
        self._asked_at, self._waiting = clock(), waiter
        try:
            answer = self.session.run(enter, None)
        except StatementFailed:
            self._waiting = None
            if self.session.usable:
                self._find_out()
            raise
        finally:
            self._waiting = None
        if self.native.entered(answer):
            self.key = self.last_key

    def run_later(
        self, statement: Statement, seconds: float, waiter: object, sign: str = ""
    ) -> Result:
        """Run a statement that answers at once, after a pause that the server makes.

        ``sign`` is a comment that others can read meanwhile. A ``waiter`` that was called out
        raises Cancelled.
        """
        steps = [self.native.sleep(seconds), statement.sql] if seconds else [statement.sql]
        packet = statement._replace(sql="; ".join(f"{sign}{step}" for step in steps))
        self._drain_cancel()
        self._asked_at, self._waiting = clock(), waiter
        try:
            return self.session.run(packet, seconds + self.limit)
        finally:
            self._waiting = None

    def _find_out(self) -> None:
        """Ask whether the native lock that was waited for is ours; hangs up if that is not told."""
        assert self.last_key is not None
        try:
            answer = self.run(self.native.has_entered(self.last_key))
        except StatementFailed:
            self.hang_up()  # it could be entered twice, and left once
            raise
        if answer.rows[0][0]:
            self.key = self.last_key

    def leave(self, free: Statement | None = None, limit: float | None = None) -> Result | None:
        """Run ``free``, if any, and give the native lock to the next; the answer to ``free``.

        ``limit`` is the seconds that the server gets for each answer.
        """
        limit = self.limit if limit is None else limit
        if self.key is None:
            return None if free is None else self.run(free)
        answer = None
        self._drain_cancel()
        if free is not None:
            packet = self.native.free_and_leave(self.key, free)
            answer = self.session.run_all(packet, limit)[0]
        if answer is None or not answer.affected:
            self.session.run(Statement(self.native.leave(self.key)), limit)
        self.key = None
        return answer

    def cancel(self, waiter: object, run: Callable[[Statement], object]) -> bool:
        """End the wait of ``waiter`` through ``run``, on another session; False if it has ended.

        Only statements that write nothing are ended: a commit that is kept from waiting for its
        standby is told as a success. One that has been called before and does not come is hung up
        on. MariaDB, called between two statements of a packet, may announce an answer that it does
        not give.
        """
        with self._calling:
            if self._waiting is not waiter:
                return False
            self._called_at = self._called_at or clock()
            if clock() - self._called_at >= _DEAF:
                self.hang_up()
                return True
            try:
                run(self.native.cancel(self.ident))
            except StatementFailed:
                self.hang_up()  # the call may come at any time, and end what it was not meant for
            return True

    def hang_up(self) -> None:
        """End whatever goes on here, from this side. The place is of no use afterwards."""
        self.session.hang_up()

    def close(self) -> None:
        """Leave for good. The server gives the native lock to the next one."""
        self.session.close()

    def waits(self, waiter: object, since: float = math.inf) -> bool:
        """Return whether the server keeps ``waiter`` waiting here, by one question since then."""
        return self._waiting is waiter and self._asked_at <= since

    def _drain_cancel(self) -> None:
        """Make sure that no call is under way that would end a statement it was not meant for."""
        with self._calling:
            if self._called_at is None:
                return
            self._called_at = None
        with suppress(Cancelled):
            self.session.run(_NOTHING, self.limit)
