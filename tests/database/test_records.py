"""Records in a database: what the common suite of the stores cannot know of."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg
import pytest
from django.db import connections, transaction
from django.test import TestCase, override_settings

from distlock import LockUnavailable, locks
from distlock.backends.database.record_listener import channel_of
from distlock.backends.store import Absent, Delete, Exists, Put, SessionEnded, Unchanged
from distlock.concurrency.clock import clock
from distlock.exceptions import NotSupported
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.databases import ALIASES, DATABASES, SERVERS, moved
from tests.servers.pgbouncer import PgBouncer

EVERYWHERE = pytest.mark.parametrize("kind", DATABASES)
ON_SERVERS = pytest.mark.parametrize("kind", SERVERS)
ON_POSTGRESQL = pytest.mark.parametrize("kind", ["postgresql"])
ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
TABLES = ["database_lock_directory", "database_lock_record", "database_lock_session"]


@pytest.fixture
def store(make, settings, backend_settings, kind):
    settings.DISTLOCK = backend_settings(kind)
    return make(wait="auto").store


@pytest.fixture
def session(store):
    session = store.open_session(600)
    yield session.id
    with suppress(LockUnavailable):
        store.end_session(session.id)


def keys(store, directory):
    return sorted(store.read(directory).records)


# A client that is stopped


@contextmanager
def row_of(session, kind):
    """Have a transaction that keeps the row of a session locked."""
    other = connections[ALIASES[kind]].copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM database_lock_session WHERE id = %s FOR UPDATE", [session]
            )
        yield
    finally:
        other.rollback()
        other.close()


def put_with_session(directory, session):
    store = locks["default"].store
    store.read(directory)
    write_line("ready")
    read_line()
    with suppress(LockUnavailable):
        store.apply(directory, [Put("bound", 1, session)], deadline=clock() + 1.5)
    write_line("over")
    read_line()


WAITING = {
    "mariadb": "SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE info LIKE 'UPDATE database_lock_session%'",
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND query LIKE '%database_lock_session%'",
}


@ON_SERVERS
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
def test_what_failed_in_the_middle_is_not_committed_by_the_next(store, session, name, kind):
    """The session with the server, on which a transaction may be open, is not used again."""
    store.apply(name, [Put("old", 1)])
    with row_of(session, kind), pytest.raises(LockUnavailable) as failed:
        store.apply(name, [Put("bound", 1, session)], deadline=clock() + 1.5)
    assert not failed.value.maybe_applied
    for number in range(5):
        store.apply(name, [Put(f"next{number}", 1)])
    locks.close_all()
    assert keys(store, name) == ["next0", "next1", "next2", "next3", "next4", "old"]


@EVERYWHERE
def test_twenty_threads_in_two_directories_with_ending_sessions(store, name):
    """Deadlocks between changes and the end of sessions are tried again, and lose nothing."""
    directories = [f"{name}:1", f"{name}:2"]

    def work(number):
        made = 0
        for turn in range(5):
            session = store.open_session(600)
            first, second = directories[:: 1 if (number + turn) % 2 else -1]
            for directory in (first, second):
                key = f"{number}:{turn}"
                assert store.apply(directory, [Put(key, 1, session.id), Put(f"kept:{key}", 1)])
                made += 1
            store.end_session(session.id)
        return made

    with ThreadPoolExecutor(20) as threads:
        assert sum(threads.map(work, range(20))) == 200
    for directory in directories:
        assert len(keys(store, directory)) == 100
        assert all(key.startswith("kept:") for key in keys(store, directory))


# Conditions that are special here


@EVERYWHERE
def test_what_waits_for_a_directory_sees_what_was_committed_meanwhile(store, name, kind):
    """Conditions are looked at under the lock, and not before it was waited for."""
    revision = store.apply(name, [Put("a", 1)])

    def race(number):
        conditions = [Unchanged(revision), Absent("b"), Exists("a", revision)]
        return store.apply(name, [Put("b", number), Delete("a")], conditions)

    with ThreadPoolExecutor(8) as threads:
        won = [result for result in threads.map(race, range(8)) if result is not None]
    assert len(won) == 1


@EVERYWHERE
def test_the_record_of_an_ended_session_is_gone_for_a_blind_change(store, name, sql, kind):
    session = store.open_session(600).id
    store.apply(name, [Put("a", 1, session)])
    sql(f"UPDATE database_lock_session SET expires_at = 1 WHERE id = '{session}'")
    assert store.apply(name, [Put("a", 2)], [Absent("a")])
    assert store.get(name, "a").value == 2
    assert sql(f"SELECT id FROM database_lock_session WHERE id = '{session}'") == []


@EVERYWHERE
def test_a_record_whose_session_somebody_has_deleted_by_hand_is_gone(store, session, name, sql):
    store.apply(name, [Put("a", 1, session), Put("b", 1)])
    sql(f"DELETE FROM database_lock_session WHERE id = '{session}'")
    assert keys(store, name) == ["b"]
    assert sql(f"SELECT id FROM database_lock_record WHERE session = '{session}'") == []


@EVERYWHERE
def test_the_directory_is_touched_when_its_records_vanish_with_a_session(store, session, name):
    revision = store.apply(name, [Put("a", 1, session)])
    store.end_session(session)
    assert store.read(name).revision > revision


# Tables that are missing


@pytest.fixture
def without_tables(store, sql):
    for table in TABLES:
        sql(f"ALTER TABLE {table} RENAME TO {table}_aside")
    yield
    for table in TABLES:
        sql(f"ALTER TABLE {table}_aside RENAME TO {table}")


@EVERYWHERE
def test_missing_tables_are_named_with_the_line_that_makes_them(store, without_tables, name, kind):
    for use in [
        lambda: store.read(name),
        lambda: store.apply(name, [Put("a", 1)]),
        lambda: store.open_session(10),
    ]:
        with pytest.raises(LockUnavailable, match=f"migrate distlock --database={ALIASES[kind]}"):
            use()


@EVERYWHERE
def test_a_sweep_of_locks_needs_no_tables_of_records(without_tables, make):
    make().sweep()


@EVERYWHERE
def test_a_sweep_of_locks_sweeps_records(make, store, name, sql):
    session = store.open_session(600).id
    store.apply(name, [Put("a", 1, session)])
    sql(f"UPDATE database_lock_session SET expires_at = 1 WHERE id = '{session}'")
    sql("UPDATE database_lock_directory SET revision = 1")
    backend = make(keep=0.001)
    assert backend.sweep().expired >= 1
    backend.sweep()
    assert sql(f"SELECT id FROM database_lock_record WHERE session = '{session}'") == []


# Hints of PostgreSQL


@pytest.fixture
def told(postgresql, name):
    """What PostgreSQL tells of changes of the directory."""
    info = postgresql.django()
    listener = psycopg.connect(
        host=info["HOST"],
        port=info["PORT"],
        user=info["USER"],
        password=info["PASSWORD"],
        dbname=info["NAME"],
        autocommit=True,
    )
    listener.execute(f"LISTEN {channel_of(name)}")
    yield lambda timeout: [one.payload for one in listener.notifies(timeout=timeout, stop_after=1)]
    listener.close()


@ON_POSTGRESQL
def test_a_change_is_told_if_somebody_waits_for_it(store, make, name, told, sql):
    revision = store.apply(name, [Put("a", 1)])
    watch = store.watch(name, revision)
    eventually(lambda: listeners(sql) == 1)
    changed = make(wait="auto").store.apply(name, [Put("a", 2)])
    assert told(PATIENCE) == [f"{changed} {name}"]
    assert watch.wait(clock() + PATIENCE)


@ON_POSTGRESQL
def test_a_change_is_told_to_nobody_if_nobody_waits(store, name, told, sql):
    eventually(lambda: listeners(sql) == 0)
    store.apply(name, [Put("a", 1)])
    store.apply(name, [Put("a", 2)])
    assert told(0) == []


@ON_POSTGRESQL
def test_one_session_listens_for_all_watches_and_ends_with_them(store, name, sql):
    eventually(lambda: listeners(sql) == 0)
    watches = [store.watch(f"{name}:{number}", 0) for number in range(20)]
    eventually(lambda: listeners(sql) == 1)
    for watch in watches:
        watch.abandon()
    eventually(lambda: listeners(sql) == 0)


def listeners(sql):
    ((number,),) = sql(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN distlock%SELECT%'"
    )
    return number


@ON_POSTGRESQL
def test_a_listener_whose_session_was_ended_wakes_everybody(store, name, sql):
    watch = store.watch(name, 0)
    eventually(lambda: listeners(sql) == 1)
    sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE query LIKE 'LISTEN distlock%SELECT%'"
    )
    assert watch.wait(clock() + PATIENCE)


@ON_POSTGRESQL
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_behind_a_pooler_changes_are_seen_all_the_same(store, make, postgresql, name, mode, sql):
    store.apply(name, [Put("a", 1)])
    eventually(lambda: listeners(sql) == 0)
    with PgBouncer(postgresql, mode=mode, size=2) as pooler, moved("postgresql", pooler.port):
        behind = make(wait="auto").store
        session = behind.open_session(60)
        revision = behind.apply(name, [Put("b", 1, session.id)], [Exists("a")])
        watch = behind.watch(name, revision)
        assert listeners(sql) == 0
        store.apply(name, [Put("a", 2)])
        assert watch.wait(clock() + PATIENCE)
        assert behind.renew([session.id], [(name, "b")]).present == {(name, "b")}
        locks.close_all()


# Transactions of the caller


@ON_SQLITE
def test_what_a_rollback_would_take_back_is_refused(store, session, name, kind):
    with transaction.atomic(using=ALIASES[kind]):
        with pytest.raises(NotSupported, match="transaction"):
            store.open_session(10)
        with pytest.raises(NotSupported, match="transaction"):
            store.apply(name, [Put("a", 1, session)])
        assert keys(store, name) == []
    assert store.apply(name, [Put("a", 1, session)])


@ON_SERVERS
def test_a_rollback_of_the_caller_takes_nothing_back(store, session, name, kind):
    with suppress(ZeroDivisionError), transaction.atomic(using=ALIASES[kind]):
        store.apply(name, [Put("a", 1, session)])
        raise ZeroDivisionError
    assert keys(store, name) == ["a"]


class Cases:
    """What a project's tests do with records."""

    kind: str

    def run(self, result=None):
        options = {"database": ALIASES[self.kind]}
        backend = "distlock.backends.database.DatabaseBackend"
        with override_settings(DISTLOCK={"default": {"BACKEND": backend, "OPTIONS": options}}):
            super().run(result)

    def test_records_are_put_and_watched_by_several_threads(self):
        store = locks["default"].store
        session = store.open_session(60)
        revision = store.apply("in a case", [Put("a", 1, session.id)], [Absent("a")])
        watch = store.watch("in a case", revision, "a")
        assert store.apply("in a case", [Put("a", 2)], [Absent("a")]) is None
        thread = threading.Thread(target=lambda: store.apply("in a case", [Delete("a")]))
        thread.start()
        thread.join()
        assert watch.wait(clock() + PATIENCE)
        assert store.renew([session.id]).alive == {session.id}
        assert store.read("in a case").records == {}
        store.end_session(session.id)
        with self.assertRaises(SessionEnded):
            store.apply("in a case", [Put("a", 1, session.id)])


class TestOnSQLite(Cases, TestCase):
    databases = {"default"}
    kind = "sqlite"


class TestInMemory(Cases, TestCase):
    databases = {"memory"}
    kind = "memory"


class TestOnPostgreSQL(Cases, TestCase):
    databases = {"postgresql"}
    kind = "postgresql"


# Forks


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
