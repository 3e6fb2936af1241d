"""Counts what a backend says to its database."""

import threading
from contextlib import contextmanager

from distlock.backends.database.connection import Connection


@contextmanager
def statements(before=lambda seen: None, of=None):
    """The list of statements that this thread asks meanwhile; or the threads of a kind.

    ``before(seen)`` is called before each one is run, which is the last in the list. ``of`` is what
    the names of those threads begin with.

    What is asked on a session counts, and that once: not what sets a session up, if another thread
    uses the one that was there, and not that SQLite is asked again while others write.
    """
    seen, thread = [], threading.current_thread()
    ask = Connection.ask

    def counting(self, statement):
        here = threading.current_thread()
        if here.name.startswith(of) if of else here is thread:
            seen.append(statement.sql)
            before(seen)
        return ask(self, statement)

    Connection.ask = counting
    try:
        yield seen
    finally:
        Connection.ask = ask
