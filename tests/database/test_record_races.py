"""Changes of records and ends of sessions that meet; clients that stop or fork in the middle."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from django.db import connections

from distlock import LockUnavailable, locks
from distlock.backends.database import mariadb, postgresql, runner
from distlock.backends.store import Absent, Delete, Exists, Put, Unchanged
from distlock.concurrency.clock import clock
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, steadily
from tests.database.records import EVERYWHERE, ON_SERVERS, ON_SQLITE, keys
from tests.databases import ALIASES


@pytest.fixture
def store(make, settings, backend_settings, kind):
    """The records of the backend ``default``; what has to wait, waits until the test has looked."""
    settings.DISTLOCK = backend_settings(kind)
    return make(wait="auto", timeout=30).store


@contextmanager
def uncommitted(kind, statement, *values):
    """Have a transaction of somebody else that has run a statement, and commits at the end."""
    other = connections[ALIASES[kind]].copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(statement, values)
            if cursor.description:
                cursor.fetchall()
        yield
        other.commit()
    finally:
        other.close()


def row_of(session, kind):
    """Keep the row of a session locked."""
    return uncommitted(
        kind, "SELECT id FROM database_lock_session WHERE id = %s FOR UPDATE", session
    )


def put_with_session(directory, session):
    """Try again and again: the test may not see the first packet before it fails."""
    store = locks["default"].store
    store.read(directory)
    write_line("ready")
    read_line()
    while True:
        with suppress(LockUnavailable):
            store.apply(directory, [Put("bound", 1, session)], deadline=clock() + 1.5)
            return


WAITING = {
    "mariadb": "SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE info LIKE 'UPDATE database_lock_session%'",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE '%database_lock_session%'",
}


@ON_SERVERS
@pytest.mark.every_day_on("mariadb")
def test_one_who_is_stopped_while_his_packet_fails_keeps_nobody_waiting(
    store, session, name, child, sql, kind
):
    """The packet has locked the directory when it fails, because of the row of the session."""
    store.apply(name, [Put("old", 1)])
    stopped = child(put_with_session, name, session)
    assert stopped.line() == "ready"
    with row_of(session, kind):
        stopped.tell()
        eventually(lambda: sql(WAITING[kind]) == [(1,)])
        stopped.signal(signal.SIGSTOP)
        eventually(lambda: sql(WAITING[kind]) == [(0,)])
        assert eventually(lambda: change(store, name))
    stopped.signal(signal.SIGCONT)


def change(store, name):
    with suppress(LockUnavailable):
        return store.apply(name, [Put("new", 1)])
    return None


@ON_SERVERS
def test_a_session_is_not_used_after_a_failure_in_the_middle(
    store, session, name, kind, sql, monkeypatch
):
    """The transaction may be open, and what comes later would be a part of it."""
    monkeypatch.setattr(runner, "ROW_WAIT", 60)  # the first refusal is told
    store.apply(name, [Put("old", 1)])
    with row_of(session, kind), pytest.raises(LockUnavailable) as failed:
        store.apply(name, [Put("bound", 1, session)])
    assert not failed.value.maybe_applied
    later = store.open_session(600).id
    assert sql(f"SELECT id FROM database_lock_session WHERE id = '{later}'") == [(later,)]
    assert keys(store, name) == ["old"]


@EVERYWHERE
def test_many_threads_in_two_directories_with_ending_sessions(store, name):
    """Deadlocks between changes and the end of sessions are tried again, and lose nothing."""
    directories = [f"{name}:1", f"{name}:2"]

    def work(number):
        made = 0
        for turn in range(3):
            session = store.open_session(600)
            first, second = directories[:: 1 if (number + turn) % 2 else -1]
            for directory in (first, second):
                key = f"{number}:{turn}"
                assert store.apply(directory, [Put(key, 1, session.id), Put(f"kept:{key}", 1)])
                made += 1
            store.end_session(session.id)
        return made

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(work, range(10))) == 60
    for directory in directories:
        assert len(keys(store, directory)) == 30
        assert all(key.startswith("kept:") for key in keys(store, directory))


ORPHANS = (
    "SELECT COUNT(*) FROM database_lock_record r LEFT JOIN database_lock_session s"
    " ON s.id = r.session WHERE r.session IS NOT NULL AND s.id IS NULL"
)


#: what runs for longer than a moment, and is not our own look
BUSY = {
    "mariadb": "SELECT info FROM information_schema.processlist"
    " WHERE info LIKE '%%%s%%' AND info NOT LIKE '%%processlist%%'",
    "postgresql": "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE '%%%s%%'",
}


@pytest.fixture
def rows_are_waited_for(monkeypatch):
    """A server lets statements wait for a row until the test has looked, and not for a second."""
    for engine in (mariadb, postgresql):
        text = engine._ONCE
        for brief, long in (
            ("innodb_lock_wait_timeout = 1,", "innodb_lock_wait_timeout = 20,"),
            ("lock_timeout = '1s'", "lock_timeout = '20s'"),
        ):
            text = text.replace(brief, long)
        assert text != engine._ONCE
        monkeypatch.setattr(engine, "_ONCE", text)


@pytest.fixture
def waiting(sql, kind):
    """``waiting(text, 2)``: wait until two statements with this text wait for a row."""

    def wait(text, number):
        eventually(lambda: len(sql(BUSY[kind] % text)) >= number)

    return wait


@ON_SERVERS
@pytest.mark.usefixtures("rows_are_waited_for")
def test_no_record_outlives_a_session_that_is_ended_meanwhile(
    store, session, name, kind, sql, waiting
):
    """The session is proven alive, and then cannot be ended before the record is there."""
    store.apply(name, [Put("held up", 1)])
    row = "SELECT id FROM database_lock_record WHERE name = 'held up' FOR UPDATE"
    with ThreadPoolExecutor(2) as threads:
        with uncommitted(kind, row):
            bound = threads.submit(store.apply, name, [Put("held up", 2), Put("bound", 1, session)])
            waiting("INSERT INTO database_lock_record", 1)
            ended = threads.submit(store.end_session, session)
            waiting("DELETE FROM database_lock_session", 1)
        assert bound.result()
        ended.result()
    assert sql(ORPHANS) == [(0,)]
    assert keys(store, name) == ["held up"]


@ON_SERVERS
@pytest.mark.usefixtures("rows_are_waited_for")
def test_nobody_misses_a_record_whose_session_is_being_renewed(
    store, session, name, kind, sql, waiting
):
    """A session whose time is over counts until it was deleted."""
    store.apply(name, [Put("a", 1, session)])
    sql(f"UPDATE database_lock_session SET expires_at = 1 WHERE id = '{session}'")
    renewal = "UPDATE database_lock_session SET expires_at = %s WHERE id = %s"
    with ThreadPoolExecutor(1) as threads:
        with uncommitted(kind, renewal, 2**60, session):
            found = threads.submit(keys, store, name)
            waiting("DELETE FROM database_lock_session", 1)
        assert found.result() == ["a"]


@ON_SERVERS
@pytest.mark.usefixtures("rows_are_waited_for")
def test_conditions_are_looked_at_under_the_lock(store, name, kind, waiting):
    """And not before it was waited for, when they were true for both."""
    revision = store.apply(name, [Put("a", 1)])

    def race(number):
        conditions = [Unchanged(revision), Absent("b"), Exists("a", revision)]
        return store.apply(name, [Put("b", number), Delete("a")], conditions)

    row = "SELECT id FROM database_lock_directory WHERE name = %s FOR UPDATE"
    with ThreadPoolExecutor(2) as threads:
        with uncommitted(kind, row, name):
            racers = [threads.submit(race, number) for number in range(2)]
            waiting("database_lock_directory WHERE name", 2)
        won = [racer.result() for racer in racers if racer.result() is not None]
    assert len(won) == 1


@ON_SERVERS
@pytest.mark.every_day_on("postgresql")
def test_a_connection_that_has_fallen_silent_does_not_cost_a_session(make, kind, proxied, name):
    """As where a firewall has forgotten it: the renewal is sent again on another one."""
    proxy = proxied(kind)
    store = make(timeout=20).store
    session = store.open_session(600).id
    store.apply(name, [Put("a", 1, session)])

    def renew(seconds):
        silent = proxy.forget(b"UPDATE database_lock_session")
        renewal = store.renew([session], [(name, "a")], clock() + seconds)
        assert silent.is_set()
        assert (renewal.alive, renewal.present) == ({session}, {(name, "a")})

    steadily(renew, 3, 15)  # each half of it has to be enough


@EVERYWHERE
def test_the_child_of_a_fork_watches_and_changes_on_its_own(store, name):
    revision = store.apply(name, [Put("a", 1)])
    before = store.watch(name, revision)
    child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            watch = store.watch(name, revision)
            assert store.apply(name, [Put("b", 2)])
            assert watch.wait(clock() + PATIENCE)
            assert keys(store, name) == ["a", "b"]
            status = 0
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert before.wait(clock() + PATIENCE)
    assert keys(store, name) == ["a", "b"]


@ON_SQLITE
def test_children_that_are_forked_in_the_middle_of_changes_leave_these_alone(store, name, sql):
    begun, over = threading.Event(), threading.Event()

    def change():
        made = 0
        while not over.is_set():
            changes = [Put("first", made), Put("second", made), Put(f"{made}", "x" * 10_000)]
            assert store.apply(name, changes)
            made += 1
            begun.set()
        return made

    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(change)
        try:
            assert begun.wait(PATIENCE)
            for _ in range(25):
                child = os.fork()
                if not child:
                    os._exit(0)
                os.waitpid(child, 0)
        finally:
            over.set()
        made = changing.result()
    found = store.read(name).records
    assert found["first"].value == found["second"].value == made - 1
    assert len(found) == made + 2
    assert sql("PRAGMA integrity_check") == [("ok",)]
