"""``release="commit"`` of seats and of several locks, where it is refused, and at the end."""

import random
import time
import warnings
from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from distlock import Lock, LockDeadlock, LockError, LockNotHeld, ReleasedInTransaction, locks
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.children import write_line
from tests.databases import ALIASES, SERVERS, publish
from tests.faults.committing import all_released, comes_free, keeping, number

SERVER = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture(autouse=True)
def no_warning(name):
    with all_released(name):
        yield


# Semaphores, read/write locks, several locks


@SERVER
def test_a_seat_is_kept_and_taken_again_in_the_same_transaction(using, database, other, name):
    mailer = Semaphore(name, 1, using=using, release="commit")
    with transaction.atomic(using=database):
        for _ in range(3):
            with mailer:
                assert mailer.info().taken == 1
        assert mailer.info().taken == 1
        with pytest.raises(LockNotHeld):
            mailer.release()
    assert mailer.info().taken == 0


@SERVER
def test_seats_that_wait_for_the_commit_are_not_waited_for(using, database, name):
    with transaction.atomic(using=database):
        with Semaphore(name, 2, using=using, release="commit"):
            pass
        with pytest.raises(LockDeadlock, match="transaction"):
            Semaphore(name, 2, n=2, using=using, release="commit").acquire()
        with Semaphore(name, 2, using=using, release="commit") as outer:
            with Semaphore(name, 2, using=using, release="commit"):
                pass
            assert outer.held
        assert outer.info().taken == 2
    assert outer.info().taken == 0


@SERVER
def test_the_sides_of_a_read_write_lock_are_kept(using, database, name):
    catalogue = RWLock(name, using=using, release="commit")
    with transaction.atomic(using=database):
        with catalogue.reader():
            pass
        assert len(catalogue.info().holders) == 1
        with pytest.raises(LockDeadlock, match="end the transaction"):
            catalogue.writer().acquire()
    assert not catalogue.info().holders
    with transaction.atomic(using=database):
        with catalogue.writer():
            pass
        with catalogue.reader():
            pass
        (holder,) = catalogue.info().holders
        assert holder.writes
    assert not catalogue.info().holders


@SERVER
def test_all_locks_of_a_multilock_are_kept(using, database, other, name):
    both = MultiLock(f"{name}:a", f"{name}:b", using=using, release="commit")
    with transaction.atomic(using=database):
        with both:
            pass
        assert not other.tries(f"{name}:a")
        assert not other.tries(f"{name}:b")
        with pytest.raises(LockNotHeld):
            both.release()
    assert other.tries(f"{name}:a")
    assert other.tries(f"{name}:b")


# Where it would not protect


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("by", ["options", "server"])
@SERVER
def test_it_is_refused_where_the_transaction_may_have_read_what_is_older(
    kind, using, database, other, name, level, by
):
    publish(database, {"OPTIONS": with_level(kind, database, level, by)})
    try:
        with transaction.atomic(using=database):
            with pytest.raises(LockError, match=r"READ COMMITTED.*lock\.atomic"):
                keeping(name, using).acquire()
            with pytest.raises(LockError, match="READ COMMITTED"):
                Semaphore(name, 2, using=using, release="commit").acquire()
            assert other.tries(name)
        with keeping(name, using), transaction.atomic(using=database), keeping(name, using):
            pass  # it begins under the lock
        assert other.tries(name)
    finally:
        publish(database, {"OPTIONS": BEFORE.pop(database)})


BEFORE = {}


def with_level(kind, database, level, by):
    """The OPTIONS of a database for this level: by Django's option, or what the server has set."""
    BEFORE[database] = options = connections.settings[database].get("OPTIONS", {})
    if kind == "mariadb":
        if by == "options":
            return {**options, "isolation_level": level}
        command = f"SET SESSION TRANSACTION ISOLATION LEVEL {level.upper()}"
        return {**options, "isolation_level": None, "init_command": command}
    if by == "options":
        from psycopg import IsolationLevel

        return {**options, "isolation_level": IsolationLevel[level.upper().replace(" ", "_")]}
    escaped = level.replace(" ", "\\ ")
    return {**options, "options": f"-c default_transaction_isolation={escaped}"}


def test_it_is_refused_where_transactions_are_ended_by_hand(using, database, other, name):
    connection = connections[database]
    connection.ensure_connection()
    connection.set_autocommit(False)
    try:
        with pytest.raises(LockError, match=r"autocommit.*lock\.atomic"):
            keeping(name, using).acquire()
        for terms in ({}, {"blocking": False}, {"timeout": 0}):
            with pytest.raises(LockError, match="autocommit"):
                MultiLock(name, using=using, release="commit").acquire(**terms)
        with (
            transaction.atomic(using=database),
            pytest.raises(LockError, match="autocommit"),
        ):
            keeping(name, using).acquire()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert other.tries(name)


@SERVER
def test_where_autocommit_is_switched_off_under_it_the_warning_remains(
    using, database, other, name
):
    connection = connections[database]
    lock = keeping(name, using)
    lock.acquire()
    connection.set_autocommit(False)
    try:
        Group.objects.using(database).count()
        with pytest.warns(ReleasedInTransaction, match=name):
            lock.release()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert other.tries(name)


def test_the_warning_names_the_way_out(using, database, name):
    with (
        pytest.warns(ReleasedInTransaction, match='release="commit"'),
        transaction.atomic(using=database),
        Lock(name, using=using),
    ):
        pass


# Where the locks are on SQLite


@pytest.mark.parametrize("kind", ["sqlite"])
def test_on_sqlite_a_seat_is_left_after_the_commit(using, database, name):
    """Inside a transaction that has written nobody else can write, nor this thread's session."""
    mailer = Semaphore(name, 1, using=using, release="commit")
    mailer.acquire()
    with transaction.atomic(using=database):
        Group.objects.using(database).create(name=name)
        mailer.release()
        assert mailer.info().taken == 1
    assert mailer.info().taken == 0
    Group.objects.using(database).filter(name=name).delete()


@pytest.mark.parametrize("kind", ["sqlite"])
def test_on_sqlite_it_is_kept_for_a_transaction_in_another_database(
    using, database, other, name, caplog
):
    with transaction.atomic(using="memory"):
        with transaction.atomic(using=database), keeping(name, using):
            pass
        assert not other.tries(name)
    assert other.tries(name)
    assert not [message for message in caplog.messages if name in message]
    connections["memory"].close()


# The end of the process


def roll_back_and_end(database, name):
    with suppress(ZeroDivisionError), transaction.atomic(using=database):
        with Lock(name, release="commit", lease=600):
            write_line("left")
        raise ZeroDivisionError


@SERVER
def test_a_process_that_ends_right_after_a_rollback_has_freed_it(
    using, database, other, name, child
):
    process = child(roll_back_and_end, database, name)
    assert process.line() == "left"
    process.finish()
    assert comes_free(other, name)


# Many processes


def add_many(kind, database, name, seed):
    """Add one under the lock, in transactions with savepoints; some are rolled back."""
    random.seed(seed)
    added = 0
    for _ in range(40):
        with suppress(ZeroDivisionError), transaction.atomic(using=database):
            with suppress(ZeroDivisionError), transaction.atomic(using=database):
                if random.random() < 0.3:
                    with Lock(name, release="commit"):
                        raise ZeroDivisionError
            with Lock(name, release="commit"):
                group, value = number(database, name)
                Group.objects.using(database).filter(pk=group.pk).update(name=f"{name}:{value + 1}")
            time.sleep(random.random() * 0.01)
            if random.random() < 0.2:
                raise ZeroDivisionError
            added += 1
    write_line(added)


@pytest.mark.slow
@SERVER
def test_processes_lose_no_update(kind, using, database, name, child):
    Group.objects.using(database).create(name=f"{name}:0")
    workers = [child(add_many, kind, database, name, seed) for seed in range(6)]
    added = [int(worker.line()) for worker in workers]
    for worker in workers:
        worker.finish()
    assert number(database, name)[1] == sum(added) > 100
    Group.objects.using(database).filter(name__startswith=f"{name}:").delete()


# Settings


@SERVER
def test_a_lock_may_differ_from_the_setting(
    kind, backend_settings, database, settings, other, name
):
    settings.DISTLOCK = backend_settings(kind, RELEASE="commit")
    with transaction.atomic(using=database):
        with Lock(f"{name}:kept"):
            pass
        assert not other.tries(f"{name}:kept")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReleasedInTransaction)
            with Lock(f"{name}:freed", release="now"):
                pass
        assert other.tries(f"{name}:freed")
    assert other.tries(f"{name}:kept")


def test_the_locks_of_a_process_are_kept_too(backend_settings, settings, name):
    settings.DISTLOCK = backend_settings("local")
    with transaction.atomic(using=ALIASES["sqlite"]):
        with keeping(name, "default") as lock:
            pass
        assert lock.locked()
    assert not lock.locked()
    locks.close_all()
