"""The native locks of a server, as the server itself tells of them."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pytest
from django.db import connections

from distlock.backends import background
from distlock.backends.database import connect, pool, wait_session
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually

#: seconds that the database gets at the least for an answer, in these tests
SHORTEST_LIMIT = 10.0
#: and when the time of the one who asks is over: less than that with which a look is left out
LAST_ANSWER = 4.0
#: seconds that those in front are given to take a lock, unless a test has other ideas
GRACE = wait_session.GRACE

#: for tests of the order: whoever comes first is not overtaken, however slow the machine
unhurried = pytest.mark.parametrize("grace", [PATIENCE], ids=["unhurried"])


def set_pace(grace=GRACE, set_attribute=setattr):
    """Give the server time, in this process: a slow one must not end a look that is the last.

    ``grace`` is what those in front get before they are overtaken.
    """
    set_attribute(pool, "SHORTEST_LIMIT", SHORTEST_LIMIT)
    set_attribute(background, "LAST_ANSWER", LAST_ANSWER)
    set_attribute(wait_session, "GRACE", grace)


class Engine:
    """What the administrator of a server sees."""

    vendor: str

    def __init__(self, server):
        self.server = server
        self.locks = connect.ENGINES[self.vendor].locks

    def number(self, sql):
        return self.server.execute(sql)[0][0]

    def waiting(self):
        """How many sessions stand in a queue."""
        raise NotImplementedError

    def holding(self):
        """How many native locks are held."""
        raise NotImplementedError

    def line(self):
        """How many stand in a queue or have come to its end."""
        return self.waiting() + self.holding()

    def reaches_line(self, number):
        """Wait until so many stand in line, at its head or behind."""
        eventually(lambda: self.line() == number)

    def reaches_waiting(self, number):
        """Wait until so many stand in a queue."""
        eventually(lambda: self.waiting() == number)

    def idents(self):
        """The sessions that stand in a queue."""
        raise NotImplementedError

    def key(self, alias, name):
        return self.locks.key(connections[alias].settings_dict["NAME"], name)

    @contextmanager
    def taken_by_hand(self, alias, name):
        """Let a session that knows nothing of this package have the native lock of a name."""
        with closing(connections[alias].copy()) as stranger, stranger.cursor() as cursor:
            cursor.execute(self.locks.wait(self.key(alias, name), PATIENCE))
            yield


class MariaDB(Engine):
    vendor = "mysql"

    def __init__(self, server):
        super().__init__(server)
        known = "SELECT COUNT(*) FROM information_schema.plugins WHERE plugin_name = '{}'"
        if not self.number(known.format("METADATA_LOCK_INFO")):
            server.execute("INSTALL SONAME 'metadata_lock_info'")

    def waiting(self):
        return len(self.idents())

    def idents(self):
        rows = self.server.execute(
            "SELECT id FROM information_schema.processlist WHERE state = 'User lock'"
        )
        return [ident for (ident,) in rows]

    def holding(self):
        return self.number(
            "SELECT COUNT(*) FROM information_schema.metadata_lock_info"
            " WHERE lock_type = 'User lock'"
        )

    def cancel(self, ident):
        self.server.execute(f"KILL QUERY {ident}")

    def disconnect(self, ident):
        self.server.execute(f"KILL {ident}")

    def sessions(self):
        return self.number(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'distlock'"
        )


class PostgreSQL(Engine):
    vendor = "postgresql"

    def waiting(self):
        return len(self.idents())

    def idents(self):
        rows = self.server.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        )
        return [ident for (ident,) in rows]

    def holding(self):
        # Who listens for changes of records has a lock that says so; it is in no queue.
        return self.number(
            "SELECT COUNT(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND a.query NOT LIKE '%LISTEN%'"
        )

    def cancel(self, ident):
        self.server.execute(f"SELECT pg_cancel_backend({ident})")

    def disconnect(self, ident):
        self.server.execute(f"SELECT pg_terminate_backend({ident})")

    def sessions(self):
        return self.number("SELECT COUNT(*) FROM pg_stat_activity WHERE usename = 'distlock'")


ENGINES = {"mariadb": MariaDB, "postgresql": PostgreSQL}
