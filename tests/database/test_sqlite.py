"""SQLite: one writer at a time, and locks inside the caller's own transaction."""

import asyncio
import gc
import sqlite3
import threading

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from distlock import Lock, LockLost, locks
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import arun, run
from distlock.exceptions import LockError, LockUnavailable, NotSupported
from distlock.models import DatabaseLock
from distlock.types.lease import State
from distlock.types.owners import is_reserved
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.database.speaking import claim
from tests.databases import ALIASES, another_file

KINDS = ["sqlite", "memory"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def rows(database):
    """``rows(name)``: the rows of a lock as the caller's own connection sees them."""
    return lambda name: DatabaseLock.objects.using(database).filter(lock=name)


class Undone(Exception):
    pass


# Inside a transaction


def test_a_lock_is_taken_in_the_callers_transaction(backend, database, name, rows):
    with transaction.atomic(using=database):
        rows("anything").delete()  # from here on nobody else can write
        lease = backend.try_acquire(claim(name))
        assert rows(name).get().nonce == lease.nonce
        assert backend.try_acquire(claim(name)) is None
        assert backend.verify(lease)
        assert backend.inspect(name).state is State.HELD
    assert not backend.loss_reason(lease)
    assert backend.verify(lease)
    assert backend.renew([lease]) == {lease.nonce: True}
    assert backend.release(lease)


def test_a_rollback_undoes_the_lock_and_that_is_known_without_asking(backend, database, name, rows):
    with pytest.raises(Undone), transaction.atomic(using=database):
        lease = backend.try_acquire(claim(name))
        assert not backend.loss_reason(lease)
        raise Undone
    assert backend.loss_reason(lease)
    assert not backend.verify(lease)
    assert backend.try_acquire(claim(name))


def test_a_rollback_to_a_savepoint_undoes_the_lock(backend, database, name):
    with transaction.atomic(using=database):
        with pytest.raises(Undone), transaction.atomic(using=database):
            inner = backend.try_acquire(claim(f"{name}:inner"))
            raise Undone
        outer = backend.try_acquire(claim(f"{name}:outer"))
        assert backend.loss_reason(inner)
        assert not backend.loss_reason(outer)
    assert not backend.loss_reason(outer)
    assert backend.verify(outer)


def test_while_callbacks_run_after_the_commit_the_lock_is_held(backend, database, name):
    seen = []
    with transaction.atomic(using=database):
        transaction.on_commit(lambda: seen.append(not backend.loss_reason(lease)), using=database)
        lease = backend.try_acquire(claim(name))
        transaction.on_commit(lambda: seen.append(not backend.loss_reason(lease)), using=database)
    assert seen == [True, True]


def test_a_callback_that_fails_after_the_commit_does_not_undo_the_lock(backend, database, name):
    def fail():
        raise Undone

    with pytest.raises(Undone), transaction.atomic(using=database):
        transaction.on_commit(fail, using=database)
        lease = backend.try_acquire(claim(name))
    gc.collect()
    assert not backend.loss_reason(lease)
    assert backend.verify(lease)


def test_a_connection_that_is_closed_halfway_undoes_the_lock(backend, kind, database, name):
    with transaction.atomic(using=database):
        lease = backend.try_acquire(claim(name))
        if kind == "sqlite":
            connections[database].close()
            assert backend.loss_reason(lease)


def test_a_lock_freed_in_a_transaction_is_free_after_its_commit(backend, database, name):
    lease = backend.try_acquire(claim(name))
    with transaction.atomic(using=database):
        assert backend.release(lease) is True
    assert backend.inspect(name).state is State.FREE


def test_a_release_that_was_rolled_back_is_made_again(backend, database, name):
    """The holder has left; only the row came back."""
    lease = backend.try_acquire(claim(name))
    with pytest.raises(Undone), transaction.atomic(using=database):
        assert backend.release(lease) is True
        raise Undone
    eventually(lambda: backend.inspect(name).state is State.FREE)


def test_a_release_rolled_back_within_an_open_transaction_is_made_after_that(
    backend, database, name
):
    with transaction.atomic(using=database):
        lease = backend.try_acquire(claim(name))
        with pytest.raises(Undone), transaction.atomic(using=database):
            assert backend.release(lease) is True
            raise Undone
        assert backend.inspect(name).state is State.HELD
    eventually(lambda: backend.inspect(name).state is State.FREE)


def test_a_lock_taken_and_freed_in_one_transaction_leaves_a_free_row(backend, database, name):
    with transaction.atomic(using=database):
        lease = backend.try_acquire(claim(name))
        assert backend.release(lease) is True
    assert not backend.loss_reason(lease)
    assert backend.inspect(name).state is State.FREE


def test_a_statement_that_fails_does_not_break_the_transaction(
    backend, database, name, rows, monkeypatch
):
    from distlock.backends.database.sqlite import SQLITE

    with transaction.atomic(using=database):
        with monkeypatch.context() as patched:
            wrong = "INSERT INTO database_lock VALUES (1)"
            patched.setattr(SQLITE, "update_text", wrong)
            patched.setattr(SQLITE, "upsert_text", wrong)
            with pytest.raises(LockUnavailable):
                backend.try_acquire(claim(name))
        lease = backend.try_acquire(claim(name))
        rows("anything").delete()
    assert backend.verify(lease)


def test_a_transaction_begun_by_hand_is_refused(backend, database, name):
    """Django offers no way to learn of its rollback."""
    connection = connections[database]
    connection.set_autocommit(False)
    try:
        lease = backend.try_acquire(claim(name))
        DatabaseLock.objects.using(database).filter(lock="anything").delete()
        with pytest.raises(NotSupported, match="atomic"):
            backend.try_acquire(claim(f"{name}:other"))
        assert backend.verify(lease)
        assert backend.release(lease)
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    backend.cancel(lease.claim)


def test_other_threads_may_free_what_is_held_in_the_open_transaction(backend, database, name):
    """As an asyncio task does, whose calls run on threads of ours."""
    answers = []
    with transaction.atomic(using=database):
        lease = backend.try_acquire(claim(name))
        for ask in (backend.verify, backend.release):
            thread = threading.Thread(target=lambda ask=ask: answers.append(ask(lease)))
            thread.start()
            thread.join()
        assert answers == [True, True]


def test_what_is_held_in_an_open_transaction_is_not_renewed(backend, database, name):
    other = backend.try_acquire(claim(f"{name}:other"))
    with transaction.atomic(using=database):
        lease = backend.try_acquire(claim(name))
        assert backend.renew([lease]) == {}
        assert backend.renew([lease, other]) == {}  # a rollback would take it back
    assert backend.renew([lease, other]) == {lease.nonce: True, other.nonce: True}


@pytest.mark.parametrize("how", ["extend", "enter"])
def test_what_a_rollback_would_take_back_is_not_relied_on(
    kind, backend_settings, settings, database, name, how
):
    """A hold from before the transaction is not made longer in it."""
    settings.DISTLOCK = backend_settings(kind)
    lock = Lock(name, lease=20, renew=False)
    lock.acquire()
    eventually(lambda: lock.remaining < 19.9)
    with pytest.raises(LockError, match="transaction"), transaction.atomic(using=database):
        lock.extend(60) if how == "extend" else lock.acquire()
    assert lock.remaining < lock.info().remaining
    lock.extend(60)
    lock.release()


def test_a_lock_in_a_rolled_back_transaction_is_lost(kind, backend_settings, settings, name):
    settings.DISTLOCK = backend_settings(kind)
    lock = Lock(name)
    with pytest.raises(Undone), transaction.atomic(using=ALIASES[kind]):
        lock.acquire()
        assert lock.held
        raise Undone
    assert not lock.held
    with pytest.raises(LockLost, match="rolled back"):
        lock.release()
    locks.close_all()


def test_a_renewal_tells_of_a_rolled_back_transaction(
    kind, backend_settings, settings, name, caplog
):
    settings.DISTLOCK = backend_settings(kind, RENEW=0.2)
    told = threading.Event()
    lock = Lock(name, on_lost=lambda lease: told.set())
    with pytest.raises(Undone), transaction.atomic(using=ALIASES[kind]):
        lock.acquire()
        raise Undone
    assert told.wait(PATIENCE)
    with pytest.raises(LockLost, match="rolled back"):
        lock.check()
    assert "rolled back" in caplog.text
    with pytest.raises(LockLost, match="rolled back"):
        lock.release()
    locks.close_all()


# One writer


@pytest.mark.parametrize("kind", ["sqlite"])
def test_while_someone_else_writes_one_waits(backend, database, name):
    settings = connections.settings[database]
    writer = sqlite3.connect(settings["NAME"], isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: writer.execute("ROLLBACK"))
    timer.start()
    assert backend.try_acquire(claim(name))
    timer.join()
    writer.close()


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_writer_that_does_not_end_is_no_holder(make, database, name):
    """The lock may be free, but the file cannot be written."""
    backend = make(timeout=0.4)
    lease = backend.try_acquire(claim(f"{name}:held"))
    settings = connections.settings[database]
    writer = sqlite3.connect(settings["NAME"], isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        for ask in (
            lambda: backend.try_acquire(claim(name)),
            lambda: backend.release(lease),
            lambda: backend.renew([lease]),
        ):
            with pytest.raises(LockUnavailable, match="locked") as raised:
                ask()
            assert raised.value.maybe_applied is False
        assert backend.verify(lease)  # readers need not wait
    finally:
        writer.execute("ROLLBACK")
        writer.close()
    assert backend.release(lease)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_asking_for_a_held_lock_writes_nothing(make, database, name):
    """It fails at once, whoever writes, and keeps nobody else from writing."""
    backend = make(timeout=0.4)
    lease = backend.try_acquire(claim(name))
    settings = connections.settings[database]
    writer = sqlite3.connect(settings["NAME"], isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        assert backend.try_acquire(claim(name)) is None
    finally:
        writer.execute("ROLLBACK")
        writer.close()
    assert backend.release(lease)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_renewal_that_cannot_write_keeps_to_its_deadline(backend, database, name):
    lease = backend.try_acquire(claim(name))
    settings = connections.settings[database]
    writer = sqlite3.connect(settings["NAME"], isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    began = clock()
    with pytest.raises(LockUnavailable):
        backend.renew([lease], clock() + 0.3)
    assert clock() - began < 5
    writer.execute("ROLLBACK")
    writer.close()


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_either_journal_will_do(backend, database, name, mode):
    backend.close()
    with another_file(database, mode):
        lease = backend.try_acquire(claim(name))
        with transaction.atomic(using=database):
            assert backend.try_acquire(claim(name)) is None
            assert backend.release(lease)
            inner = backend.try_acquire(claim(name))
        assert backend.verify(inner)
        backend.close()


def test_many_threads_take_turns(backend, database, name):
    """In memory they share one cache, which refuses instead of letting wait."""
    counter = {"value": 0, "inside": 0}
    errors = []

    def work():
        try:
            for _ in range(15):
                lease = run(backend.enqueue(claim(name), clock() + 60))
                counter["inside"] += 1
                assert counter["inside"] == 1
                counter["value"] += 1
                counter["inside"] -= 1
                assert backend.release(lease)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert counter["value"] == 60


# In memory


def test_a_database_that_each_connection_has_to_itself_is_refused(backend, database, name):
    settings = connections.settings[database]
    before = settings["NAME"]
    settings["NAME"] = ":memory:"
    try:
        with pytest.raises(ImproperlyConfigured, match="none would see the locks"):
            backend.try_acquire(claim(name))
    finally:
        settings["NAME"] = before


def test_async_code_can_use_locks(backend, name):
    async def use():
        lease = await arun(backend.enqueue(claim(name), clock() + 20))
        return lease, await backend.attempt(claim(name), None).arun()

    lease, other = asyncio.run(use())
    assert other is None
    assert backend.release(lease)


def test_a_lock_that_was_kept_in_a_transaction_stays_so_after_a_rollback(backend, database, name):
    lease = backend.try_acquire(claim(name))
    with pytest.raises(Undone), transaction.atomic(using=database):
        DatabaseLock.objects.using(database).filter(lock="anything").delete()
        assert backend.reserve_for(lease, 30)
        raise Undone
    eventually(lambda: is_reserved(backend.inspect(name).owner))
    assert backend.inspect(name).remaining <= 30.1
