"""PostgreSQL tells who watches of changes of records, and nobody else."""

import json

import psycopg
import pytest

from distlock import locks
from distlock.backends.database.record_sql import channel_of, key_of
from distlock.backends.store import Exists, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.database.records import EVERYWHERE, ON_POSTGRESQL
from tests.databases import moved
from tests.servers.pgbouncer import PgBouncer


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
    number = key_of(channel_of(directory, key)) % 2**64
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
