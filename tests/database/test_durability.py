"""A grant outlives the server's crash, whatever the database's defaults are."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager

import pytest
from django.db import connections, transaction

from distlock import Lock, locks
from distlock.backends.database.connection import Connection
from distlock.backends.database.statements import Statement
from distlock.models import DatabaseLock
from distlock.types.lease import State
from tests.children import read_line, write_line
from tests.contract.watch import eventually
from tests.databases import ALIASES, another_file
from tests.servers.disks import PowerCut

pytestmark = pytest.mark.once

DEFAULTS = {
    "role": ("ALTER ROLE {user} SET {setting}", "ALTER ROLE {user} RESET synchronous_commit"),
    "database": (
        "ALTER DATABASE {name} SET {setting}",
        "ALTER DATABASE {name} RESET synchronous_commit",
    ),
}


@pytest.fixture
def careless(kind, server, request):
    """A server that answers before the disk has a commit, and does not hurry with the disk."""
    postgresql = server(kind)
    words = {"name": postgresql.database, "user": postgresql.user}
    change, undo = (
        text.format(**words, setting="synchronous_commit = off") for text in DEFAULTS[request.param]
    )
    postgresql.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    postgresql.execute("SELECT pg_reload_conf()")
    postgresql.execute(change)
    yield postgresql
    postgresql.heal()
    postgresql.execute(undo)
    postgresql.execute("ALTER SYSTEM RESET wal_writer_delay")
    postgresql.execute("SELECT pg_reload_conf()")


@pytest.fixture
def using(kind, wait, careless, backend_settings, settings):
    """The alias of a backend on the careless server."""
    settings.DISTLOCK = backend_settings(kind, LEASE=60, OPTIONS={"wait": wait})
    locks.close_all()
    yield "default"
    locks.close_all()
    connections[ALIASES[kind]].close()


def hold(name):
    """Take a lock, at once or after a wait, and keep it."""
    lock = Lock(name)
    assert lock.acquire(timeout=30)
    write_line(lock.token)
    read_line()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize(
    ("careless", "wait"), [("role", "auto"), ("database", "poll")], indirect=["careless"]
)
def test_a_grant_outlives_a_crash(careless, wait, using, name, child):
    """Of one who found the lock free, and of one who had to wait for it."""
    free, waited = f"{name}:free", f"{name}:waited for"
    with Lock(waited) as held:
        holders = {free: child(hold, free), waited: child(hold, waited)}
        tokens = {free: int(holders[free].line())}
        if wait == "auto":
            eventually(lambda: held.info().waiters)
    tokens[waited] = int(holders[waited].line())
    careless.kill()
    careless.start()
    after = {name: locks[using].inspect(name) for name in tokens}
    assert {name: info.token for name, info in after.items()} == tokens
    assert [info.state for info in after.values()] == [State.HELD, State.HELD]


# SQLite: what a power cut would leave


@pytest.fixture
def on_file(backend_settings, settings):
    """``with on_file(journal) as database``: locks in a new file with that journal."""

    @contextmanager
    def on_file(journal):
        settings.DISTLOCK = backend_settings("sqlite", LEASE=30)
        locks.close_all()
        with another_file("default", journal) as database:
            yield database
            locks.close_all()

    return on_file


def follow():
    """Take or leave the lock that each line names, with its lease; tell its token."""
    held = {}
    while True:
        name, lease = read_line().split()
        if name in held:
            held.pop(name).release()
            write_line(0)
        else:
            held[name] = Lock(name, lease=float(lease))
            assert held[name].acquire(blocking=False)
            write_line(held[name].token)


@pytest.mark.parametrize(
    ("journal", "lease", "syncs_release"),
    [("wal", 30, False), ("wal", 600, True), ("delete", 30, True)],
)
def test_a_power_cut_undoes_nothing_but_a_release(
    on_file, tmp_path, child, journal, lease, syncs_release
):
    """And that in a write-ahead log, of a short lease, until the next grant."""
    power = PowerCut(tmp_path)
    with on_file(journal) as database:
        holder = child(follow, env=power.env)

        def tell(name):
            holder.tell(f"{name} {lease}")
            return int(holder.line())

        def left(name):
            query = f"SELECT token, owner <> '' FROM database_lock WHERE lock = '{name}'"
            return power.rows(database.name, query)

        first = tell("a")
        assert left("a") == [(first, 1)]
        tell("a")
        assert left("a") == [(first, 0 if syncs_release else 1)]
        other = tell("b")  # of another lock: it syncs what was written before
        assert (left("a"), left("b")) == ([(first, 0)], [(other, 1)])
        second = tell("a")
        assert left("a") == [(second, 1)]
        assert second > first


def write_under(name):
    """Write in a transaction that keeps the lock until its commit."""
    with transaction.atomic(), Lock(name, release="commit"):
        connections["default"].cursor().execute("CREATE TABLE written (id integer)")
    write_line()
    read_line()


def test_a_release_that_is_part_of_a_commit_is_kept_with_it(on_file, tmp_path, child):
    power = PowerCut(tmp_path)
    query = "SELECT owner <> '', (SELECT COUNT(*) FROM written) FROM database_lock"
    with on_file("wal") as database:
        child(write_under, "a", env=power.env).line()
        assert power.rows(database.name, query) == [(0, 0)]


def test_a_write_ahead_log_stays_one_while_a_session_is_open(on_file):
    """A release relies on that: with another journal it would risk the file."""
    with on_file("wal") as database:
        session = sqlite3.connect(database.name)
        assert session.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            database.execute("PRAGMA busy_timeout = 0", "PRAGMA journal_mode = delete")
        session.close()


LEVELS = ["OFF", "NORMAL", "FULL", "EXTRA"]


def level_of(connection):
    ((level,),) = connection.execute("PRAGMA synchronous")
    return LEVELS[level]


@pytest.mark.parametrize("level", LEVELS)
def test_a_grant_goes_by_the_level_of_the_project(on_file, level, monkeypatch, name):
    levels, ask = [], Connection.ask

    def asked(self, statement):
        if "INSERT INTO" in statement.sql:
            levels.append(level_of(self.wrapper.connection))
        return ask(self, statement)

    monkeypatch.setattr(Connection, "ask", asked)
    with on_file("wal"):
        options = connections.settings["default"]["OPTIONS"]
        monkeypatch.setitem(options, "init_command", f"PRAGMA synchronous={level}")
        for _ in range(3):
            with Lock(name):
                pass
    assert levels == [level] * 3


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("changed_to", [1, 2])
def test_so_it_does_after_an_interrupt(on_file, monkeypatch, late, changed_to):
    ask, undone = Connection.ask, Statement("SELECT 1", may_be_undone=True)

    def interrupted(self, statement):
        if is_hit := statement.sql == f"PRAGMA synchronous = {changed_to}":
            monkeypatch.setattr(Connection, "ask", ask)
        if is_hit and not late:
            raise KeyboardInterrupt
        ask(self, statement)
        if is_hit:
            raise KeyboardInterrupt

    with on_file("wal"), closing(locks["default"].pool.open()) as session:
        session.run(undone, 5)
        if changed_to == 1:
            session.run(Statement("SELECT 1"), 5)
        monkeypatch.setattr(Connection, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(undone if changed_to == 1 else Statement("SELECT 1"), 5)
        session.run(Statement("SELECT 1"), 5)
        assert level_of(session.wrapper.connection) == "FULL"


def test_the_callers_connection_is_left_alone(on_file, name):
    with on_file("wal"):
        with transaction.atomic(), Lock(name, release="commit"):
            DatabaseLock.objects.filter(lock="another").delete()
            assert level_of(connections["default"].connection) == "FULL"
        assert level_of(connections["default"].connection) == "FULL"
        connections["default"].close()
