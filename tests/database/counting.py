"""Counts what a backend says to its database."""

import threading
from contextlib import contextmanager

from distlock.backends.database.connection import Connection


@contextmanager
def statements(before=lambda seen: None, of=None):
    """The list of statements that this thread runs meanwhile; or the threads of a kind.

    ``before(seen)`` is called before each one is run, which is the last in the list. ``of`` is what
    the names of those threads begin with.
    """
    seen, thread = [], threading.current_thread()
    run = Connection.run

    def counting(self, statement, limit):
        here = threading.current_thread()
        if here.name.startswith(of) if of else here is thread:
            seen.append(statement.sql)
            before(seen)
        return run(self, statement, limit)

    Connection.run = counting
    try:
        yield seen
    finally:
        Connection.run = run
