"""Sessions that sleep in the server, and what others say about them once they do."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from distlock.backends.database.statements import Statement
from tests.database.speaking import eventually

SLEEP = {
    "mariadb": "SELECT 1 FROM (SELECT SLEEP(60)) AS slept",
    "postgresql": "SELECT pg_sleep(60)",
}
CALL_OUT = {
    "mariadb": "KILL QUERY %(ident)s",
    "postgresql": "SELECT pg_cancel_backend(%(ident)s)",
}
DISCONNECT = {
    "mariadb": "KILL CONNECTION %(ident)s",
    "postgresql": "SELECT pg_terminate_backend(%(ident)s)",
}
_ASLEEP = {
    "mariadb": "SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE id = %(ident)s AND state = 'User sleep'",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE pid = %(ident)s AND wait_event = 'PgSleep'",
}


@contextmanager
def once_asleep(kind, pool, session, saying):
    """Say something about a session, on a thread of its own, once the server has it asleep.

    Said earlier it would find nothing to end, or the next statement. The thread has its own
    session, and gives it back itself: drivers do not bear one that closes what another reads from.
    """
    ident = {"ident": session.ident}

    def write_line():
        eventually(lambda: pool.run(Statement(_ASLEEP[kind], ident)).rows == [(1,)])
        pool.run(Statement(saying[kind], ident))

    with ThreadPoolExecutor(1) as threads:
        said = threads.submit(write_line)
        yield
    said.result()
