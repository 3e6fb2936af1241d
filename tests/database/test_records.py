"""Records in a database: what the common suite of the stores cannot know of."""

import json
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
from distlock.backends.database.statements import Statement
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
def test_a_session_is_not_used_after_a_failure_in_the_middle(store, session, name, kind, sql):
    """The transaction may be open, and what comes later would be a part of it."""
    store.apply(name, [Put("old", 1)])
    with row_of(session, kind), pytest.raises(LockUnavailable) as failed:
        store.apply(name, [Put("bound", 1, session)], deadline=clock() + 1.5)
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


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_change_leaves_the_session_as_it_was(make, name):
    backend = make(sessions=1)
    ask = Statement("SELECT @@wait_timeout, @@in_transaction, CONNECTION_ID()")
    before = backend.pool.run(ask).rows
    session = backend.store.open_session(60).id
    assert backend.store.apply(name, [Put("a", 1, session)], [Absent("a")])
    assert not backend.store.apply(name, [Put("a", 1)], [Absent("a")])
    backend.store.end_session(session)
    assert backend.pool.run(ask).rows == before


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
def waiting(sql, kind):
    """``waiting(text, 2)``: wait until two statements with this text wait for a row."""

    def wait(text, number):
        eventually(lambda: len(sql(BUSY[kind] % text)) >= number)

    return wait


@ON_SERVERS
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
    store = make(timeout=4).store
    session = store.open_session(600).id
    store.apply(name, [Put("a", 1, session)])
    silent = proxy.forget(b"UPDATE database_lock_session")
    renewal = store.renew([session], [(name, "a")], clock() + 3)
    assert silent.is_set()
    assert (renewal.alive, renewal.present) == ({session}, {(name, "a")})


# Conditions that are special here


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
def test_a_sweep_of_locks_needs_no_tables_of_records(make, request):
    backend = make()
    request.getfixturevalue("without_tables")
    backend.sweep()


@EVERYWHERE
def test_a_sweep_of_locks_sweeps_records(make, name, sql):
    backend = make(keep=0.001)
    store = backend.store
    session = store.open_session(600).id
    store.apply(name, [Put("a", 1, session)])
    sql(f"UPDATE database_lock_session SET expires_at = 1 WHERE id = '{session}'")
    sql("UPDATE database_lock_directory SET revision = 1")
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
    for channel in {channel_of(name), channel_of(name, "a"), channel_of(name, "b")}:
        listener.execute(f"LISTEN {channel}")
    yield lambda timeout: [one.payload for one in listener.notifies(timeout=timeout, stop_after=1)]
    listener.close()


@ON_POSTGRESQL
def test_a_change_is_told_if_somebody_waits_for_it(store, make, name, told, sql):
    revision = store.apply(name, [Put("a", 1)])
    watch = store.watch(name, revision)
    eventually(lambda: listeners(sql) == 1)
    changed = make(wait="auto").store.apply(name, [Put("a", 2)])
    assert json.loads(told(PATIENCE)[0]) == [name, changed, ["a"]]
    assert watch.wait(clock() + PATIENCE)


@ON_POSTGRESQL
def test_a_change_of_one_record_is_not_told_to_who_waits_for_another(store, make, name, told, sql):
    """So a hand-over costs as much if many wait, each for its own record."""
    while channel_of(name, "b") in (channel_of(name, "a"), channel_of(name)):
        name += "'"
    revision = store.apply(name, [Put("a", 1), Put("b", 1)])
    watch = store.watch(name, revision, "b")
    eventually(lambda: listeners(sql) == 1)
    other = make(wait="auto").store
    other.apply(name, [Put("a", 2)])
    assert told(0) == []
    other.apply(name, [Put("b", 2)])
    assert watch.wait(clock() + PATIENCE)


@ON_POSTGRESQL
@pytest.mark.parametrize("key", ["a", None])
def test_the_end_of_a_session_is_told(store, make, session, name, told, sql, key):
    revision = store.apply(name, [Put("a", 1, session)])
    watch = store.watch(name, revision, key)
    eventually(lambda: listeners(sql) == 1)
    make(wait="auto").store.end_session(session)
    assert json.loads(told(PATIENCE)[0]) == [name, None, None]
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


@EVERYWHERE
def test_who_watches_looks_again_when_the_backend_is_closed(store, name):
    watch = store.watch(name, store.apply(name, [Put("a", 1)]))
    store.close()
    assert watch.wait(clock() + PATIENCE)
    again = store.watch(name, store.read(name).revision)
    store.apply(name, [Put("a", 2)])
    assert again.wait(clock() + PATIENCE)


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


@ON_SQLITE
def test_children_that_are_forked_in_the_middle_of_changes_leave_these_alone(store, name, sql):
    over = threading.Event()

    def change():
        made = 0
        while not over.is_set():
            changes = [Put("first", made), Put("second", made), Put(f"{made}", "x" * 10_000)]
            assert store.apply(name, changes)
            made += 1
        return made

    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(change)
        try:
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
