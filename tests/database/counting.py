"""Counts what a backend says to its database."""

import threading
from contextlib import contextmanager

from distlock.backends.database.session import Runner


@contextmanager
def statements():
    """The list of statements that this thread runs meanwhile."""
    seen, thread = [], threading.get_ident()
    run_all = Runner.run_all

    def counting(self, statement, limit):
        if threading.get_ident() == thread:
            seen.append(statement.sql)
        return run_all(self, statement, limit)

    Runner.run_all = counting
    try:
        yield seen
    finally:
        Runner.run_all = run_all
