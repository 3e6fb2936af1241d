"""``lock.atomic()``: a transaction that commits only while the lock is still held."""

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from distlock import Lock, LockError, LockLost, NotSupported, locks
from tests.contract.actors import BRIEF, PATIENCE
from tests.contract.watch import eventually, steadily
from tests.databases import ALIASES

GROUP = "written under the lock"


@pytest.fixture
def database(kind, using, sqlite, request):
    """The alias of the database that the transaction is to be in."""
    alias = ALIASES.get(kind, "default")
    Group.objects.using(alias).filter(name__startswith=GROUP).delete()
    yield alias
    Group.objects.using(alias).filter(name__startswith=GROUP).delete()
    connections[alias].close()


@pytest.fixture
def lock(using, name):
    return Lock(name, using=using, timeout=PATIENCE)


@pytest.fixture
def refused(backend, lock):
    """Whether the backend, having no transactions to tie to a lock, refused with the way out."""
    if backend.capabilities.atomic:
        return False
    with pytest.raises(NotSupported, match="FencedModel"), lock.atomic():
        raise AssertionError("the body ran")
    assert not lock.locked()
    return True


def write(database, number=""):
    Group.objects.using(database).create(name=f"{GROUP}{number}")


def written(database):
    return Group.objects.using(database).filter(name__startswith=GROUP).count()


def test_what_was_written_is_committed_and_the_lock_is_free(refused, lock, third, name, database):
    if refused:
        return
    with lock.atomic() as entered:
        assert entered is lock
        assert lock.held
        assert not third.tries(name)
        write(database)
    assert written(database) == 1
    assert not lock.held
    assert third.tries(name)


def test_the_next_holder_sees_what_was_written(refused, lock, third, name, database):
    """The lock is freed after the commit, not before."""
    if refused:
        return

    def look():
        with Lock(name, using=lock.using):
            try:
                return written(database)
            finally:
                connections[database].close()

    with lock.atomic():
        write(database)
        looking = third.call(look)
    assert looking.result(PATIENCE) == 1


def test_an_exception_of_the_body_rolls_back_and_frees_the_lock(
    refused, lock, third, name, database
):
    if refused:
        return
    with pytest.raises(ZeroDivisionError), lock.atomic():
        write(database)
        raise ZeroDivisionError
    assert written(database) == 0
    assert third.tries(name)


def test_a_broken_lock_rolls_everything_back(refused, lock, third, name, database, kind):
    if refused:
        return
    with pytest.raises(LockLost), lock.atomic():
        token = lock.token
        if kind != "sqlite":  # there the open transaction keeps everyone else from writing
            write(database)
        assert locks[lock.using].force_release(name, token) if kind != "sqlite" else lose(lock)
        if kind == "sqlite":
            write(database)
    assert written(database) == 0
    assert not lock.held


def lose(lock):
    """Delete the row inside the caller's own transaction, the only one that can write."""
    from distlock.models import DatabaseLock

    return DatabaseLock.objects.filter(lock=lock.name).delete()


def test_an_ended_lease_rolls_everything_back(refused, using, name, database):
    if refused:
        return

    def attempt(lease):
        lock = Lock(f"{name}:{lease}", using=using, lease=lease, renew=False)
        with pytest.raises(LockLost), lock.atomic():
            write(database)
            eventually(lambda: not lock.held)

    steadily(attempt, 0.3, 2, 6)
    assert written(database) == 0


def test_inside_a_transaction_it_is_refused_before_anything_runs(refused, lock, name, database):
    """Its snapshot may be older than the lock."""
    if refused:
        return
    with (
        transaction.atomic(using=database),
        pytest.raises(LockError, match="transaction"),
        lock.atomic(),
    ):
        raise AssertionError("the body ran")
    assert not lock.held
    assert not lock.locked()


def test_what_must_be_refused_is_refused_before_the_lock_is_waited_for(
    backend, using, third, sent_events, name, database
):
    third.take(name)
    lock = Lock(name, using=using, timeout=BRIEF)
    error = LockError if backend.capabilities.atomic else NotSupported
    with (
        transaction.atomic(using=database),
        pytest.raises(error, match="transaction"),
        lock.atomic(),
    ):
        raise AssertionError("the body ran")
    assert sent_events.words(name) == ["acquired"]  # that of third


def test_what_must_be_refused_is_refused_before_the_lock_is_taken(
    backend, using, sent_events, name, database
):
    error = LockError if backend.capabilities.atomic else NotSupported
    with (
        transaction.atomic(using=database),
        pytest.raises(error, match="transaction"),
        Lock(name, using=using).atomic(),
    ):
        raise AssertionError("the body ran")
    assert not sent_events.words(name)


def test_without_autocommit_it_is_refused_before_the_lock_is_taken(
    refused, lock, sent_events, name, database
):
    if refused:
        return
    connection = connections[database]
    connection.set_autocommit(False)
    try:
        with pytest.raises(LockError, match="autocommit"), lock.atomic():
            raise AssertionError("the body ran")
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert not sent_events.words(name)


def test_a_database_without_the_lock_is_refused_before_the_lock_is_taken(
    refused, kind, lock, sent_events, name, database
):
    if refused:
        return
    wrong = "nowhere" if kind == "local" else "memory"
    with pytest.raises((NotSupported, ConnectionDoesNotExist), match=wrong), lock.atomic(wrong):
        raise AssertionError("the body ran")
    assert not sent_events.words(name)


def test_nested_in_itself_it_is_a_savepoint(refused, lock, database):
    if refused:
        return
    with lock.atomic():
        write(database, 1)
        with pytest.raises(ZeroDivisionError), lock.atomic():
            write(database, 2)
            raise ZeroDivisionError
        with lock.atomic():
            write(database, 3)
        assert lock.held
    assert written(database) == 2
    assert not lock.held


def test_it_may_be_nested_in_itself_after_a_transaction_in_another_database(kind, lock, database):
    if kind != "local":  # the others' locks live in one database
        return
    with lock.atomic():
        with lock.atomic("memory"):
            pass
        with lock.atomic():
            write(database)
    assert written(database) == 1


def test_djangos_atomic_may_be_used_inside(refused, lock, database):
    if refused:
        return
    with lock.atomic(), transaction.atomic(using=database):
        write(database)
    assert written(database) == 1


def test_a_lock_that_is_held_already_is_entered_once_more(refused, lock, third, name, database):
    if refused:
        return
    with lock:
        with lock.atomic():
            write(database)
        assert lock.held
        assert not third.tries(name)
    assert written(database) == 1


def test_inside_it_the_lock_is_entered_again_as_ever(
    refused, backend, using, lock, third, name, database
):
    if refused:
        return
    owner = "order-42"
    with Lock(f"{name}:named", using=using, owner=owner).atomic():
        with Lock(f"{name}:named", using=using, owner=owner, on_busy="raise") as again:
            assert again.held
        write(database)
    with lock.atomic(), Lock(name, using=using, at_least=2 * PATIENCE):
        write(database, 2)
    assert written(database) == 2
    assert not third.tries(name)


def test_the_locks_database_may_be_named(refused, lock, database, backend):
    if refused:
        return
    with lock.atomic(using=database):
        write(database)
    assert written(database) == 1


def test_a_lock_that_cannot_be_had_begins_no_transaction(refused, using, third, name, database):
    from distlock import LockBusy

    if refused:
        return
    third.take(name)
    with (
        pytest.raises(LockBusy),
        Lock(name, using=using, on_busy="raise").atomic(),
    ):
        raise AssertionError("the body ran")
    assert not connections[database].in_atomic_block
