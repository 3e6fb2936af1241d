"""What is wrong with the table of the locks: ``manage.py check --database``."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from functools import partial

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import OperationalError, connections

from distlock import Lock, LockUnavailable, NotPermitted
from distlock.conf import locks
from distlock.recipes import Config, Election, Group, Names, Queue, Semaphore
from tests.contract.watch import eventually
from tests.databases import ALIASES, DATABASES, SERVERS, migrate, publish
from tests.servers.mariadb import MariaDB


@pytest.fixture
def kind(request):
    return request.param


@pytest.fixture
def database(kind, settings, backend_settings, server):
    """The server whose table of locks is checked; the table is made anew after the test."""
    settings.DEBUG = True
    settings.DISTLOCK = backend_settings(kind)
    locks.close_all()
    yield server(kind)
    locks.close_all()
    connections[ALIASES[kind]].close()


@contextmanager
def changed(database, kind, *statements):
    """Change the table for a while."""
    alias = ALIASES[kind]
    connections[alias].close()
    for statement in statements:
        database.execute(statement)
    try:
        yield
    finally:
        eventually(lambda: is_made_anew(database, alias))


def is_made_anew(database, alias):
    """Make the table again; False if a thread of an earlier test writes to SQLite just now."""
    connections[alias].close()
    try:
        database.execute("DROP TABLE IF EXISTS database_lock")
        database.execute("DELETE FROM django_migrations WHERE app = 'distlock'")
        call_command("migrate", "distlock", database=alias, verbosity=0)
    except (OperationalError, sqlite3.OperationalError) as error:
        if "locked" not in str(error):
            raise
        return False
    finally:
        connections[alias].close()
    return True


def ids(kind):
    return [message.id for message in messages(kind)]


def messages(kind):
    return run_checks(tags=["distlock"], databases=[ALIASES[kind]])


@pytest.mark.parametrize("kind", DATABASES, indirect=True)
class TestOnEveryDatabase:
    def test_a_migrated_table_is_right(self, database, kind):
        assert messages(kind) == []

    def test_a_missing_table_comes_with_the_line_that_makes_it(self, database, kind):
        with changed(database, kind, "DROP TABLE database_lock"):
            (message,) = messages(kind)
        assert message.id == "distlock.W004"
        assert "does not exist" in message.msg
        assert f"manage.py migrate distlock --database={ALIASES[kind]}" in message.hint
        assert not message.is_serious()  # or `migrate` itself would refuse to run

    @pytest.mark.parametrize("table", ["directory", "record", "session"])
    def test_so_does_a_missing_table_of_records(self, database, kind, table):
        with changed(database, kind, f"DROP TABLE database_lock_{table}"):
            (message,) = messages(kind)
        assert message.id == "distlock.W004"
        assert f"database_lock_{table} in" in message.msg

    def test_the_first_migrate_of_all_is_not_warned_of_itself(self, database, kind):
        aside = "ALTER TABLE django_migrations RENAME TO set_aside"
        with changed(database, kind, "DROP TABLE database_lock", aside):
            found = messages(kind)
            connections[ALIASES[kind]].close()
            database.execute("ALTER TABLE set_aside RENAME TO django_migrations")
        assert found == []

    def test_a_missing_column_is_named(self, database, kind):
        with changed(database, kind, "ALTER TABLE database_lock DROP COLUMN token"):
            (message,) = messages(kind)
        assert (message.id, "lacks columns: token" in message.msg) == ("distlock.W004", True)

    def test_a_missing_unique_key_is_an_error(self, database, kind):
        drop = {
            "mariadb": "ALTER TABLE database_lock DROP INDEX uiq_idx_lock",
            "postgresql": "ALTER TABLE database_lock DROP CONSTRAINT uiq_idx_lock",
            "sqlite": "DROP TABLE database_lock",
        }[kind]
        statements = [drop]
        if kind == "sqlite":  # cannot drop a constraint
            columns = "description, owner, nonce, host, process, thread, token, lease, renews"
            statements.append(
                "CREATE TABLE database_lock (id integer PRIMARY KEY, lock text,"
                f" {columns}, acquired_at, expires_at)"
            )
        with changed(database, kind, *statements):
            assert ids(kind) == ["distlock.E004"]

    def test_nobody_is_asked_without_leave(self, database, kind, monkeypatch):
        # From Django 6.1 on its checks of models ask every MariaDB that there is.
        running = {alias: connections.settings[alias] for alias in ("memory", ALIASES[kind])}
        monkeypatch.setattr(connections, "settings", running)
        with changed(database, kind, "DROP TABLE database_lock"):
            for databases in (None, ["memory"]):
                found = {message.id for message in run_checks(databases=databases)}
                assert "distlock.W004" not in found

    def test_migrate_runs_though_the_table_is_missing(self, database, kind):
        with changed(database, kind, "DROP TABLE database_lock"):
            call_command(
                "migrate",
                "tests",
                database=ALIASES[kind],
                verbosity=0,
                skip_checks=False,
                run_syncdb=True,
            )


@pytest.mark.parametrize("kind", ["mariadb"], indirect=True)
class TestOnMariaDB:
    @pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_ci"])
    def test_a_collation_that_confuses_names_is_an_error(self, database, kind, collation):
        alter = f"ALTER TABLE database_lock MODIFY `lock` varchar(564) COLLATE {collation} NOT NULL"
        with changed(database, kind, alter):
            (message,) = messages(kind)
            assert (message.id, collation in message.msg) == ("distlock.E006", True)
            database.execute(message.hint.rstrip("."))
            assert messages(kind) == []

    def test_an_engine_without_row_locks_is_an_error(self, database, kind):
        shorter = (
            "ALTER TABLE database_lock MODIFY `lock` varchar(200) COLLATE utf8mb4_bin NOT NULL"
        )
        with changed(database, kind, shorter, "ALTER TABLE database_lock ENGINE = MyISAM"):
            (message,) = messages(kind)
            assert (message.id, "MyISAM" in message.msg) == ("distlock.E005", True)
            database.execute(message.hint.rstrip("."))
            assert messages(kind) == []


FORGETFUL = [
    ("mariadb", "innodb_flush_log_at_trx_commit", "SET GLOBAL {} = {}", "2", "1"),
    ("postgresql", "fsync", "ALTER SYSTEM SET {} = {}", "off", "on"),
    ("postgresql", "full_page_writes", "ALTER SYSTEM SET {} = {}", "off", "on"),
]


@pytest.mark.parametrize(("kind", "name", "change", "bad", "good"), FORGETFUL, indirect=["kind"])
def test_a_server_that_may_forget_a_grant_is_a_warning(database, kind, name, change, bad, good):
    def put(value):
        database.execute(change.format(name, value))
        if kind == "postgresql":
            database.execute("SELECT pg_reload_conf()")
            eventually(lambda: database.execute(f"SHOW {name}") == [(value,)])

    put(bad)
    try:
        (message,) = messages(kind)
    finally:
        put(good)
    assert (message.id, f"{name} = {bad}" in message.msg) == ("distlock.W006", True)
    assert messages(kind) == []


class LoggingMariaDB(MariaDB):
    """One with a binary log, as replication needs it."""

    def command(self):
        return [*super().command(), "--log-bin", "--server-id=1"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mariadb"], indirect=True)
def test_so_is_a_binary_log_that_is_not_synced(database, kind):
    alias = ALIASES[kind]
    usual = dict(connections.settings[alias])
    with LoggingMariaDB() as server:
        publish(alias, server.django())
        try:
            migrate(alias)
            assert server.execute("SELECT @@sync_binlog") == [(0,)]
            (message,) = messages(kind)
            assert (message.id, "sync_binlog = 0" in message.msg) == ("distlock.W006", True)
            server.execute("SET GLOBAL sync_binlog = 1")
            assert messages(kind) == []
        finally:
            connections[alias].close()
            publish(alias, usual)


@pytest.mark.parametrize("kind", SERVERS, indirect=True)
class TestAServerThatIsAway:
    def test_is_a_warning_that_names_it(self, database, kind):
        connections[ALIASES[kind]].close()
        database.stop()
        (message,) = messages(kind)
        assert message.id == "distlock.W005"
        assert repr(ALIASES[kind]) in message.msg


@pytest.mark.parametrize("kind", DATABASES, indirect=True)
def test_a_server_that_is_too_old_is_an_error(database, kind, monkeypatch):
    connection = connections[ALIASES[kind]]
    connection.close()
    monkeypatch.setattr(connection.features, "minimum_database_version", (999,))
    monkeypatch.setattr("django.db.backends.base.base.RAN_DB_VERSION_CHECK", set())
    assert ids(kind) == ["distlock.E007"]


#: a user of the database who may not do what locks need, and what is said of it
RIGHTS = {
    "mariadb": {
        "read-only": (
            "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'not-a-secret'",
            "GRANT SELECT ON distlock.* TO reader@'127.0.0.1'",
        ),
    },
    "postgresql": {
        "read-only": (
            "CREATE ROLE reader LOGIN PASSWORD 'not-a-secret'",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        ),
        "cannot write": (
            "CREATE ROLE reader LOGIN PASSWORD 'not-a-secret'",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO reader",
            "ALTER ROLE reader SET default_transaction_read_only = on",
        ),
        "row-level security": (
            "CREATE ROLE reader LOGIN PASSWORD 'not-a-secret'",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO reader",
            "ALTER TABLE database_lock ENABLE ROW LEVEL SECURITY",
        ),
    },
}
REMOVE_USER = {
    "mariadb": ("DROP USER reader@'127.0.0.1'",),
    "postgresql": (
        "ALTER TABLE database_lock DISABLE ROW LEVEL SECURITY",
        "DROP OWNED BY reader",
        "DROP ROLE reader",
    ),
}
#: the message of the check, and what a lock raises
TOLD = {
    ("mariadb", "read-only"): ("INSERT command denied", "command denied"),
    ("postgresql", "read-only"): ("may not INSERT, UPDATE, DELETE", "permission denied for table"),
    ("postgresql", "cannot write"): ("sessions are read-only", "in a read-only transaction"),
    ("postgresql", "row-level security"): (
        "row-level security applies",
        "violates row-level security policy",
    ),
}


@pytest.fixture
def reader(database, kind, right):
    """The alias is used by somebody else for a while."""
    for statement in RIGHTS[kind][right]:
        database.execute(statement)
    publish(ALIASES[kind], {"USER": "reader"})
    yield
    publish(ALIASES[kind], {"USER": "distlock"})
    locks.close_all()
    for statement in REMOVE_USER[kind]:
        database.execute(statement)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(("kind", "right"), list(TOLD), indirect=["kind"])
class TestAUser:
    def test_who_may_not_write_is_told_by_the_check(self, kind, right):
        message = next(one for one in messages(kind) if one.id == "distlock.W010")
        assert TOLD[kind, right][0] in message.msg

    def test_who_may_not_write_is_told_by_the_lock(self, kind, right):
        # A server that was not promoted yet says the same of all transactions.
        error = LockUnavailable if right == "cannot write" else NotPermitted
        with pytest.raises(error, match=TOLD[kind, right][1]):
            Lock("of somebody else").acquire(timeout=5)

    def test_so_it_is_by_the_recipes_at_once(self, kind, right):
        """They wait through an outage for as long as a lease, and this is none."""
        if right != "read-only":
            return
        for ask in (
            Semaphore("of somebody else", 1).acquire,
            partial(Queue("of somebody else").put, "an item"),
            partial(Names("of somebody else").register, "front", "1", timeout=None),
            partial(Config("of somebody else").set, 1),
            Election("of somebody else").campaign,
            Group("of somebody else").join,
        ):
            with pytest.raises(NotPermitted, match=TOLD[kind, right][1]):
                ask()
