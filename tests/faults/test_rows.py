"""Rows that someone deletes by hand, tables that are not there, and locks in two databases."""

import pytest
from django.db import connections

from distlock import Lock, LockLost, LockUnavailable, NotSupported, locks
from distlock.models import DatabaseLock
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, waits
from tests.databases import ALIASES, publish
from tests.faults.conftest import EAGER, renewed


def delete(database, name):
    assert DatabaseLock.objects.using(database).filter(lock=name).delete()[0] == 1
    connections[database].close()


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_holder_whose_row_was_deleted_has_lost_the_lock(actor, database, who, sent_events, name):
    on_lost = Once()
    lock = actor(who).take(name, lease=0.9, on_lost=on_lost)
    delete(database, name)
    on_lost.wait()
    assert not lock.held
    with pytest.raises(LockLost):
        lock.release()
    sent_events.wait_for("lost", name)


def test_a_deleted_row_is_found_by_verify(actor, database, name):
    lock = actor("thread").take(name)
    delete(database, name)
    with pytest.raises(LockLost):
        lock.verify()


def test_releasing_a_deleted_row_is_told_and_touches_no_successor(actor, database, name):
    stale = actor("thread").take(name)
    token = stale.token
    delete(database, name)
    successor = actor("process").take(name)
    assert successor.token > token
    with pytest.raises(LockLost):
        stale.release()
    successor.verify()


def test_who_waits_for_a_deleted_row_gets_the_lock(actor, database, name):
    actor("process").take(name, lease=60)
    waiting = actor("thread").lock(name).start("acquire", timeout=PATIENCE)
    assert waits(waiting)
    delete(database, name)
    assert waiting.result(PATIENCE) is True


def test_tokens_grow_over_rows_deleted_by_hand(actor, database, name):
    person = actor("thread")
    tokens = []
    for _ in range(5):
        lock = person.take(name)
        tokens.append(lock.token)
        lock.release()
        delete(database, name)
    assert tokens == sorted(set(tokens))


# A table that is not migrated


#: the one other database that the servers' user may create
EMPTY = "test_distlock"


@pytest.fixture
def unmigrated(kind, database, settings, tmp_path):
    """Let the locks' database be one without tables."""
    was = settings.DATABASES[database]["NAME"]
    execute(kind, database, f"CREATE DATABASE {EMPTY}")
    publish(database, {"NAME": str(tmp_path / "empty") if kind == "sqlite" else EMPTY})
    locks.close_all()
    yield database
    locks.close_all()
    publish(database, {"NAME": was})
    forced = " WITH (FORCE)" if kind == "postgresql" else ""
    execute(kind, database, f"DROP DATABASE {EMPTY}{forced}")


def execute(kind, database, sql):
    if kind != "sqlite":
        with connections[database].cursor() as cursor:
            cursor.execute(sql)
        connections[database].close()


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_table_that_is_not_migrated_is_named_with_the_command(actor, unmigrated, who, name):
    lock = actor(who).lock(name)
    for member, arguments in [("acquire", {}), ("locked", {}), ("info", {})]:
        with pytest.raises(LockUnavailable) as caught:
            lock.start(member, **arguments).result(PATIENCE)
        assert f"manage.py migrate distlock --database={unmigrated}" in str(caught.value)


def test_once_it_is_migrated_the_same_process_works(actor, unmigrated, name):
    from django.core.management import call_command

    lock = actor("thread").lock(name)
    with pytest.raises(LockUnavailable):
        lock.acquire()
    call_command("migrate", "distlock", database=unmigrated, verbosity=0, interactive=False)
    connections[unmigrated].close()
    assert lock.acquire(timeout=PATIENCE)


# Two databases


@pytest.fixture
def second(kind, using, backend_settings, settings):
    """The alias of a backend in another database."""
    other = "postgresql" if kind == "mariadb" else "mariadb"
    settings.DISTLOCK = {**settings.DISTLOCK, **backend_settings(other, alias="second")}
    return "second"


@pytest.mark.every_day_on("sqlite")
def test_locks_in_two_databases_do_not_know_each_other(actor, using, second, name):
    one = actor("thread", using).take(name)
    two = actor("thread", second).take(name)
    one.verify()
    two.verify()
    one.release()
    assert two.held
    assert not actor("process", second).tries(name)
    assert actor("process", using).tries(name)


def test_one_owner_holds_locks_in_two_databases(using, second, name):
    with Lock(name, using=using) as one, Lock(name, using=second) as two:
        one.verify()
        two.verify()
        assert one.info().using == using
        assert two.info().using == second


@EAGER
@pytest.mark.every_day_on("postgresql")
def test_an_outage_of_one_database_does_not_disturb_the_other(
    kind, actor, using, second, server, name
):
    """Its leases are renewed, and its locks taken, while the other database hangs."""
    other = "postgresql" if kind == "mariadb" else "mariadb"
    lost = Once()
    actor("thread", second).take(f"{name}:gone", lease=0.9, on_lost=lost)
    lock = actor("thread", using).take(name, lease=12)
    server(other).pause()
    lost.wait()
    renewed(lock)
    lock.verify()
    assert actor("thread", using).tries(f"{name}:another")
    server(other).resume()


def test_a_transaction_of_another_database_cannot_be_tied_to_the_lock(kind, using, second, name):
    other = ALIASES["postgresql" if kind == "mariadb" else "mariadb"]
    with pytest.raises(NotSupported, match=other), Lock(name, using=using).atomic(using=other):
        raise AssertionError("the body ran")
