"""Counts what a backend says to its database."""

import threading
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from distlock.backends.database.connection import Connection
from distlock.backends.database.sqlite_session import CallerConnection, SQLiteSession


@contextmanager
def statements(before=lambda seen: None, of=None):
    """The list of statements that this thread asks meanwhile; or the threads of a kind.

    ``before(seen)`` is called before each one is run, which is the last in the list. ``of`` is what
    the names of those threads begin with.

    What is asked on a session counts, and that once: not what sets a session up, if another thread
    uses the one that was there, and not that SQLite is asked again while others write.
    """
    seen, thread, busy = [], threading.current_thread(), set()

    def is_counted():
        here = threading.current_thread()
        return here.name.startswith(of) if of else here is thread

    def counting(ask):
        def counted(self, statement):
            if self in busy:
                return ask(self, statement)
            busy.add(self)
            try:
                if is_counted():
                    seen.append(statement.sql)
                    before(seen)
                return ask(self, statement)
            finally:
                busy.discard(self)

        return counted

    def setting_up(self, statement, limit):
        busy.add(self)
        try:
            return run(self, statement, limit)
        finally:
            busy.discard(self)

    run = Connection.run
    with ExitStack() as patches:
        patches.enter_context(patch.object(Connection, "run", setting_up))
        for kind in (Connection, CallerConnection, SQLiteSession):
            patches.enter_context(patch.object(kind, "ask", counting(kind.ask)))
        yield seen
