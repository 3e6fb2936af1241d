"""Sessions in which a process hears that records have changed: a hint, so that it looks now.

Each directory, and each record, has a channel, so that a change wakes only those processes that
wait for it. A notification costs more than the change. So each listener holds a lock in the server
for each of its channels, and only changes on such channels cause notifications. Channels are hashes
of names, fewer where the server limits the number of locks.

- PostgreSQL tells by NOTIFY. https://www.postgresql.org/docs/current/sql-notify.html
- MySQL and MariaDB have nothing like it. The listener sleeps in the server, and who makes a change
  ends its sleep. https://mariadb.com/kb/en/kill/
"""

from __future__ import annotations

import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import LISTENER, listen_key, listener_locks
from distlock.backends.database.connection import DatabaseSession
from distlock.backends.database.drivers import poll_of
from distlock.backends.database.pool import Pool
from distlock.backends.database.record_sql import DIRECTORIES, RECORDS, ChangeNotice
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending

#: Seconds between two looks, at most, of those who hear of all changes.
_SLOW = 3.0
#: Seconds for which a channel is kept that is not needed any more.
_KEEP = 2.0
#: Seconds in which the server ends a sleep.
_WAKES_WITHIN = 0.1
#: Seconds after which the server ends the session of a process that it does not hear from, and
#: frees its locks: that is more than twice the longest pause of one that watches.
_SILENCE = 10


@dataclass(frozen=True, eq=False, slots=True)
class RecordWatch:
    """One that watches a directory, or one record of it, which it knows up to a revision."""

    directory: str
    since: int
    key: str | None
    pending: Pending[None]


#: Whether that has changed, by the rules of RecordWatcher: one that is there already is found at
#: once, so what it does not count as changed would be asked for without a pause.
_DIRECTORY = (
    f"EXISTS (SELECT 1 FROM {DIRECTORIES}"
    " WHERE name = %(directory{0})s AND revision > %(since{0})s)"
)
_RECORD = (
    f"{_DIRECTORY} AND NOT EXISTS (SELECT 1 FROM {DIRECTORIES} d"
    f" JOIN {RECORDS} r ON r.directory = d.id WHERE d.name = %(directory{{0}})s"
    " AND r.name = %(key{0})s AND r.revision <= %(since{0})s)"
)


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
        """Return the seconds until the next look; ``pauses`` are for those who cannot listen."""
        return next(pauses)

    def begin_wait(self, seconds: float, watches: Collection[RecordWatch]) -> None:  # noqa: B027
        """Begin to wait for a change of one of these in the server, unless there is one already."""

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
    def notify_sql(notices: Collection[tuple[str, ChangeNotice]]) -> Sequence[Statement]:
        """Return the statements that notify the listeners of channels, see ApplyResult.heard."""

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
            key = listen_key(channel)
            steps += [f"UNLISTEN {channel}", f"SELECT pg_advisory_unlock_shared({key})"]
        session.run(Statement("; ".join(steps)), self._pool.timeout)

    def _read(self, session: DatabaseSession) -> list[ChangeNotice]:
        return list(map(ChangeNotice.read, session.notifications()))

    @staticmethod
    def notify_sql(notices: Collection[tuple[str, ChangeNotice]]) -> Sequence[Statement]:
        """See RecordListener.notify_sql()."""
        calls = ", ".join(["pg_notify(%s, %s)"] * len(notices))
        texts = [(channel, notice.text()) for channel, notice in notices]
        return [Statement(f"SELECT {calls}", tuple(chain(*texts)))]


class SleepListener(RecordListener):
    """MySQL and MariaDB: sleeps in the server, until KILL QUERY wakes it.

    A change before that is seen by the statement that sleeps. To be woken while nothing is carried
    out does no harm: the server forgets it.

    One of all listeners has a named lock, and sleeps; the others wait for that lock. If several
    sleep, MariaDB can stand still: who ends a SLEEP() keeps from the sleeper what it needs to end,
    and tries for two seconds to get a mutex that all sleepers share.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        #: the directories for which it sleeps in the server
        self._sleeps: Collection[str] = ()
        #: a named lock of its session alone
        self._own = f"{LISTENER}{uuid.uuid4().hex}"

    def listen(self, channels: Collection[str]) -> bool:
        """See RecordListener.listen(). For new channels it ends its sleep."""
        self.heard()  # its sleep may have ended just now
        if self._sleeps and not self._channels.keys() >= set(channels):
            for statement in self.notify_sql([(self._own, ChangeNotice(""))]):
                self._pool.run(statement, None)
            poll_of(self.fileno()).poll(_WAKES_WITHIN * 1000)
            self.heard()
            if self._sleeps:  # the server has woken it before it slept
                self.close()
        return bool(self._sleeps) or super().listen(channels)

    def _change(self, session: DatabaseSession, new: list[str], old: list[str]) -> None:
        locks = {one: listener_locks(session.namespace, one) for one in (*new, *old)}
        steps = [
            f"SET wait_timeout = {_SILENCE}"
            " /*M!, max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */"
        ]
        if not self._channels:
            steps.append(f"DO GET_LOCK('{self._own}', 0)")
        for channel in new:  # COALESCE goes no further than the first one that is free
            tries = [f"NULLIF(GET_LOCK('{name}', 0), 0)" for name in locks[channel]]
            steps.append(f"DO COALESCE({', '.join(tries)})")
        for channel in old:  # what others have stays theirs
            steps += [f"DO RELEASE_LOCK('{name}')" for name in locks[channel]]
        session.run(Statement("; ".join(steps)), self._pool.timeout)

    def begin_wait(self, seconds: float, watches: Collection[RecordWatch]) -> None:
        """See RecordListener.begin_wait()."""
        if self._session is None or self._sleeps:
            return
        values: dict[str, Any] = {}
        changed = []
        for number, one in enumerate(watches):
            for name in ("directory", "since", "key"):
                values[f"{name}{number}"] = getattr(one, name)
            changed.append((_RECORD if one.key is not None else _DIRECTORY).format(number))
        lock, *_ = listener_locks(self._session.namespace, "")
        most = f"{seconds * 0.9:.3f}"  # the answer comes before the thread looks by itself
        wait = (
            f"SELECT IF(IS_USED_LOCK('{lock}') = CONNECTION_ID(), SLEEP({most}),"
            f" GET_LOCK('{lock}', {most})) FROM DUAL WHERE NOT ({' OR '.join(changed)})"
        )
        try:
            # The other statement only sends it to the primary. The answer to one in front of it
            # would come at once, and a driver that reads that waits for the rest.
            self._session.send(Statement(f"{wait}; DO 0", values))
        except Exception:
            self.close()
            raise
        self._sleeps = {one.directory for one in watches}

    def _read(self, session: DatabaseSession) -> list[ChangeNotice]:
        # A change has ended it; on Galera perhaps while it waited for those of other nodes.
        with suppress(errors.StatementCancelled, errors.RowLocked):
            if not session.notifications():
                return []
        directories, self._sleeps = self._sleeps, ()
        return [ChangeNotice(one) for one in directories]

    @staticmethod
    def notify_sql(notices: Collection[tuple[str, ChangeNotice]]) -> Sequence[Statement]:
        """See RecordListener.notify_sql(). The server itself looks up whose such a lock is.

        A change in a transaction of the caller has not asked for these locks, and names channels.
        Nothing is sent for those: their listeners look again by themselves.
        """
        kill = "KILL QUERY IS_USED_LOCK(%s)"
        return [Statement(kill, (name,)) for name, _ in notices if name.startswith(LISTENER)]

    def close(self) -> None:
        """See RecordListener.close()."""
        super().close()
        self._sleeps = ()


#: See RecordSQL.LISTENS.
LISTENERS = {"NOTIFY": NotifyListener, "KILL": SleepListener}
