"""Locks taken, held and left in transactions of the caller: they work or raise, and never lie."""

import contextlib
import warnings

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from distlock import Lock, LockError, LockLost, ReleasedInTransaction, locks
from tests.contract.actors import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::distlock.ReleasedInTransaction")


def can_have(other, name):
    """Whether someone else can take the lock now; a database that others may not ask is a no."""
    lock = other.lock(name)
    try:
        got = lock.acquire(timeout=0.3)
    except LockError:
        return False
    if got:
        lock.release()
    return got


def truthful(lock, other, name):
    """A lock that says it is held is; one that was lost says so."""
    if lock.held:
        lock.verify()
        assert not can_have(other, name)
        return "held"
    with pytest.raises(LockLost):
        lock.check()
    return "lost"


def test_a_lock_taken_in_a_transaction_excludes_others_at_once(using, database, other, name):
    with transaction.atomic(using=database), Lock(name, using=using) as lock:
        assert lock.held
        lock.verify()
        assert not can_have(other, name)


def test_a_rollback_of_the_transaction_leaves_the_lock_held_or_known_to_be_lost(
    using, database, other, name
):
    lock = Lock(name, using=using)
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database):
        lock.acquire()
        raise ZeroDivisionError
    said = truthful(lock, other, name)
    with pytest.raises(LockLost) if said == "lost" else contextlib.nullcontext():
        lock.release()
    assert other.lock(name).acquire(timeout=PATIENCE)


def test_a_rollback_to_a_savepoint_leaves_the_lock_held_or_known_to_be_lost(
    using, database, other, name
):
    lock = Lock(name, using=using)
    with transaction.atomic(using=database):
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database):
            lock.acquire()
            raise ZeroDivisionError
        said = truthful(lock, other, name)
        with pytest.raises(LockLost) if said == "lost" else contextlib.nullcontext():
            lock.release()
    assert other.lock(name).acquire(timeout=PATIENCE)


def test_a_rollback_after_the_lock_was_taken_outside_changes_nothing(using, database, other, name):
    with Lock(name, using=using) as lock:
        token = lock.token
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database):
            Group.objects.using(database).create(name=name)
            raise ZeroDivisionError
        assert truthful(lock, other, name) == "held"
        assert lock.token == token


def test_a_release_that_is_rolled_back_with_the_transaction_frees_the_lock(
    using, database, other, name
):
    lock = Lock(name, using=using)
    lock.acquire()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database):
        lock.release()
        raise ZeroDivisionError
    assert not lock.held
    assert other.lock(name).acquire(timeout=PATIENCE)


def test_a_transaction_that_is_broken_can_still_leave_its_lock(using, database, other, name):
    """Every statement on the caller's own connection would fail now."""
    lock = Lock(name, using=using)
    lock.acquire()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=database):
        with contextlib.suppress(Exception), connections[database].cursor() as cursor:
            cursor.execute("SELECT no_such_column FROM nowhere")
        lock.release()
        raise ZeroDivisionError
    assert other.lock(name).acquire(timeout=PATIENCE)


def test_nested_transactions_of_the_caller_do_not_disturb_the_lock(using, database, other, name):
    outer, inner = transaction.atomic(using=database), transaction.atomic(using=database)
    with outer, inner, Lock(name, using=using) as lock:
        lock.verify()
        assert not can_have(other, name)
    assert other.lock(name).acquire(timeout=PATIENCE)


def test_leaving_a_lock_before_a_commit_by_hand_is_warned_of(using, kind, database, other, name):
    """With autocommit off every statement begins a transaction, if none is open."""
    connection = connections[database]
    connection.set_autocommit(False)
    try:
        if kind != "mariadb":  # whose driver does not tell whether one was begun
            with warnings.catch_warnings():
                warnings.simplefilter("error", ReleasedInTransaction)
                with Lock(name, using=using):
                    pass
        with (
            pytest.warns(ReleasedInTransaction, match=name),
            Lock(name, using=using),
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT 1" if kind != "sqlite" else "BEGIN")
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert other.lock(name).acquire(timeout=PATIENCE / 2)  # though its release may be rolled back


def test_leaving_a_lock_inside_a_transaction_is_warned_of(using, database, name):
    """The next one in would not see what was written under the lock."""
    with (
        pytest.warns(ReleasedInTransaction, match=name),
        transaction.atomic(using=database),
        Lock(name, using=using),
    ):
        pass


def test_leaving_a_lock_after_the_transaction_is_not_warned_of(using, database, name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReleasedInTransaction)
        with Lock(name, using=using), transaction.atomic(using=database):
            pass
        with Lock(name, using=using).atomic():
            pass


def test_many_locks_in_one_transaction(using, database, other, name):
    held = [Lock(f"{name}:{number}", using=using) for number in range(5)]
    with transaction.atomic(using=database):
        for lock in held:
            assert lock.acquire()
        assert len(list(locks[using].list(name))) == 5
        for lock in held:
            lock.release()
    for number in range(5):
        assert other.lock(f"{name}:{number}").acquire(timeout=PATIENCE)


@pytest.mark.every_day_on("mariadb")
def test_a_lock_held_by_another_process_is_waited_for_inside_a_transaction(
    using, database, other, name
):
    token = other.take(name, lease=0.6, renew=False).info().token
    with transaction.atomic(using=database), Lock(name, using=using, timeout=PATIENCE) as lock:
        assert lock.token > token
