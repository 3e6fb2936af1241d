"""Counts what a backend says to its database."""

from contextlib import contextmanager

from distlock.backends.database.session import Runner


@contextmanager
def statements():
    """The list of statements that this process runs meanwhile."""
    seen = []
    run_all = Runner.run_all

    def counting(self, statement, limit):
        seen.append(statement.sql)
        return run_all(self, statement, limit)

    Runner.run_all = counting
    try:
        yield seen
    finally:
        Runner.run_all = run_all
