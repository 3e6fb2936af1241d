"""``release="commit"``: a lock that is left inside a transaction is freed when that has ended."""

import asyncio
import gc
import logging
import threading
import warnings
from contextlib import suppress
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.test import Client

from distlock import Lock, LockError, LockNotHeld, ReleasedInTransaction, locks
from distlock.activity import activity
from distlock.recipes import Semaphore
from distlock.runtime.manager import manager
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.databases import SERVERS, publish
from tests.faults.committing import all_released, comes_free, free, held_here, keeping, number

SERVER = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture(autouse=True)
def no_warning(name):
    with all_released(name):
        yield


# What is protected


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
def test_the_last_of_several_databases_frees_it(using, database, other, name, mariadb):
    connections["mariadb"].close()  # an earlier test may have used a server that has ended
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
        eventually(lambda: lock.info().until > first + timedelta(seconds=1.5))
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
    assert not [message for message in caplog.messages if name in message]


@pytest.mark.parametrize("kind", ["postgresql"])
def test_what_a_piece_of_work_does_not_release_after_it_is_not_entered_by_the_next_one(
    using, database, name
):
    with activity("a"):
        keeping(name, using).acquire()
        with transaction.atomic(using=database), keeping(name, using):
            pass
    with activity("b"):
        assert not Lock(name, using=using).acquire(blocking=False)
    (hold,) = held_here(name)
    manager().free(hold)


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_another_job_of_the_task_does_not_enter_before_the_commit(using, database, name):
    left, tried = threading.Event(), threading.Event()

    def first():
        try:
            with transaction.atomic(using=database):
                with keeping(name, using):
                    pass
                with keeping(name, using):
                    left.set()
                tried.wait(PATIENCE)
        finally:
            connections[database].close()

    def second():
        left.wait(PATIENCE)
        entered = Lock(name, using=using).acquire(timeout=0.2)
        tried.set()
        with Lock(name, using=using, timeout=PATIENCE):
            return entered

    async with Lock(name, using=using):
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(None, job) for job in (first, second)]
        assert await asyncio.gather(*jobs) == [None, False]


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
