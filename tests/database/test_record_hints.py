"""The server tells who watches of changes of records, and nobody else."""

import json
import threading

import psycopg
import pytest
from django.db import connections

from distlock import locks
from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import listen_key
from distlock.backends.database.mariadb import MySQLRecords
from distlock.backends.database.postgresql import PostgreSQLRecords
from distlock.backends.store import Delete, Exists, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.database.records import EVERYWHERE, ON_MARIADB, ON_POSTGRESQL, ON_SERVERS
from tests.databases import moved, publish
from tests.servers.pgbouncer import PgBouncer

channel_of = PostgreSQLRecords.channel_of


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
    eventually(lambda: listeners(sql) == 0)
    revision = store.apply(name, [Put("a", 1)])
    watch = store.watch(name, revision)
    eventually(lambda: nobody_else_listens(sql, name))
    changed = make(wait="auto").store.apply(name, [Put("a", 2)])
    assert json.loads(told(PATIENCE)[0]) == [name, changed, ["a"]]
    assert watch.wait(clock() + PATIENCE)


@ON_POSTGRESQL
def test_a_change_of_one_record_is_not_told_to_who_waits_for_another(store, make, name, told, sql):
    """So a hand-over costs as much if many wait, each for its own record."""
    while channel_of(name, "b") in (channel_of(name, "a"), channel_of(name)):
        name += "'"
    eventually(lambda: listeners(sql) == 0)
    revision = store.apply(name, [Put("a", 1), Put("b", 1)])
    watch = store.watch(name, revision, "b")
    eventually(lambda: nobody_else_listens(sql, name, "b"))
    other = make(wait="auto").store
    other.apply(name, [Put("a", 2)])
    assert told(0) == []
    other.apply(name, [Put("b", 2)])
    assert watch.wait(clock() + PATIENCE)


@ON_POSTGRESQL
@pytest.mark.parametrize("key", ["a", None])
def test_the_end_of_a_session_is_told(store, make, session, name, told, sql, key):
    eventually(lambda: listeners(sql) == 0)
    revision = store.apply(name, [Put("a", 1, session)])
    watch = store.watch(name, revision, key)
    eventually(lambda: nobody_else_listens(sql, name, key))
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


def nobody_else_listens(sql, directory, key=None):
    """Return whether who changes this is told that it is listened to, by one session in all.

    That of another test may not have ended yet.
    """
    number = listen_key(channel_of(directory, key)) % 2**64
    ((heard,),) = sql(
        "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        f" AND classid = {number >> 32} AND objid = {number % 2**32}"
    )
    return heard and listeners(sql) == 1


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
    eventually(lambda: nobody_else_listens(sql, name))
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


@pytest.fixture
def seldom(monkeypatch):
    """On MariaDB, who watches looks so seldom by itself that only a hint comes in time."""
    monkeypatch.setattr(MySQLRecords, "PAUSES", (10 * PATIENCE, 10 * PATIENCE))


PROCESSES = "information_schema.processlist"
ROUNDS = 300


def sleepers(sql, milliseconds=0):
    """Return the ids of the sessions that have slept for so long, until a change wakes them."""
    asleep = f"info LIKE 'SELECT IF(IS_USED_LOCK(%' AND time_ms >= {milliseconds}"
    return {int(ident) for (ident,) in sql(f"SELECT id FROM {PROCESSES} WHERE {asleep}")}


def kills(sql):
    ((_, number),) = sql("SHOW GLOBAL STATUS LIKE 'Com_kill%'")[:1]
    return int(number)


@ON_MARIADB
@pytest.mark.parametrize("key", ["a", None])
def test_a_change_ends_the_sleep_of_who_waits_for_it(store, make, name, sql, seldom, key):
    eventually(lambda: not sleepers(sql))
    revision = store.apply(name, [Put("a", 1)])
    watch = store.watch(name, revision, key)
    eventually(lambda: len(sleepers(sql)) == 1)
    make(wait="auto").store.apply(name, [Put("a", 2)])
    assert watch.wait(clock() + PATIENCE)


@ON_MARIADB
@pytest.mark.parametrize("key", ["a", None])
def test_no_change_is_missed_between_a_look_and_a_sleep(store, make, name, seldom, key):
    """Each watch begins while somebody else is about to make the change that it waits for."""
    other = make(wait="auto").store
    go = threading.Barrier(2)

    def change():
        for number in range(ROUNDS):
            go.wait(PATIENCE)
            other.apply(name, [Put("a", number)])

    revision = store.apply(name, [Put("a", "")])
    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(ROUNDS):
            watch = store.watch(name, revision, key)
            go.wait(PATIENCE)
            assert watch.wait(clock() + PATIENCE)
            revision = store.read(name).revision
    finally:
        go.abort()
        changing.join()


@ON_MARIADB
@pytest.mark.parametrize("key", ["a", None])
def test_who_waits_for_what_is_not_there_yet_sleeps(store, make, name, sql, seldom, key):
    """If its statement ended at once, it would be sent again and again."""
    eventually(lambda: not sleepers(sql))
    watch = store.watch(name, 0, key)
    eventually(lambda: sleepers(sql, 1000))
    make(wait="auto").store.apply(name, [Put("a", 1)])
    assert watch.wait(clock() + PATIENCE)


@ON_MARIADB
def test_who_sleeps_in_the_server_hears_its_own_process(make, name, sql, seldom):
    """A watch of what has changed already is answered, while the thread sleeps for another one."""
    eventually(lambda: not sleepers(sql))
    store, other = (make(wait="auto", timeout=9 * PATIENCE).store for _ in "ab")
    first = store.watch(name, store.apply(name, [Put("a", 1)]))
    for number in range(9):  # it may not have begun to hear the server at once
        changed = f"{name}:{number}"
        revision = store.apply(changed, [Put("a", 1)])
        other.apply(changed, [Put("a", 2)])
        eventually(lambda: sleepers(sql))
        assert store.watch(changed, revision).wait(clock() + PATIENCE)
    eventually(lambda: sleepers(sql))
    other.apply(name, [Put("a", 2)])
    assert first.wait(clock() + PATIENCE)


@ON_MARIADB
def test_nobody_is_woken_by_what_nobody_waits_for(store, make, name, sql):
    eventually(lambda: not sleepers(sql))
    before = kills(sql)
    revision = store.apply(name, [Put("a", 1), Put("b", 1)])
    watch = store.watch(name, revision, "b")
    eventually(lambda: len(sleepers(sql)) == 1)
    other = make(wait="auto").store
    other.apply(name, [Put("a", 2)])
    assert kills(sql) == before
    other.apply(name, [Delete("b")])
    assert watch.wait(clock() + PATIENCE)
    assert kills(sql) == before + 1


@ON_MARIADB
def test_one_session_sleeps_for_all_watches(store, name, sql):
    eventually(lambda: not sleepers(sql))
    watches = [store.watch(f"{name}:{number}", 0) for number in range(20)]
    eventually(lambda: len(sleepers(sql)) == 1)
    for watch in watches:
        watch.abandon()
    eventually(lambda: not sleepers(sql))


@ON_MARIADB
def test_many_wait_for_one_directory_and_all_see_its_change(store, make, name, sql):
    """More than can be woken: the others look by themselves."""
    revision = store.apply(name, [Put("a", 1)])
    watches = [make(wait="auto").store.watch(name, revision) for _ in range(7)]
    eventually(lambda: len(sleepers(sql)) == 7)
    store.apply(name, [Put("a", 2)])
    assert all(watch.wait(clock() + PATIENCE) for watch in watches)


@ON_MARIADB
def test_a_sleeper_whose_session_was_ended_wakes_everybody(store, name, sql, seldom):
    watch = store.watch(name, 0)
    eventually(lambda: sleepers(sql))
    for ident in sleepers(sql):
        sql(f"KILL {ident}")
    assert watch.wait(clock() + PATIENCE)


@ON_SERVERS
def test_without_a_session_to_listen_it_looks_by_itself(store, make, name, monkeypatch):
    """The server has none left, and the pool keeps the one that it has."""

    def refused():
        raise errors.NoSession("too many connections")

    other = make(wait="auto").store
    revision = store.apply(name, [Put("a", 1)])
    monkeypatch.setattr(store._pool, "open", refused)
    watch = store.watch(name, revision, "a")
    other.apply(name, [Put("a", 2)])
    assert watch.wait(clock() + PATIENCE)


@ON_MARIADB
def test_who_may_not_wake_others_changes_all_the_same(store, make, name, sql):
    """The server refuses to let one user end what another one does. That costs no session."""
    sql("CREATE USER IF NOT EXISTS other@'%' IDENTIFIED BY 'other'")
    sql("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO other@'%'")
    watch = store.watch(name, store.apply(name, [Put("a", 1)]))
    eventually(lambda: sleepers(sql))
    known = {**connections.settings["mariadb"]}
    publish("mariadb", {"USER": "other", "PASSWORD": "other"})
    try:
        other = make(wait="auto", idle=60).store
        assert other.apply(name, [Put("a", 2)])
        assert len(other._pool._idle) == 1
    finally:
        publish("mariadb", {part: known[part] for part in ("USER", "PASSWORD")})
    assert watch.wait(clock() + PATIENCE)
