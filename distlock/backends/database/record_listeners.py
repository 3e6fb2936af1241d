"""Sessions in which a process hears that records have changed: a hint, so that it looks now.

Each directory, and each record, has a channel, so that a change wakes only those processes that
wait for it. To tell costs more than the change does. So each listener has a lock in the server for
each of its channels: without one a change is not notified. Names share channels by their hash,
because the server has room for so many locks only.

- PostgreSQL tells by NOTIFY. https://www.postgresql.org/docs/current/sql-notify.html
- MySQL and MariaDB have nothing like it. The listener sleeps in the server, and who makes a change
  ends its sleep. https://mariadb.com/kb/en/kill/
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import LISTENER, listen_key, listener_locks
from distlock.backends.database.connection import DatabaseSession
from distlock.backends.database.pool import Pool
from distlock.backends.database.record_sql import DIRECTORIES, ChangeNotice
from distlock.backends.database.statements import Statement, named_values
from distlock.concurrency.clock import clock

#: Seconds between two looks, at most, of those who hear of all changes.
_SLOW = 3.0
#: Seconds for which a channel is kept that is not needed any more.
_KEEP = 2.0


class RecordListener(ABC):
    """A session that listens; one thread uses it, and nobody else."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._session: DatabaseSession | None = None
        #: whether the driver cannot listen
        self._cannot_listen = False
        #: the channels that it listens on, and until when each is kept at least
        self._channels: dict[str, float] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when something was heard, -1 if there is none."""
        return -1 if self._session is None else self._session.fileno()

    def listen(self, channels: Collection[str]) -> bool:
        """Listen on these channels, from now on; False if that is not possible.

        Behind a pooler it is not: what is heard would go to nobody. Raises a StatementFailed.
        """
        if self._pool.pooled or self._cannot_listen:
            return False
        now = clock()
        needed = set(channels)
        new = sorted(needed - self._channels.keys())
        if new and self._session is None:
            session = self._session = self._pool.open()
            self._cannot_listen = session.pooled or not session.hears
            if self._cannot_listen:
                self.close()
                return False
        old = [one for one, until in self._channels.items() if until < now and one not in needed]
        if self._session is not None and (new or old):
            try:
                self._change(self._session, new, old)
            except Exception as error:
                self.close()  # some of the locks may have been taken
                if not isinstance(error, (errors.RowLocked, errors.StatementCancelled)):
                    raise
                return False  # changes were being made, one after the other
        for channel in old:
            del self._channels[channel]
        self._channels |= dict.fromkeys(needed, now + _KEEP)
        return True

    @abstractmethod
    def _change(self, session: DatabaseSession, new: list[str], old: list[str]) -> None:
        """Listen on new channels, and no longer on old ones. Raises a StatementFailed."""

    def pause(self, pauses: Iterator[float]) -> float:
        """Return how long to rest; ``pauses`` has that of those who cannot listen."""
        return next(pauses)

    def rest(self, seconds: float, revisions: Mapping[str, int]) -> None:  # noqa: B027
        """Begin to rest, unless these directories have later ``revisions`` now."""

    def heard(self) -> list[ChangeNotice]:
        """Return the notifications since the last call.

        Raises a StatementFailed if the session was lost, perhaps with notifications.
        """
        if self._session is None:
            return []
        try:
            return self._read(self._session)
        except Exception:
            self.close()
            raise

    @abstractmethod
    def _read(self, session: DatabaseSession) -> list[ChangeNotice]: ...

    @staticmethod
    @abstractmethod
    def tell(notices: Collection[tuple[str, ChangeNotice]]) -> Sequence[Statement]:
        """Return what tells those of changes who listen on channels: see ApplyResult.heard."""

    def close(self) -> None:
        """End the session; it is opened again when it is needed."""
        session, self._session = self._session, None
        self._channels.clear()
        if session is not None:
            session.close()


class NotifyListener(RecordListener):
    """PostgreSQL: hears of each change what it was, and so need not look often."""

    def pause(self, pauses: Iterator[float]) -> float:
        """See RecordListener.pause()."""
        return random.uniform(0.5, 1.0) * _SLOW

    def _change(self, session: DatabaseSession, new: list[str], old: list[str]) -> None:
        steps = [f"LISTEN {channel}" for channel in new]
        steps += [f"SELECT pg_advisory_lock_shared({listen_key(channel)})" for channel in new]
        for channel in old:
            steps += [
                f"UNLISTEN {channel}",
                f"SELECT pg_advisory_unlock_shared({listen_key(channel)})",
            ]
        session.run(Statement("; ".join(steps)), self._pool.timeout)

    def _read(self, session: DatabaseSession) -> list[ChangeNotice]:
        return list(map(ChangeNotice.read, session.notifications()))

    @staticmethod
    def tell(notices: Collection[tuple[str, ChangeNotice]]) -> Sequence[Statement]:
        """See RecordListener.tell()."""
        calls = ", ".join(["pg_notify(%s, %s)"] * len(notices))
        texts = [(channel, notice.text()) for channel, notice in notices]
        return [Statement(f"SELECT {calls}", tuple(chain(*texts)))]


class SleepListener(RecordListener):
    """MySQL and MariaDB: sleeps in the server, unless a directory has changed, until it is woken.

    A change between its look and its sleep is seen by the statement that sleeps. To be woken while
    nothing is carried out does no harm: the server forgets it.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        #: the directories for which it sleeps in the server
        self._sleeps: Collection[str] = ()

    def listen(self, channels: Collection[str]) -> bool:
        """See RecordListener.listen(). New channels have to wait for the end of a sleep."""
        self.heard()  # its sleep may have ended just now
        return not self._sleeps and super().listen(channels)

    def _change(self, session: DatabaseSession, new: list[str], old: list[str]) -> None:
        locks = {one: listener_locks(session.namespace, one) for one in (*new, *old)}
        steps = [
            "SET @distlock = 1 /*M!, max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */"
        ]
        for channel in new:  # COALESCE goes no further than the first one that is free
            tries = [f"NULLIF(GET_LOCK('{name}', 0), 0)" for name in locks[channel]]
            steps.append(f"DO COALESCE({', '.join(tries)})")
        for channel in old:  # what others have stays theirs
            steps += [f"DO RELEASE_LOCK('{name}')" for name in locks[channel]]
        session.run(Statement("; ".join(steps)), self._pool.timeout)

    def rest(self, seconds: float, revisions: Mapping[str, int]) -> None:
        """See RecordListener.rest()."""
        if self._session is None or self._sleeps:
            return
        one = "(name = %(name{0})s AND revision > %(revision{0})s)"
        changed = " OR ".join(map(one.format, range(len(revisions))))
        values = named_values("name", [*revisions])
        values |= named_values("revision", [*revisions.values()])
        # The answer comes before the thread looks again by itself.
        sleep = f"SELECT SLEEP({seconds * 0.9:.3f}) FROM DUAL"
        unless = f" WHERE NOT EXISTS (SELECT 1 FROM {DIRECTORIES} WHERE {changed})"
        try:
            self._session.send(Statement(sleep + unless, values))
        except Exception:
            self.close()
            raise
        self._sleeps = [*revisions]

    def _read(self, session: DatabaseSession) -> list[ChangeNotice]:
        # A change has ended it; on Galera perhaps while it waited for those of other nodes.
        with suppress(errors.StatementCancelled, errors.RowLocked):
            if not session.notifications():
                return []
        directories, self._sleeps = self._sleeps, ()
        return [ChangeNotice(one) for one in directories]

    @staticmethod
    def tell(notices: Collection[tuple[str, ChangeNotice]]) -> Sequence[Statement]:
        """See RecordListener.tell(). Only who has such a lock is woken: the server looks it up.

        Some changes, as in a transaction of the caller, have not asked who listens, and name
        channels: those who listen there look by themselves.
        """
        kill = "KILL QUERY IS_USED_LOCK(%s)"
        return [Statement(kill, (name,)) for name, _ in notices if name.startswith(LISTENER)]

    def close(self) -> None:
        """See RecordListener.close()."""
        super().close()
        self._sleeps = ()


#: See RecordSQL.LISTENS.
LISTENERS = {"NOTIFY": NotifyListener, "KILL": SleepListener}
