"""One session with a database: runs a statement within a time limit.

The base of other modules (everything else in this package goes through it):

- :meth:`distlock.backends.database.pool.Pool.run` runs a statement on a shared session, and
  :meth:`Pool.work` several. They try again what may be tried again, and raise nothing but a
  :class:`~.errors.StatementFailed`.
- :meth:`Pool.open` opens a session of one's own, with ``blocking=True`` for one that may wait in
  the server for as long as it likes.
- :meth:`DatabaseSession.ask` runs one statement, or several in one packet, in the time for which
  the session was lent. :meth:`DatabaseSession.run` sets that time itself: ``limit`` is in seconds,
  None for none.
- A statement that another session cancels in the server raises
  :class:`~.errors.StatementCancelled`.
- ``hang_up()`` ends the statement that another thread is running here, from this side:
  that raises :class:`~.errors.ConnectionLost`. Any thread may call it; the rest is only for the one
  that uses the session.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from io import FileIO
from typing import Any, ClassVar

from django.db import Error as DjangoDatabaseError

from distlock.backends.database import errors
from distlock.backends.database.sql import Dialect
from distlock.backends.database.statements import (
    Result,
    Statement,
    renamed_tables,
    with_tables_renamed,
)
from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import despite
from distlock.concurrency.threads import call_after
from distlock.exceptions import BodyEnded

#: shuts the socket of a connection down, from another thread
HangUp = Callable[[], object]


class TimedOut(Exception):
    """The answer did not come within the time limit. It may come later."""


class RawConnection(ABC):
    """A connection of a driver. It raises the driver's own errors."""

    @abstractmethod
    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """Run the statements of one packet; returns the result of each.

        Raises TimedOut after ``limit`` seconds (None: never).
        """

    #: whether notifications() works
    hears: ClassVar[bool] = False

    def notifications(self) -> list[str]:
        """Return what the server has told this session since the last time, without waiting.

        On PostgreSQL, the texts of NOTIFY; on MySQL an empty text for an answer to send().
        """
        raise NotImplementedError

    def send(self, statement: Statement) -> None:
        """MySQL: send a statement whose answer notifications() will collect."""
        raise NotImplementedError


@contextlib.contextmanager
def hung_up_after(limit: float | None, hang_up: HangUp | None) -> Iterator[None]:
    """Let a timer end what is waited for; TimedOut if it had to."""
    if limit is None or hang_up is None:
        yield
        return
    timer = call_after(limit, hang_up)
    try:
        yield
    except Exception as error:
        if not timer.cancel() and not isinstance(error, BodyEnded):
            raise TimedOut from error
        raise
    finally:
        timer.cancel()


class CursorConnection(RawConnection):
    """Any driver that Django has a backend for."""

    def __init__(self, wrapper: Any, hang_up: HangUp | None = None) -> None:
        """``wrapper`` is a ``DatabaseWrapper`` that is connected.

        ``hang_up`` shuts its socket down; without that there is no time limit.
        """
        self._wrapper = wrapper
        self._hang_up = hang_up
        # SQLite runs one statement. Of those in one packet psycopg2 tells the last result only.
        is_psycopg2 = wrapper.Database.__name__ == "psycopg2"
        self._has_next_set = not is_psycopg2 and wrapper.vendor != "sqlite"

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        with hung_up_after(limit, self._hang_up):
            return self._execute(statement)

    def _execute(self, statement: Statement) -> list[Result]:
        # Not wrapper.cursor(): that logs queries and runs wrappers that are meant for the caller's.
        cursor = self._wrapper.create_cursor()
        try:
            cursor.execute(statement.sql, statement.params)
            return _results(cursor) if self._has_next_set else [_result(cursor)]
        finally:
            # A traceback may keep it, and with SQLite its lock on the file.
            with despite(Exception):  # all rows were read, or another error is raised
                cursor.close()


def _results(cursor: Any) -> list[Result]:
    results = [_result(cursor)]
    while cursor.nextset():
        results.append(_result(cursor))
    return results


def _result(cursor: Any) -> Result:
    rows = [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
    return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", None) or 0)


#: The least seconds that the database gets for an answer, even if less time is left. A statement
#: that is given up costs its session.
SHORTEST_LIMIT = 0.05


#: where in the server the warning comes from, which all languages have in common
_SOURCE = "syncrep.c"
#: its words in English, for servers that do not tell the source
_WORDS = "synchronous replication"


class Notices:
    """Listens for the one notice of PostgreSQL that counts.

    A commit waits for the synchronous standby, if there is one. Ending that wait, as with
    pg_cancel_backend(), makes the statement succeed with a warning that the standby may not have
    it: https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA
    """

    def __init__(self) -> None:
        #: whether a commit may not have reached the standby
        self.not_replicated = False

    def listen(self, wrapper: Any) -> None:
        """Listen from now on, on a Django connection that is open."""
        if hasattr(wrapper.connection, "add_notice_handler"):
            wrapper.connection.add_notice_handler(self.handle)
        else:
            wrapper.connection.notices = self  # psycopg2 calls append()

    def append(self, text: str) -> None:
        """Handle a notice of psycopg2, which is a text in the server's language.

        Our sessions ask for warnings only, and this is the one that their statements can cause.
        """
        self.not_replicated = True

    def handle(self, notice: Any) -> None:
        """Handle a ``Diagnostic`` of psycopg."""
        source = str(notice.source_file or "")
        if source.endswith(_SOURCE) or (not source and _WORDS in str(notice.message_primary)):
            self.not_replicated = True


class Connection:
    """Runs statements on a Django connection, beside Django's own cursors."""

    #: whether it is the caller's own, in an open transaction
    of_caller: ClassVar[bool] = False

    def __init__(self, wrapper: Any, raw: RawConnection) -> None:
        """``wrapper`` is a ``DatabaseWrapper`` that is connected."""
        self.wrapper = wrapper
        self.usable = True
        #: a pooler may give every packet to another session of the server
        self.pooled = False
        #: what the native locks of its tables are named after, see AdvisoryLocks.key()
        self.namespace = ""
        #: the dialect of its engine; the lender sets this
        self.dialect: Dialect
        #: the time by clock() by which ask() has to be answered, None for no limit; the lender sets
        #: this
        self.until: float | None = 0.0
        #: statements that are run before every other, in the same packet
        self.before: tuple[str, ...] = ()
        self._raw = raw
        self._renames_tables = bool(renamed_tables())
        #: hears what PostgreSQL tells beside its answers
        self.notices = Notices()

    def run(self, statement: Statement, limit: float | None) -> Result:
        """See ask(). ``limit`` is the seconds that the server gets for the answer, None: no limit.

        Only the borrower of the connection may call it.
        """
        self.until = None if limit is None else clock() + limit
        return self.ask(statement)

    def ask(self, statement: Statement) -> Result:
        """Run a statement, or all of one packet, in the time for which this was lent.

        Of several results returns the last one that has rows, or else the first. Raises a
        StatementFailed.
        """
        limit = None if self.until is None else max(self.until - clock(), SHORTEST_LIMIT)
        before, statement = self.before, self._renamed(statement)
        if self.pooled:
            sql = "; ".join((*before, statement.sql))
            statement = statement._replace(sql=sql, prepare=False)
        try:
            results = self._raw.execute(statement, limit)
        except (self.wrapper.Database.Error, DjangoDatabaseError) as error:
            raise self._failure(error) from error
        except TimedOut:
            self.hang_up()
            raise errors.StatementTimeout(f"no answer within {limit:.3g} s") from None
        except BaseException:  # an interrupt: the answer is unread, and the next one would read it
            self.usable = False
            raise
        if self.notices.not_replicated:
            self.notices.not_replicated = False
            raise errors.NotReplicated("its commit may not have reached the synchronous standby")
        if len(results) == 1:
            return results[0]
        results = results[len(before) :]
        return next((result for result in reversed(results) if result.rows), results[0])

    @property
    def hears(self) -> bool:
        """Whether notifications() works."""
        return self._raw.hears

    def notifications(self) -> list[str]:
        """See RawConnection.notifications(). Raises a StatementFailed."""
        try:
            return self._raw.notifications()
        except (self.wrapper.Database.Error, DjangoDatabaseError) as error:
            raise self._failure(error) from error

    def send(self, statement: Statement) -> None:
        """See RawConnection.send(). Raises a StatementFailed."""
        try:
            self._raw.send(self._renamed(statement))
        except (self.wrapper.Database.Error, DjangoDatabaseError) as error:
            raise self._failure(error) from error

    def _renamed(self, statement: Statement) -> Statement:
        if not self._renames_tables:
            return statement
        sql = with_tables_renamed(statement.sql, self.wrapper.vendor)
        return statement._replace(sql=sql)

    def _failure(self, error: Exception) -> errors.StatementFailed:
        kind = errors.failure(error, self.wrapper.vendor)
        self.usable = self.usable and kind.usable
        return kind(str(error))

    def hang_up(self) -> None:
        """End what goes on here; the connection is of no use then."""
        self.usable = False


class DatabaseSession(Connection):
    """A connection of our own, apart from the caller's: autocommit, and used by any thread in turn.

    If an interrupt drops the last reference, the garbage collector closes the session.
    """

    def __init__(
        self, wrapper: Any, raw_for: Callable[[Any, HangUp | None], RawConnection]
    ) -> None:
        """``wrapper`` is one that nobody else uses, and that is connected.

        ``raw_for`` is raw_connection_for() of the drivers.
        """
        self._drivers_fd = fd = _fileno(wrapper)
        super().__init__(wrapper, raw_for(wrapper, self.hang_up if fd >= 0 else None))
        #: to which database it was opened, by the settings
        self.target: tuple[Any, ...] = ()
        #: where the server finds the table of the locks: the schema, on MySQL the database
        self.schema = ""
        #: when it was used last, by clock()
        self.idle_since = 0.0
        self._closing = threading.Lock()
        # A descriptor of our own: the driver may close its own at any time, and the number would
        # then belong to another socket just when we shut it down. It is none of Python's sockets,
        # which would bring a time limit of their own to the driver's.
        self._file = FileIO(os.dup(fd)) if fd >= 0 else None
        self._readable = select.poll()
        if self._file is not None:
            self._readable.register(self._file, select.POLLIN)
        fork.current().connections.add(self)

    def run_as_engine(self, statement: Statement, limit: float) -> Result:
        """Run a statement as on a connection of the project's own; raises NoSession.

        An engine may choose the schema with each cursor (django-tenants).
        """
        wrapper = self.wrapper
        if not is_without_pool(wrapper):
            return self.run(statement, limit)
        try:
            # In one transaction, because a pooler may give the next one to another server process.
            wrapper.set_autocommit(False)
            wrapper.cursor().close()
            result = self.run(statement, limit)
            wrapper.commit()
            wrapper.set_autocommit(True)
        except (wrapper.Database.Error, DjangoDatabaseError) as error:
            cause = error.__cause__ or error
            raise errors.NoSession(f"cannot ask for the schema: {error}") from cause
        return result

    def hang_up(self) -> None:
        """Shut the socket down, which ends whatever waits for it; the session is of no use then."""
        super().hang_up()
        with self._closing, contextlib.suppress(OSError):  # the other side was first
            if self._file is not None:
                _shut_down(self._file.fileno())

    @property
    def stale(self) -> bool:
        """Whether the server has said something, or hung up, while nothing was asked."""
        return self._file is not None and bool(self._readable.poll(0))

    def fileno(self) -> int:
        """Return a descriptor of the session's socket, -1 where there is none."""
        return -1 if self._file is None else self._file.fileno()

    def close(self) -> None:
        """End the session, quietly, whatever state it is in; the server frees its native locks."""
        self.usable = False
        fork.current().connections.discard(self)
        # The driver's own connection first: another engine's close() may give it to a pool.
        raw, self.wrapper.connection = self.wrapper.connection, None
        with despite(Exception):  # it is gone either way
            raw.close()
        with despite(Exception):
            self.wrapper.close()
        with self._closing:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def leave_to_parent(self) -> None:
        """After a fork, in the child: let nothing that happens here reach the parent's session."""
        self.usable = False
        _of_parent.append(self)  # a destructor would say goodbye to the server
        self._closing = threading.Lock()  # another thread may have been closing it
        if self._file is None or self._file.closed:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        # The driver itself may refuse to tell: another thread was inside of it at the fork.
        with contextlib.suppress(OSError):  # it has closed its own
            if os.path.sameopenfile(self._drivers_fd, self._file.fileno()):
                os.dup2(nowhere, self._drivers_fd, inheritable=False)
        os.dup2(nowhere, self._file.fileno(), inheritable=False)
        os.close(nowhere)


def is_without_pool(wrapper: Any) -> bool:
    """Return whether a connection of ours does without its engine's pool, see connect.py."""
    return type(wrapper) is not wrapper.__class__


def at_most(options: dict[str, Any], option: str, seconds: float) -> int:
    """Return the user's own seconds if they are less; drivers want them whole and above 0."""
    own = int(options.get(option) or 0)
    most = max(math.ceil(seconds), 1)
    return min(own, most) if own > 0 else most


def _shut_down(fd: int) -> None:
    try:
        copy = os.dup(fd)  # Python's socket closes what it was made of
    except OSError:  # the process can have no more of them
        end = socket.socket(fileno=fd)
        try:
            end.shutdown(socket.SHUT_RDWR)
        finally:
            end.detach()
        return
    with socket.socket(fileno=copy) as end:
        end.shutdown(socket.SHUT_RDWR)


def _fileno(wrapper: Any) -> int:
    connection = wrapper.connection
    # PyMySQL keeps its socket to itself.
    fileno = getattr(connection, "fileno", getattr(getattr(connection, "_sock", 0), "fileno", None))
    try:
        return int(fileno())  # type: ignore[misc]
    except BodyEnded:
        raise
    except Exception:  # the driver has no such method, or no socket (any more)
        return -1  # despite() would leave the frames below in a cycle, and the loan of a session


_of_parent: list[DatabaseSession] = []
