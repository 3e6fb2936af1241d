"""Hears of changes of records by PostgreSQL's NOTIFY.

NOTIFY costs its sender more than a change does, so a change is told only if somebody listens: who
listens holds an advisory lock that says so. Each directory, and each record, has a channel, so that
a change wakes only those processes that wait for it. They share channels, and locks, by the hash of
their names, because the server has room for so many locks only.
https://www.postgresql.org/docs/current/sql-notify.html
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection
from typing import NamedTuple

from distlock.backends.database import errors
from distlock.backends.database.connection import Session
from distlock.backends.database.pool import Pool
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock

#: Seconds for which a channel is kept that is not needed any more.
_KEEP = 2.0
#: Bytes of a text that NOTIFY takes, at the most.
_LONGEST_TEXT = 7999


def channel_of(directory: str, key: str | None = None) -> str:
    """Return the channel on which changes of a directory, or of one record, are told."""
    name = directory if key is None else f"{directory}\0{key}"
    return f"distlock_records_{hashlib.sha256(name.encode()).digest()[0]}"


@functools.cache
def key_of(channel: str) -> int:
    """Return the advisory lock that says that somebody listens. Never change this."""
    digest = hashlib.sha256(f"distlock records\0{channel}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class ChangeNotice(NamedTuple):
    """What is told of a change; None for what is not known."""

    directory: str
    revision: int | None = None
    keys: Collection[str] | None = None

    def text(self) -> str:
        """Return it as one text of the length that NOTIFY takes."""
        keys = None if self.keys is None else sorted(self.keys)
        text = json.dumps([self.directory, self.revision, keys], ensure_ascii=False)
        if len(text.encode()) > _LONGEST_TEXT:
            return ChangeNotice(self.directory, self.revision).text()
        return text

    @classmethod
    def read(cls, text: str) -> ChangeNotice:
        return cls(*json.loads(text))


class RecordListener:
    """A session that listens; one thread uses it, and nobody else."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._session: Session | None = None
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
            self._session = self._pool.open()
            self._cannot_listen = not self._session.hears
            if self._session.pooled or self._cannot_listen:
                self.close()
                return False
        old = [one for one, until in self._channels.items() if until < now and one not in needed]
        steps = [f"LISTEN {channel}" for channel in new]
        steps += [f"SELECT pg_advisory_lock_shared({key_of(channel)})" for channel in new]
        for channel in old:
            steps += [f"UNLISTEN {channel}", f"SELECT pg_advisory_unlock_shared({key_of(channel)})"]
        if steps and self._session is not None:
            try:
                self._session.run(Statement("; ".join(steps)), self._pool.timeout)
            except errors.RowLocked:  # changes were being made, one after the other
                self.close()
                return False
            except BaseException:
                self.close()  # some of the locks may have been taken
                raise
        for channel in old:
            del self._channels[channel]
        self._channels |= dict.fromkeys(needed, now + _KEEP)
        return True

    def heard(self) -> list[ChangeNotice]:
        """Return what was told since the last time.

        Raises a StatementFailed if the session was lost, and with it perhaps what was told.
        """
        if self._session is None:
            return []
        try:
            return list(map(ChangeNotice.read, self._session.notifications()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session; it is opened again when it is needed."""
        session, self._session = self._session, None
        self._channels.clear()
        if session is not None:
            session.close()
