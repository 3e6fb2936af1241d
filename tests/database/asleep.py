"""Sessions that sleep in the server, and statements that end that."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from distlock.backends.database.statements import Statement
from tests.contract.watch import eventually
from tests.database.lending import ident_of

SLEEP = {
    "mariadb": "SELECT 1 FROM (SELECT SLEEP(60)) AS slept",
    "postgresql": "SELECT pg_sleep(60)",
}
CANCEL = {
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
def once_asleep(kind, pool, session, statement):
    """Run a statement about a session, on another thread, once the server has it asleep.

    Run earlier it would find nothing to end, or end the next statement. The thread has a session of
    its own: drivers do not bear one that closes what another reads from.
    """
    ident = {"ident": ident_of(session)}

    def run():
        eventually(lambda: pool.run(Statement(_ASLEEP[kind], ident)).rows == [(1,)])
        pool.run(Statement(statement[kind], ident))

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        yield
    running.result()
