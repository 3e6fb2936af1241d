"""Sweeping clears what has ended and what has long been free, and nothing else."""

import threading
import time
from contextlib import closing, contextmanager

import pytest
from django.db import connections, transaction

from distlock import LockUnavailable
from distlock.backends.database.statements import SweptRows
from distlock.backends.store import Delete, Put
from distlock.models import DatabaseLock
from distlock.types.lease import State
from tests.contract.watch import eventually
from tests.database.counting import statements
from tests.database.speaking import claim, someone
from tests.database.test_renewal import grant_many
from tests.databases import ALIASES, SERVERS

pytestmark = pytest.mark.once

#: microseconds, in which tokens are counted
DAY = 86_400_000_000


def age(sql, kind, days, where="1 = 1"):
    """Let rows look as if all had happened some days ago."""
    earlier = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', expires_at, '-{days} days')",
        "mariadb": f"expires_at - INTERVAL {days} DAY",
        "postgresql": f"expires_at - interval '{days} days'",
    }[kind]
    token = f"token - {int(days * DAY)}"
    sql(f"UPDATE database_lock SET expires_at = {earlier}, token = {token} WHERE {where}")


def count(sql):
    return sql("SELECT count(*) FROM database_lock")[0][0]


def test_rows_are_kept_for_a_day(backend, sql, kind, name):
    lease = backend.try_acquire(claim(name))
    backend.release(lease)
    assert backend.sweep().removed == 0
    age(sql, kind, 0.9 if kind == "sqlite" else 0)
    assert backend.sweep().removed == 0
    age(sql, kind, 2)
    assert backend.sweep().removed == 1
    assert count(sql) == 0


def test_the_token_grows_over_sweeps(make, sql, name):
    backend = make(keep=0.001)
    tokens = []
    for _ in range(5):
        lease = backend.try_acquire(claim(name))
        tokens.append(lease.token)
        backend.release(lease)
        eventually(lambda: backend.sweep() and count(sql) == 0)
    assert tokens == sorted(set(tokens))


def test_the_token_grows_after_a_row_was_deleted_by_hand(backend, sql, name):
    lease = backend.try_acquire(claim(name))
    sql("DELETE FROM database_lock")
    assert backend.verify(lease) is False
    assert backend.renew([lease]) == {lease.nonce: False}
    assert backend.release(lease) is False
    assert backend.inspect(name).state is State.FREE
    assert backend.force_release(name, lease.token) is None
    assert backend.try_acquire(claim(name)).token > lease.token


def test_a_token_ahead_of_the_clock_is_not_forgotten(backend, sql, kind, name):
    """The server's clock was a week ahead for a while, and a lock was taken then."""
    backend.release(backend.try_acquire(claim(name)))
    sql(f"UPDATE database_lock SET token = token + {7 * DAY}")
    ahead = backend.try_acquire(claim(name))
    backend.release(ahead)
    age(sql, kind, 2)
    assert backend.sweep().removed == 0
    assert backend.try_acquire(claim(name)).token > ahead.token - 2 * DAY


@pytest.mark.slow
def test_a_row_goes_once_the_clock_has_passed_its_token(make, sql, kind, name):
    backend = make(keep=0.001)
    lease = backend.try_acquire(claim(name))
    backend.release(lease)
    sql("UPDATE database_lock SET token = token + 1000000")
    eventually(lambda: backend.sweep().removed)
    assert backend.try_acquire(claim(name)).token > lease.token + 1000000


def test_an_ended_lease_is_freed_and_its_row_kept(backend, sql, kind, name):
    lease = backend.try_acquire(claim(name))
    age(sql, kind, 2)
    swept = backend.sweep()
    assert (swept.expired, swept.removed) == (1, 0)
    info = backend.inspect(name)
    assert (info.state, info.token) == (State.FREE, lease.token - 2 * DAY)
    assert backend.release(lease) is False


def test_thousands_are_cleared_in_batches(backend, sql, kind, name):
    leases = grant_many(sql, kind, name, someone(), 3000)
    age(sql, kind, 2)
    with statements() as seen:
        assert backend.sweep().expired == len(leases)
    assert len(seen) <= 30
    age(sql, kind, 2)
    assert backend.sweep().removed == len(leases)
    assert count(sql) == 0


@pytest.mark.parametrize("kind", SERVERS)
def test_what_is_taken_while_it_is_swept_is_left_alone(backend, sql, kind, name, monkeypatch):
    """Between finding a row and clearing it, somebody takes the lock."""
    ended = backend.try_acquire(claim(f"{name}:ended"))
    unused = backend.try_acquire(claim(f"{name}:unused"))
    backend.release(unused)
    age(sql, kind, 2)
    names, taken, clear = [ended.name, unused.name], [], SweptRows.clear

    def taking_first(rows, ids):
        if names:
            taken.append(backend.try_acquire(claim(names.pop(0))))
        return clear(rows, ids)

    monkeypatch.setattr(SweptRows, "clear", taking_first)
    swept = backend.sweep()
    assert (swept.expired, swept.removed) == (0, 0)
    assert backend.verify(taken[0])
    assert backend.verify(taken[1])


@pytest.mark.parametrize("kind", SERVERS)
def test_a_directory_that_is_filled_while_a_sweep_waits_for_it_is_left_alone(make, database, kind):
    """However soon empty ones are removed: its records would be lost with it."""
    store = make(keep=0.001).store
    store.apply("filled", [Put("a", 1)])
    store.apply("filled", [Delete("a")])
    time.sleep(0.01)
    sweeping = threading.Thread(target=store.sweep)
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        revision = time.time_ns() // 1000
        cursor.execute("UPDATE database_lock_directory SET revision = %s", [revision])
        cursor.execute(
            "INSERT INTO database_lock_record (directory, name, value, created, revision)"
            " SELECT id, 'b', '2', revision, revision FROM database_lock_directory"
        )
        sweeping.start()
        sweeping.join(0.3)
        assert sweeping.is_alive()  # it waits for the row
    sweeping.join()
    assert sorted(store.read("filled").records) == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_a_row_that_is_locked_is_left_for_the_next_sweep(backend, database, sql, kind, name):
    leases = grant_many(sql, kind, name, someone(), 100)
    age(sql, kind, 2)
    with transaction.atomic(using=database):
        DatabaseLock.objects.using(database).select_for_update().get(lock=leases[42].name)
        assert backend.sweep().expired == 99
    assert backend.sweep().expired == 1


def test_several_sweeps_at_once_count_each_row_once(backend, sql, kind, name):
    grant_many(sql, kind, name, someone(), 1000)
    age(sql, kind, 2)
    counts, errors = [], []

    def run():
        try:
            counts.append(backend.sweep().expired)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connections.close_all()
    assert errors == []
    assert sum(counts) == 1000


@contextmanager
def written_by_another(database):
    """Keep everyone from freeing what has ended."""
    with closing(connections[database].copy()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
        cursor.execute("UPDATE database_lock SET description = 'edited'")
        yield
        cursor.execute("ROLLBACK")


def test_a_sweep_that_has_no_answer_in_time_says_so(make, kind, sql, name):
    impatient, patient = make(timeout=0.5), make()
    patient.try_acquire(claim(name))
    age(sql, kind, 2)
    with written_by_another(ALIASES[kind]), pytest.raises(LockUnavailable):
        impatient.sweep()
    patient.sweep()
    assert patient.inspect(name).state is State.FREE
