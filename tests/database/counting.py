"""Counts what a backend says to its database."""

import threading
from contextlib import contextmanager

from distlock.backends.database.connection import Connection


@contextmanager
def statements():
    """The list of statements that this thread runs meanwhile."""
    seen, thread = [], threading.get_ident()
    run_all = Connection.run_all

    def counting(self, statement, limit):
        if threading.get_ident() == thread:
            seen.append(statement.sql)
        return run_all(self, statement, limit)

    Connection.run_all = counting
    try:
        yield seen
    finally:
        Connection.run_all = run_all
