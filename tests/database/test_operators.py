"""People at work on the table itself: what they lock is not what somebody holds."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connections, transaction

from distlock.backends.database import errors, runner
from distlock.exceptions import LockUnavailable
from distlock.models import DatabaseLock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.database.speaking import claim
from tests.databases import SERVERS

pytestmark = [pytest.mark.once, pytest.mark.parametrize("kind", SERVERS)]


@pytest.fixture
def backend(make):
    return make(timeout=10)


@pytest.fixture
def impatient(monkeypatch):
    """The first refusal is told: no time is left to be refused once more."""
    monkeypatch.setattr(runner, "ROW_WAIT", 60)
    monkeypatch.setattr(errors, "ROW_WAIT", 60)


@contextmanager
def table_locked(database, how):
    """Keep everyone from writing to the table, or from reading it, too."""
    connection = connections[database]
    locking = {
        ("mariadb", "writes"): "LOCK TABLES database_lock READ",
        ("mariadb", "all"): "LOCK TABLES database_lock WRITE",
        ("postgresql", "writes"): "LOCK TABLE database_lock IN SHARE MODE",
        ("postgresql", "all"): "LOCK TABLE database_lock IN ACCESS EXCLUSIVE MODE",
    }[connection.vendor.replace("mysql", "mariadb"), how]
    with transaction.atomic(using=database), connection.cursor() as cursor:
        cursor.execute(locking)
        yield
        if connection.vendor == "mysql":
            cursor.execute("UNLOCK TABLES")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["writes", "all"])
@pytest.mark.usefixtures("impatient")
def test_a_free_lock_in_a_locked_table_is_not_taken_for_held(backend, database, name, how):
    lease = backend.try_acquire(claim(name))
    assert backend.release(lease)
    with table_locked(database, how):
        for wanted in (name, f"{name}:new"):
            with pytest.raises(LockUnavailable):
                backend.try_acquire(claim(wanted))
    assert backend.try_acquire(claim(name))


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_held_lock_in_a_locked_table_is_held(backend, database, name):
    lease = backend.try_acquire(claim(name))
    with table_locked(database, "writes"):
        assert backend.try_acquire(claim(name)) is None
        assert backend.verify(lease)
        with pytest.raises(LockUnavailable) as raised:
            backend.release(lease)
        assert raised.value.maybe_applied is False
    assert backend.release(lease)


def test_a_free_row_that_is_locked_is_waited_for(backend, database, name):
    """Somebody edits it in the admin."""
    lease = backend.try_acquire(claim(name))
    backend.release(lease)
    taken = []
    with transaction.atomic(using=database):
        DatabaseLock.objects.using(database).select_for_update().get(lock=name)
        taking = threading.Thread(target=lambda: taken.append(backend.try_acquire(claim(name))))
        taking.start()
        taking.join(0.5)
        assert taking.is_alive()
    taking.join()
    assert taken[0] is not None


def test_a_lock_that_is_just_being_freed_is_waited_for(backend, database, name):
    """What is not committed is not seen, and must not make the lock look held."""
    lease = backend.try_acquire(claim(name))
    taken = []
    with transaction.atomic(using=database):
        DatabaseLock.objects.using(database).filter(lock=name).update(owner="", nonce="")
        taking = threading.Thread(target=lambda: taken.append(backend.try_acquire(claim(name))))
        taking.start()
        taking.join(0.5)
        assert taking.is_alive()
    taking.join()
    assert taken[0].token > lease.token


def test_a_row_that_is_being_deleted_is_taken_anew(backend, database, name):
    lease = backend.try_acquire(claim(name))
    taken = []
    with transaction.atomic(using=database):
        DatabaseLock.objects.using(database).filter(lock=name).delete()
        taking = threading.Thread(target=lambda: taken.append(backend.try_acquire(claim(name))))
        taking.start()
        taking.join(0.3)
    taking.join()
    connections[database].close()
    assert taken[0] is not None
    assert taken[0].token > lease.token


def test_a_locked_row_keeps_no_other_lock_from_being_freed(make, database, name):
    """Two are to be freed in the background, and the row of the first one is locked."""
    backend, hurried = make(timeout=PATIENCE), make(timeout=1)
    leases = [backend.try_acquire(claim(f"{name}:{number}")) for number in range(2)]
    with transaction.atomic(using=database):
        DatabaseLock.objects.using(database).select_for_update().get(lock=leases[0].name)
        for lease in leases:
            hurried.cleanup.add(lease.claim)
        eventually(lambda: not backend.is_held(leases[1].claim))
        assert backend.is_held(leases[0].claim)
    eventually(lambda: not backend.is_held(leases[0].claim))
