"""Sessions that are open, or in use, when the process forks."""

import contextlib
import json
import os
import signal
import stat
import threading
import traceback
from functools import partial

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.backends.database.sqlite_session import SQLiteSession, gate
from distlock.backends.database.statements import Statement
from distlock.backends.store import Put
from distlock.concurrency.fork import current
from distlock.recipes import Config
from tests.children import write_line
from tests.contract.forks import forked
from tests.contract.watch import eventually
from tests.database.lending import ident_of, in_use, next_session
from tests.database.speaking import claim, speaking
from tests.databases import ALIASES, SERVERS, another_file


def fork_while_in_use(database, name):
    """In a process of its own: fork while sessions are idle, lent, and waiting for an answer."""
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    leases = [backend.try_acquire(claim(f"{name}:{number}")) for number in range(3)]
    slow = {
        "mariadb": "SELECT SLEEP(1), 7",
        "postgresql": "SELECT pg_sleep(1), 7",
    }.get(database, "SELECT 0, 7")
    answers = []
    asked = threading.Event()

    def ask():
        def run(session):
            asked.set()
            return session.run(Statement(slow), 20).rows[0][1]

        answers.append(backend.pool.work(run))

    asking = threading.Thread(target=ask)
    asking.start()
    asked.wait()
    with in_use(backend.pool) as lent:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert not lent.usable
                assert all(backend.verify(lease) for lease in leases)
                assert next_session(backend.pool) is not lent
                mine = backend.try_acquire(claim(f"{name}:child"))
                assert backend.release(mine)
                backend.close()
                lent.close()
                lent.hang_up()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert lent.run(Statement("SELECT 5"), 5).rows == [(5,)]
    asking.join()
    assert answers == [7]
    assert all(backend.release(lease) for lease in leases)
    backend.close()


@pytest.mark.slow
def test_neither_process_disturbs_the_other(kind, make, name, child):
    make()
    child(fork_while_in_use, ALIASES[kind], name).finish()


def fork_and_leave_by_the_door(database, name):
    """A child that ends as processes do, with all destructors, says no goodbye for its parent."""
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    lease = backend.try_acquire(claim(name))
    ident = ident_of(next_session(backend.pool))
    pid = os.fork()
    if pid == 0:
        backend.verify(lease)
        raise SystemExit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ident_of(next_session(backend.pool)) == ident
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_the_end_of_the_child_ends_no_session_of_the_parent(kind, make, name, child):
    make()
    child(fork_and_leave_by_the_door, ALIASES[kind], name).finish()


#: a session that the server has, and one that it is at work for
THERE = {
    "mariadb": "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %(ident)s",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE pid = %(ident)s",
}
BUSY = {
    "mariadb": " AND info LIKE 'SELECT SLEEP%%'",
    "postgresql": " AND state = 'active' AND query LIKE '%%pg_sleep%%'",
}


def sockets():
    """The sockets of this process, whatever their descriptors."""
    found = set()
    for fd in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            status = os.fstat(int(fd))
            if stat.S_ISSOCK(status.st_mode):
                found.add(status.st_ino)
    return found


def fork():
    """Fork; in the parent, a function that tells which of some sockets the child has, too."""
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ask)  # or there would be no end to wait for when the parent dies
            theirs = set(json.loads(os.read(asked, 10_000)))
            os.write(answer, json.dumps([*(theirs & sockets())]).encode())
        finally:
            os._exit(0)

    def has_of(theirs):
        os.write(ask, json.dumps([*theirs]).encode())
        os.waitpid(pid, 0)
        return set(json.loads(os.read(answered, 10_000)))

    return has_of


def fork_in_the_middle_of_a_statement(database):
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    before = sockets()
    session = backend.pool.open(blocking=True)
    mine = sockets() - before
    assert mine
    slow = {"mariadb": "SELECT SLEEP(30)", "postgresql": "SELECT pg_sleep(30)"}[database]
    look = Statement(THERE[database] + BUSY[database], {"ident": ident_of(session)})

    def ask():
        with contextlib.suppress(Exception):
            session.run(Statement(slow), None)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    eventually(lambda: backend.pool.run(look).rows == [(1,)])
    assert fork()(mine) == set()
    session.hang_up()
    asking.join()
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_a_child_keeps_no_session_open_whose_answer_the_parent_awaits(kind, make, child):
    """The server would not notice that the parent has died."""
    make()
    child(fork_in_the_middle_of_a_statement, ALIASES[kind]).finish()


def fork_after_the_driver_closed(database):
    """The number of its descriptor belongs to something else now, or to nothing."""
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    for number_is_taken in (True, False):
        session = backend.pool.open(blocking=True)
        number = session.wrapper.connection.fileno()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        if number_is_taken:
            os.dup2(writing, number)
        else:
            os.close(number)
        pid = os.fork()
        if pid == 0:
            if number_is_taken:
                os.write(number, b"mine")
                os._exit(0)
            try:
                os.fstat(number)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.close(writing)
        if number_is_taken:
            assert os.read(reading, 10) == b"mine"
        os.close(reading)
    backend.close()
    os._exit(0)  # the driver believes that it has a socket


@pytest.mark.parametrize("kind", SERVERS)
def test_a_child_leaves_alone_what_is_not_the_drivers_any_more(kind, make, child):
    make()
    child(fork_after_the_driver_closed, ALIASES[kind]).finish()


def fork_inside_of_sqlite(name):
    """As a child: fork without hooks while another thread is in a transaction of distlock's."""
    config, inside, go_on = Config(name), threading.Event(), threading.Event()
    config.set(0)

    def write():
        ask = SQLiteSession.ask

        def stop(session, statement):
            result = ask(session, statement)
            if statement.sql.startswith("UPDATE"):
                inside.set()
                assert go_on.wait(60)
            return result

        SQLiteSession.ask = stop
        config.set(1)

    writing = threading.Thread(target=write)
    writing.start()
    inside.wait(60)
    try:
        write_line(forked(use_sqlite, name, way="without hooks"))
    finally:
        go_on.set()
        writing.join()
    write_line(config.get().value, Lock(name).acquire())


def use_sqlite(name):
    told = []
    for use in (Lock(name).acquire, partial(Config(name).set, 2)):
        try:
            use()
        except LockUnavailable as error:
            told.append("forked" in str(error))
    return told


def test_a_child_that_was_forked_inside_of_sqlite_leaves_it_alone(
    child, backend_settings, settings, name
):
    """SQLite has noted locks there that the child does not have."""
    settings.DISTLOCK = backend_settings("sqlite")
    process = child(fork_inside_of_sqlite, name)
    assert process.finish() == ["[True, True]", "1 True"]


def fork_in_a_signal_handler(name, ends_at_once):
    """As a child: a handler forks in the middle of a transaction of the thread it interrupts."""
    store, parent = locks["default"].store, os.getpid()
    store.apply(name, [Put("key", {})])
    codes = []

    def fork_here(*_):
        pid = os.fork()
        if pid:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        elif ends_at_once:
            os._exit(not gate.broken)

    signal.signal(signal.SIGUSR1, fork_here)
    ask = SQLiteSession.ask

    def signalled(session, statement):
        result = ask(session, statement)
        if statement.sql.startswith("UPDATE database_lock_directory") and os.getpid() == parent:
            signal.raise_signal(signal.SIGUSR1)
        return result

    SQLiteSession.ask = signalled
    try:
        revision = store.apply(name, [Put("key", {"by": os.getpid()})])
    except LockUnavailable as error:
        os._exit("fork" not in str(error) or os.getpid() == parent)
    if os.getpid() != parent:
        os._exit(2)
    (record,) = store.read(name).records.values()
    write_line(codes, type(revision).__name__, record.value == {"by": parent})


@pytest.mark.parametrize("ends_at_once", [True, False], ids=["ends", "goes on"])
@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_child_of_a_signal_handler_leaves_its_parents_transaction_alone(
    child, backend, backend_settings, settings, name, ends_at_once
):
    """Closing its copy of the connection would roll back what the parent is writing."""
    backend.close()
    with another_file(ALIASES["sqlite"], "delete"):
        settings.DISTLOCK = backend_settings("sqlite")
        process = child(fork_in_a_signal_handler, name, ends_at_once)
        assert process.finish() == ["[0] int True"]


def fork_between_the_hooks():
    """As a child: a handler forks where another fork of its thread has closed the gate."""
    gate._close()
    write_line(forked(is_broken))
    write_line(forked(is_broken, way="without hooks"))
    gate._open()
    write_line(forked(is_broken))


def is_broken():
    current()  # without hooks a child learns of the fork by this
    return gate.broken


def test_a_fork_within_a_fork_breaks_nothing(child):
    """No statement is running then."""
    assert child(fork_between_the_hooks).finish() == ["False"] * 3
