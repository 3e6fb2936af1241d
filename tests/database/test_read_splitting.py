"""A proxy sends plain reads to a replica that lags behind: it must not decide about a hold."""

import pytest
from django.db import connections

from distlock import locks
from distlock.backends.store import Absent, Put
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.database.speaking import claim, speaking
from tests.databases import ALIASES

#: what reads go to
REPLICA = {
    "mariadb": (
        "CREATE DATABASE IF NOT EXISTS test_distlock",
        "DROP TABLE IF EXISTS test_distlock.database_lock",
        "CREATE TABLE test_distlock.database_lock AS SELECT * FROM database_lock",
    ),
    "postgresql": (
        "CREATE SCHEMA IF NOT EXISTS replica",
        "DROP TABLE IF EXISTS replica.database_lock",
        "CREATE TABLE replica.database_lock AS TABLE database_lock",
        "GRANT USAGE ON SCHEMA replica TO distlock",
        "GRANT SELECT ON replica.database_lock TO distlock",
    ),
}
REMOVE = {
    "mariadb": "DROP DATABASE test_distlock",
    "postgresql": "DROP SCHEMA replica CASCADE",
}
WAYS = [
    ("mariadb", None),
    ("mariadb", "mysql"),
    ("postgresql", None),
]

pytestmark = pytest.mark.parametrize(("kind", "dialect"), WAYS)


@pytest.fixture
def direct(make):
    """A backend that reads and writes the same table."""
    return make()


@pytest.fixture
def lag(kind, sql, direct):
    """Let the replica have what the primary has now, and nothing of what comes."""

    def lag():
        for statement in REPLICA[kind]:
            sql(statement)

    lag()
    yield lag
    sql(REMOVE[kind])


@pytest.fixture
def split(kind, dialect, direct, lag):
    """A backend whose plain reads go to the replica."""
    alias = ALIASES[kind]
    engine = f"tests.splitting.{connections[alias].vendor}"
    connections.settings["split"] = {**connections.settings[alias], "ENGINE": engine}
    options = {"database": "split", "idle": 60}
    backend = speaking(dialect)("split", {"OPTIONS": options})
    yield backend
    backend.close()
    locks.close_all()
    del connections["split"]
    del connections.settings["split"]


def test_the_replica_lags_behind(split, name):
    """The control: what only looks sees the past."""
    split.try_acquire(claim(name))
    assert split.inspect(name).owner is None


def test_a_hold_that_the_replica_does_not_know_yet_is_no_loss(split, name):
    lease = split.try_acquire(claim(name))
    assert lease
    assert split.verify(lease)
    assert split.renew([lease]) == {lease.nonce: True}
    assert split.release(lease)


def test_a_hold_that_is_gone_does_not_verify(direct, split, lag, name):
    lease = split.try_acquire(claim(name))
    lag()
    assert direct.force_release(name, lease.token)
    assert split.verify(lease) is False


def test_renewing_many_tells_the_lost_from_the_held(direct, split, lag, name):
    old, lost = (split.try_acquire(claim(f"{name}:{which}")) for which in ("old", "lost"))
    lag()
    new = split.try_acquire(claim(f"{name}:new"))
    assert direct.force_release(lost.name, lost.token)
    assert split.renew([old, lost, new]) == {
        old.nonce: True,
        lost.nonce: False,
        new.nonce: True,
    }


def test_a_hold_that_the_replica_does_not_know_yet_can_be_broken(split, name):
    lease = split.try_acquire(claim(name))
    assert split.force_release(name, lease.token)
    assert split.verify(lease) is False


def test_records_are_read_from_the_primary(split, direct, name):
    """The replica has not even their tables."""
    store = split.store
    session = store.open_session(60).id
    revision = store.apply(name, [Put("a", 1, session)], [Absent("a")])
    assert store.read(name).records["a"].value == 1
    assert store.get(name, "a").session == session
    assert store.renew([], [(name, "a"), (name, "b")]).missing == {(name, "b")}
    assert store.renew([session], [(name, "a")]).alive == {session}
    assert name in store.directories(name)
    watch = store.watch(name, revision)
    direct.store.apply(name, [Put("a", 2)])
    assert watch.wait(clock() + PATIENCE)
    store.end_session(session)
