"""Records in a database: what the common suite of the stores cannot know of."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.db import transaction
from django.test import TestCase, override_settings

from distlock import LockUnavailable, locks
from distlock.backends.database.statements import Statement
from distlock.backends.store import Absent, Delete, Exists, Put, SessionEnded
from distlock.concurrency.clock import clock
from distlock.exceptions import NotSupported
from tests.contract.actors import PATIENCE
from tests.database.records import EVERYWHERE, ON_SERVERS, ON_SQLITE, keys
from tests.databases import ALIASES

TABLES = ["database_lock_directory", "database_lock_record", "database_lock_session"]


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


@EVERYWHERE
def test_a_revision_ahead_of_the_clock_is_not_forgotten(make, sql, name):
    """The server's clock was a week ahead for a while. Tokens are revisions."""
    store = make(keep=0.001).store
    store.apply(name, [Put("a", 1)])
    sql(f"UPDATE database_lock_directory SET revision = revision + {7 * 24 * 3600 * 1_000_000}")
    ahead = store.apply(name, [Delete("a")])
    store.sweep()
    assert store.apply(name, [Put("a", 1)]) > ahead


@EVERYWHERE
def test_revisions_that_a_standby_has_missed_are_not_given_again(store, sql, name):
    store.apply(name, [Put("a", 1)])
    (before,) = sql(f"SELECT revision FROM database_lock_directory WHERE name = '{name}'")
    revisions = [store.apply(name, [Put("a", number)]) for number in range(3)]
    time.sleep(0.01)  # SQLite's clock counts milliseconds
    sql(f"UPDATE database_lock_directory SET revision = {before[0]} WHERE name = '{name}'")
    assert store.apply(name, [Put("a", 4)]) > max(revisions)


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

    def test_several_threads_change_a_record_at_once(self):
        """On SQLite they share the connection of the test case."""
        store = locks["default"].store
        store.apply("a counter", [Put("a", 0)])

        def count(turns):
            done = 0
            while done < turns:
                found = store.get("a counter", "a")
                change, condition = Put("a", found.value + 1), Exists("a", found.revision)
                done += store.apply("a counter", [change], [condition]) is not None
            return done

        with ThreadPoolExecutor() as threads:
            assert list(threads.map(count, [25] * 4)) == [25] * 4
        assert store.get("a counter", "a").value == 100


class TestOnSQLite(Cases, TestCase):
    databases = {"default"}
    kind = "sqlite"


class TestInMemory(Cases, TestCase):
    databases = {"memory"}
    kind = "memory"


class TestOnPostgreSQL(Cases, TestCase):
    databases = {"postgresql"}
    kind = "postgresql"
