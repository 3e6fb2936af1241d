"""The shared sessions of a pool, apart from a request that uses one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from distlock.backends.database.statements import Statement


def next_session(pool):
    """Return the session that the pool lends next."""
    return pool.work(lambda session: session)


@contextmanager
def in_use(pool):
    """Keep a shared session of the pool in use, by a thread; only the block runs statements."""
    sessions, over = SimpleQueue(), threading.Event()

    def use(session):
        sessions.put(session)
        over.wait()

    with ThreadPoolExecutor(1) as threads:
        using = threads.submit(pool.work, use)
        try:
            yield sessions.get(timeout=20)
        finally:
            over.set()
            using.result()


def ident_of(session):
    """Return the server's name for a session."""
    which = {"mysql": "CONNECTION_ID()", "postgresql": "pg_backend_pid()"}[session.wrapper.vendor]
    return session.run(Statement(f"SELECT {which}"), 10).rows[0][0]


def prepared_in(session):
    """Return how many prepared statements a session has; on MariaDB how often it executed one."""
    asked = {
        "mysql": "SHOW SESSION STATUS LIKE 'Com_execute_sql'",
        "postgresql": "SELECT '', count(*) FROM pg_prepared_statements"
        " WHERE name LIKE 'distlock%%'",
    }
    ((_, number),) = session.run(Statement(asked[session.wrapper.vendor]), 10).rows
    return int(number)
