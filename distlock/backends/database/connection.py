"""One session with a database server: runs a statement within a time limit and reads the answer.

What other modules build on (everything else in this package goes through it):

- :meth:`distlock.backends.database.pool.Pool.run` runs a statement on a shared session, and
  :meth:`Pool.do` several. They try again what may be tried again, and raise nothing but a
  :class:`~.errors.StatementFailed`.
- :meth:`Pool.session` lends a shared session, :meth:`Pool.open` opens one of one's own, with
  ``blocking=True`` for one that may wait in the server for as long as it likes.
- :meth:`Session.run` and :meth:`Session.run_all` run one statement, or several in one packet;
  ``limit`` is in seconds, None for none. :meth:`Session.exchange` does so past the driver's cursor.
- ``ident`` is the server's name for the session (``pg_backend_pid()``, ``CONNECTION_ID()``), by
  which another session can call it out of a statement: that raises :class:`~.errors.Cancelled`.
- ``hang_up()`` ends the statement that another thread is running here, from this side:
  that raises :class:`~.errors.ConnectionLost`. It and ``ident`` may be used by any thread, the
  rest only by the one that uses the session.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from typing import Any

from django.db import Error as DjangoDatabaseError

from distlock.backends.database import errors
from distlock.backends.database.drivers import listen, raw_connection_for
from distlock.backends.database.statements import Result, Statement
from distlock.watchdog import watchdog


class Connection:
    """Runs statements on a Django connection, beside Django's own cursors."""

    def __init__(self, wrapper: Any) -> None:
        """``wrapper`` is a ``DatabaseWrapper`` that is connected."""
        self.wrapper = wrapper
        self.usable = True

    def run(self, statement: Statement, limit: float | None) -> Result:
        """Run a statement; of several in one packet, return the last answer with rows, if any."""
        answers = self.run_all(statement, limit)
        with_rows = [answer for answer in answers if answer.rows]
        return (with_rows or answers)[-1]

    def run_all(self, statement: Statement, limit: float | None) -> list[Result]:
        """Run all statements of one packet; each one's answer. Raises a StatementFailed."""
        # Not wrapper.cursor(): that logs queries and runs wrappers that are meant for the caller's.
        cursor = self.wrapper.create_cursor()
        try:
            answers = _execute(cursor, statement)
            cursor.close()
            return answers
        except (self.wrapper.Database.Error, DjangoDatabaseError) as error:
            with contextlib.suppress(Exception):  # what failed first is what counts
                cursor.close()
            raise self._failed(error, limit) from error
        except BaseException:
            self.usable = False  # interrupted halfway: nobody knows what comes next on the wire
            if self.wrapper.vendor == "sqlite":
                # The traceback keeps the cursor, and an open statement its lock on the file.
                with contextlib.suppress(Exception):
                    cursor.close()
            raise

    def _failed(self, error: Exception, limit: float | None) -> errors.StatementFailed:
        kind = errors.failure(error, self.wrapper.vendor)
        self.usable = self.usable and kind.usable
        return kind(str(error))


class Session(Connection):
    """A connection of our own, apart from the caller's: autocommit, and used by any thread in turn.

    ``wrapper`` is one that nobody else uses.
    """

    def __init__(self, wrapper: Any) -> None:
        super().__init__(wrapper)
        self.settings: dict[str, Any] = {}  # of the database, as they were when this was opened
        self.ident = _server_id(wrapper)
        self._wire = raw_connection_for(wrapper)
        self._notices = listen(wrapper)
        self._closing = threading.Lock()
        # A descriptor of our own: the driver may close its own at any time, and the number would
        # then belong to another socket just when we shut it down. It is none of Python's sockets,
        # which would bring a time limit of their own to the driver's.
        self._drivers_fd = _fileno(wrapper)
        self._fd = os.dup(self._drivers_fd) if self._drivers_fd >= 0 else -1
        self._overran = False
        #: statements that are run before every other, in the same packet
        self.before: tuple[str, ...] = ()
        #: a pooler may give every packet to another session of the server
        self.pooled = False
        _sessions.add(self)

    def run_all(self, statement: Statement, limit: float | None) -> list[Result]:
        """See Connection.run_all(). ``limit`` is the time that the server gets for the answer."""
        if self.before:
            statement = statement._replace(sql="; ".join((*self.before, statement.sql)))
        if self._fd < 0 or limit is None:
            return self._proven(super().run_all(statement, limit)[len(self.before) :])
        watch = watchdog.add(limit, self._overrun)
        try:
            return self._proven(super().run_all(statement, limit)[len(self.before) :])
        finally:
            if not watchdog.call_off(watch):
                self.usable = False

    def exchange(self, statement: Statement, limit: float | None) -> list[Result]:
        """See run_all() and RawConnection.exchange(): quicker, for what is run at every turn."""
        if self._wire is None or self.before:
            return self.run_all(statement, limit)
        watch = None if limit is None else watchdog.add(limit, self._overrun)
        try:
            return self._proven(self._wire.exchange(statement))
        except self.wrapper.Database.Error as error:
            raise self._failed(error, limit) from error
        except BaseException:
            self.usable = False  # interrupted halfway: nobody knows what comes next on the wire
            raise
        finally:
            if watch is not None and not watchdog.call_off(watch):
                self.usable = False

    def _proven(self, answers: list[Result]) -> list[Result]:
        if self._notices.unreplicated():
            raise errors.NotReplicated("its commit may not have reached the synchronous standby")
        return answers

    def _failed(self, error: Exception, limit: float | None) -> errors.StatementFailed:
        if self._overran:
            self.usable = False
            return errors.StatementTimeout(f"no answer within {limit:.3g} s")
        return super()._failed(error, limit)

    def _overrun(self) -> None:
        self._overran = True
        self.hang_up()

    def hang_up(self) -> None:
        """Shut the socket down, which ends whatever waits for it; the session is of no use then."""
        self.usable = False
        with self._closing, contextlib.suppress(OSError):  # the other side was first
            if self._fd >= 0:
                with socket.socket(fileno=os.dup(self._fd)) as end:
                    end.shutdown(socket.SHUT_RDWR)

    @property
    def stale(self) -> bool:
        """Whether the server has said something, or hung up, while nothing was asked."""
        if self._fd < 0:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Return a descriptor of the session's socket, -1 where there is none."""
        return self._fd

    def close(self) -> None:
        """End the session, quietly, whatever state it is in; the server frees its native locks."""
        self.usable = False
        _sessions.discard(self)
        with contextlib.suppress(Exception):  # it is gone either way
            self.wrapper.close()
        with self._closing:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def leave_to_parent(self) -> None:
        """After a fork, in the child: let nothing that happens here reach the parent's session."""
        self.usable = False
        _graveyard.append(self)  # a destructor would say goodbye to the server
        self._closing = threading.Lock()  # another thread may have been closing it
        if self._fd < 0:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        if self._is_drivers_fd():
            os.dup2(nowhere, self._drivers_fd, inheritable=False)
        os.dup2(nowhere, self._fd, inheritable=False)
        os.close(nowhere)

    def _is_drivers_fd(self) -> bool:
        # The driver itself may refuse to tell: another thread was inside of it at the fork.
        try:
            return os.path.sameopenfile(self._drivers_fd, self._fd)
        except OSError:  # it has closed its own
            return False


def _execute(cursor: Any, statement: Statement) -> list[Result]:
    cursor.execute(statement.sql, statement.params)
    answers = [_answer(cursor)]
    next_set = getattr(cursor, "nextset", None)
    while next_set is not None and next_set():
        answers.append(_answer(cursor))
    return answers


def _answer(cursor: Any) -> Result:
    if cursor.description is None:
        return Result([], cursor.rowcount)
    rows = [tuple(row) for row in cursor.fetchall()]
    return Result(rows, cursor.rowcount)


def _server_id(wrapper: Any) -> int | None:
    if wrapper.vendor == "postgresql":
        return int(wrapper.connection.info.backend_pid)
    if wrapper.vendor == "mysql":
        return int(wrapper.connection.thread_id())
    return None


def _fileno(wrapper: Any) -> int:
    fileno = getattr(wrapper.connection, "fileno", None)
    if fileno is None:
        return -1
    try:
        return int(fileno())
    except Exception:  # the driver knows the method, but has no socket (any more)
        return -1


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_graveyard: list[Session] = []


def _after_fork() -> None:
    for session in list(_sessions):
        session.leave_to_parent()
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
