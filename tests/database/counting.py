"""Counts what a backend says to its database."""

import threading
from contextlib import contextmanager

from distlock.backends.database.connection import Connection


@contextmanager
def statements(before=lambda seen: None):
    """The list of statements that this thread runs meanwhile.

    ``before(seen)`` is called before each one is run, which is the last in the list.
    """
    seen, thread = [], threading.get_ident()
    run = Connection.run

    def counting(self, statement, limit):
        if threading.get_ident() == thread:
            seen.append(statement.sql)
            before(seen)
        return run(self, statement, limit)

    Connection.run = counting
    try:
        yield seen
    finally:
        Connection.run = run
