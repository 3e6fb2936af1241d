"""``release="commit"``: a lock that is left inside a transaction is freed when that has ended."""

import asyncio
import gc
import logging
import random
import threading
import time
import warnings
from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.test import Client

from distlock import Lock, LockDeadlock, LockError, LockNotHeld, ReleasedInTransaction, locks
from distlock.activity import activity
from distlock.core.manager import manager
from distlock.recipes import MultiLock, RWLock, Semaphore
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.databases import ALIASES, SERVERS, publish

SERVER = pytest.mark.parametrize("kind", SERVERS)


def keeping(name, using, **more):
    return Lock(name, using=using, release="commit", **more)


@pytest.fixture
def other(actor):
    """Someone in another process, who wants the lock."""
    return actor("process")


@pytest.fixture(autouse=True)
def no_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReleasedInTransaction)
        yield
    eventually(lambda: not held_here(name))


def held_here(name):
    return [hold for hold in manager.all() if hold.lease.name.startswith(name)]


def free(other, name):
    """Whether someone else can take the lock now; a database that others may not ask is a no."""
    try:
        if locks["default"].database != ALIASES["sqlite"]:
            return other.tries(name)
        return other.lock(name).acquire(timeout=0.3)  # it would wait for the transaction
    except LockError:
        return False


def comes_free(other, name):
    return other.lock(name).acquire(timeout=PATIENCE)


# What is protected


def number(database, name):
    group = Group.objects.using(database).get(name__startswith=f"{name}:")
    return group, int(group.name.rpartition(":")[2])


@pytest.fixture
def adding(kind, using, database, name):
    """``adding(release)``: two threads add one under the lock; the sum after that.

    The first to come commits when the second has read, or had a second for that.
    """
    Group.objects.using(database).create(name=f"{name}:0")

    def add(release, come, read, errors):
        try:
            with transaction.atomic(using=database):
                with Lock(name, using=using, release=release):
                    group, value = number(database, name)
                    read.set()
                    Group.objects.using(database).filter(pk=group.pk).update(
                        name=f"{name}:{value + 1}"
                    )
                come()
        except BaseException as error:
            errors.append(error)
        finally:
            connections[database].close()

    def run(release):
        errors, seen = [], threading.Event()
        arguments = release, lambda: None, seen, errors
        second = threading.Thread(target=add, args=arguments)

        def come():
            second.start()
            seen.wait(1)

        add(release, come, threading.Event(), errors)
        second.join(PATIENCE)
        assert not errors
        return number(database, name)[1]

    yield run
    Group.objects.using(database).filter(name__startswith=f"{name}:").delete()


@SERVER
def test_an_update_is_lost_if_the_lock_is_freed_before_the_commit(adding):
    """The control: this is what goes wrong without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReleasedInTransaction)
        assert adding("now") == 1


def test_no_update_is_lost_if_the_lock_is_kept_until_the_commit(adding):
    assert adding("commit") == 2


@SERVER
@pytest.mark.parametrize("setting", ["now", "commit"])
def test_requests_that_are_transactions_lose_no_update(
    kind, backend_settings, database, settings, name, setting
):
    """By the setting alone, through Django's handler; with "now", the control, they do."""
    settings.ROOT_URLCONF = "tests.faults.urls"
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.DISTLOCK = backend_settings(kind, RELEASE=setting)
    publish(database, {"ATOMIC_REQUESTS": True})
    Group.objects.using(database).create(name=f"{name}:0")
    answers = []

    warnings.simplefilter("ignore", ReleasedInTransaction)

    def request():
        answers.append(Client().get("/adding/", {"kind": kind, "name": name}).status_code)
        connections[database].close()

    threads = [threading.Thread(target=request) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        total = number(database, name)[1]
    finally:
        publish(database, {"ATOMIC_REQUESTS": False})
        Group.objects.using(database).filter(name__startswith=f"{name}:").delete()
        locks.close_all()
    assert answers == [200] * 4
    assert total == 4 if setting == "commit" else total < 4


# Until when it is kept


def test_it_is_kept_until_the_commit(kind, using, database, other, name):
    with transaction.atomic(using=database):
        with keeping(name, using) as lock:
            token = lock.token
        if kind != "sqlite":  # where the transaction itself frees it
            assert lock.info().token == token
        assert not free(other, name)
    assert other.tries(name)
    assert not lock.held


def test_what_only_waits_for_the_commit_can_be_taken_again_without_entering_it(
    using, database, other, name
):
    """With ``reentrant=False``: nobody is inside any more."""
    with transaction.atomic(using=database):
        for _ in range(2):
            with keeping(name, using, reentrant=False) as lock:
                assert not lock.acquire(blocking=False)
    assert other.tries(name)


def test_without_a_transaction_it_is_freed_at_once(using, other, name):
    with keeping(name, using):
        pass
    assert other.tries(name)


def test_a_transaction_that_has_ended_before_it_is_left_keeps_nothing(using, database, other, name):
    with keeping(name, using):
        with transaction.atomic(using=database):
            pass
        assert not free(other, name)
    assert other.tries(name)


def test_after_a_rollback_it_is_freed(using, database, other, name):
    with suppress(ZeroDivisionError), transaction.atomic(using=database):
        with keeping(name, using):
            pass
        raise ZeroDivisionError
    assert comes_free(other, name)


@SERVER
def test_the_rollback_of_a_savepoint_does_not_free_it(using, database, other, name):
    with transaction.atomic(using=database):
        with suppress(ZeroDivisionError), transaction.atomic(using=database):
            with keeping(name, using):
                pass
            raise ZeroDivisionError
        assert not other.tries(name)
    assert other.tries(name)


@SERVER
def test_the_end_of_an_inner_block_does_not_free_it(using, database, other, name):
    with transaction.atomic(using=database, durable=True):
        with transaction.atomic(using=database, savepoint=False), keeping(name, using):
            pass
        assert not other.tries(name)
    assert other.tries(name)


@SERVER
def test_a_transaction_that_begins_under_it_keeps_it(using, database, other, name):
    lock, block = keeping(name, using), transaction.atomic(using=database)
    lock.acquire()
    with block:
        lock.release()
        assert not other.tries(name)
    assert other.tries(name)


@pytest.mark.parametrize("kind", ["postgresql"])
def test_the_last_of_several_databases_frees_it(using, database, other, name):
    with transaction.atomic(using=database):
        with transaction.atomic(using="mariadb"):
            with keeping(name, using):
                pass
            assert not other.tries(name)
        assert not other.tries(name)
    assert other.tries(name)
    with transaction.atomic(using="mariadb"):
        with transaction.atomic(using=database), keeping(name, using):
            pass
        assert not other.tries(name)
    assert other.tries(name)
    connections["mariadb"].close()


def test_a_decorated_function_keeps_it(using, database, other, name):
    @keeping(name, using)
    def work():
        return 1

    with transaction.atomic(using=database):
        assert work() == 1
        assert not free(other, name)
    assert other.tries(name)


@SERVER
def test_closing_the_connection_inside_rolls_back_and_frees_it(using, database, other, name):
    with transaction.atomic(using=database):
        with keeping(name, using):
            pass
        connections[database].close()
        assert comes_free(other, name)
        with keeping(f"{name}:later", using):  # the transaction is over already
            pass
        assert other.tries(f"{name}:later")


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_connection_that_is_lost_frees_it(using, database, other, name):
    with pytest.raises(OperationalError), transaction.atomic(using=database):  # noqa: PT012
        with keeping(name, using):
            pass
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert comes_free(other, name)


@SERVER
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the driver's: the connection is left open
def test_a_thread_that_ends_inside_the_transaction_frees_it(using, database, other, name):
    def work():
        transaction.atomic(using=database).__enter__()
        with keeping(name, using, lease=2):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert comes_free(other, name)
    eventually(lambda: not held_here(name))


@SERVER
def test_an_app_hook_that_fails_does_not_keep_it(using, database, other, name):
    called = []

    def fail():
        called.append(other.tries(name))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):  # noqa: PT012
        transaction.on_commit(fail, using=database)
        with keeping(name, using):
            pass
    assert called == [True]  # it is free before the app's hooks are called
    assert other.tries(name)


@SERVER
def test_hooks_of_the_app_are_called_though_it_cannot_be_freed(
    using, database, other, name, monkeypatch, caplog
):
    called = []
    lock = keeping(name, using)
    with transaction.atomic(using=database):
        with lock:
            token = lock.token
        transaction.on_commit(lambda: called.append(1), using=database)
        assert other.lock(name).force_release(token)
    assert called == [1]
    assert other.tries(name)
    assert any("was lost" in line for line in caplog.messages)


# Meanwhile


@SERVER
def test_it_is_renewed_meanwhile(using, database, other, name):
    with transaction.atomic(using=database):
        with keeping(name, using, lease=1.5) as lock:
            first = lock.info().until
        eventually(lambda: lock.info().until > first)
        time.sleep(1.6)
        assert not other.tries(name)
        lock.verify()
    assert other.tries(name)


@SERVER
def test_its_owner_may_enter_it_again_meanwhile(using, database, other, name):
    with transaction.atomic(using=database):
        with keeping(name, using) as lock:
            token = lock.token
        for release in ("commit", "now", "commit"):
            with Lock(name, using=using, release=release, on_busy="raise") as again:
                assert again.token == token
            assert not other.tries(name)
    assert other.tries(name)


@SERVER
@pytest.mark.parametrize("nested", [False, True])
def test_other_pieces_of_work_in_the_same_transaction_enter_it_again(
    using, database, other, name, nested
):
    """They would wait for the commit, which waits for them."""
    mailer = Semaphore(name, 1, using=using, release="commit")

    def enter():
        with keeping(name, using, timeout=PATIENCE) as lock, mailer:
            assert lock.held
            return lock.token

    with transaction.atomic(using=database):
        with activity("a"):
            token = enter()
            if nested:
                with activity("b"):
                    assert enter() == token
        with activity("c"):
            assert enter() == token
        assert enter() == token
        with keeping(name, using), activity("d"):
            assert enter() == token
        assert not other.tries(name)
    assert other.tries(name)
    assert not mailer.info().holders


@SERVER
def test_the_end_of_the_piece_of_work_does_not_end_it(using, database, other, name, caplog):
    with transaction.atomic(using=database):
        with activity("a"), keeping(name, using, lease=1.5) as lock:
            pass
        first = lock.info().until
        eventually(lambda: lock.info().until > first)
        assert not other.tries(name)
    assert other.tries(name)
    assert not caplog.messages


@SERVER
def test_it_is_left_as_often_as_it_was_entered_and_not_more(using, database, other, name):
    lock = keeping(name, using)
    with transaction.atomic(using=database):
        lock.acquire()
        lock.acquire()
        lock.release()
        lock.release()
        for left in (lock, Lock(name, using=using)):
            with pytest.raises(LockNotHeld):
                left.release()
        assert not other.tries(name)
    assert other.tries(name)


@SERVER
def test_an_entry_from_before_the_transaction_goes_on_after_it(using, database, other, name):
    with Lock(name, using=using) as lock:
        with transaction.atomic(using=database), keeping(name, using):
            pass
        assert lock.held
        assert not other.tries(name)
    assert other.tries(name)


@SERVER
def test_a_loss_meanwhile_is_told_and_the_commit_stands(using, database, other, name, caplog):
    told = threading.Event()
    with caplog.at_level(logging.ERROR, "distlock"):
        with transaction.atomic(using=database):
            with keeping(name, using, lease=1.5, on_lost=lambda lease: told.set()) as lock:
                token = lock.token
            Group.objects.using(database).create(name=name)
            assert other.lock(name).force_release(token)
            assert told.wait(PATIENCE)
            with pytest.raises(LockError, match="lost"):
                lock.check()
        assert "before its transaction had ended, lock" in caplog.text
    assert Group.objects.using(database).filter(name=name).delete()[0] == 1
    assert other.tries(name)


@SERVER
def test_what_ends_with_an_error_is_kept_as_well(using, database, other, name):
    """The error may be caught inside the transaction, which then commits."""
    with transaction.atomic(using=database):
        with suppress(ZeroDivisionError), keeping(name, using):
            raise ZeroDivisionError
        assert not other.tries(name)
    assert other.tries(name)


@SERVER
def test_a_hold_of_a_named_owner_is_kept(using, database, other, name):
    with transaction.atomic(using=database):
        with keeping(name, using, owner="checkout-42"):
            pass
        assert not other.tries(name)
    assert other.tries(name)


@SERVER
def test_with_at_least_it_stays_taken_after_the_commit(using, database, other, name):
    with transaction.atomic(using=database):
        with keeping(name, using, at_least=3):
            pass
        assert not other.tries(name)
    assert not other.tries(name)
    assert comes_free(other, name)


@SERVER
def test_a_task_of_asyncio_frees_it_at_once(using, other, database, name):
    async def work():
        async with keeping(name, using):
            pass

    with transaction.atomic(using=database):
        asyncio.run(work())
        assert other.tries(name)


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
    assert not caplog.messages
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
