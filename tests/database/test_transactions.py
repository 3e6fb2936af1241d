"""Transactions that commit only while the lock is held, by engine and isolation level."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from distlock import Lock, LockError, LockLost, NotSupported, ReleasedInTransaction, locks
from distlock.recipes import MultiLock, Semaphore
from distlock.runtime.manager import manager
from distlock.types.lease import State
from tests.contract.watch import eventually
from tests.database.speaking import claim
from tests.databases import ALIASES, DATABASES, SERVERS

GROUP = "written under the lock"

LEVELS = {
    "sqlite": [None],
    "mariadb": ["read committed", "repeatable read", "serializable"],
    "postgresql": ["read committed", "repeatable read", "serializable"],
}
EVERY_LEVEL = [(kind, level) for kind in DATABASES for level in LEVELS[kind]]


@pytest.fixture
def level():
    return None


@pytest.fixture
def isolated(database, kind, level):
    """The caller's own connection, at an isolation level."""
    connection = connections[database]
    settings = connections.settings[database]
    before = settings.get("OPTIONS", {})
    connection.close()
    if level is not None:
        value = level
        if kind == "postgresql":
            from django.db.backends.postgresql.psycopg_any import IsolationLevel

            value = IsolationLevel[level.upper().replace(" ", "_")]
        settings["OPTIONS"] = {**before, "isolation_level": value}
    yield connections[database]
    connections[database].close()
    settings["OPTIONS"] = before
    Group.objects.using(database).filter(name=GROUP).delete()


def write(database):
    Group.objects.using(database).create(name=GROUP)


def written(database):
    return Group.objects.using(database).filter(name=GROUP).count()


@pytest.mark.parametrize(("kind", "level"), EVERY_LEVEL)
def test_what_was_written_is_committed(backend, isolated, database, name):
    lease = backend.try_acquire(claim(name))
    with backend.atomic(lease, None):
        write(database)
    assert written(database) == 1
    assert backend.verify(lease)


@pytest.mark.parametrize(("kind", "level"), EVERY_LEVEL)
def test_a_lease_that_ended_rolls_back(backend, isolated, database, name):
    lease = backend.try_acquire(claim(name, duration=0.3))
    with pytest.raises(LockLost), backend.atomic(lease, None):
        write(database)
        eventually(lambda: not backend.verify(lease))
    assert written(database) == 0


@pytest.mark.parametrize(("kind", "level"), [case for case in EVERY_LEVEL if case[0] in SERVERS])
def test_a_renewal_meanwhile_does_no_harm(backend, isolated, kind, level, database, name):
    lease = backend.try_acquire(claim(name))
    with backend.atomic(lease, None):
        write(database)
        renewed = backend.renew([lease])
        # Where the transaction could not see the renewal, there is none before it ends.
        assert renewed in ({lease.nonce: True}, {})
        if level == "read committed":
            assert renewed == {lease.nonce: True}
        elif kind == "postgresql":
            assert renewed == {}
    assert written(database) == 1
    assert backend.renew([lease]) == {lease.nonce: True}


@pytest.mark.parametrize(("kind", "level"), [(kind, "read committed") for kind in SERVERS])
def test_a_hold_that_was_broken_and_taken_rolls_back(backend, isolated, database, name):
    lease = backend.try_acquire(claim(name))
    with pytest.raises(LockLost), backend.atomic(lease, None):
        write(database)
        assert backend.force_release(name, lease.token)
        assert backend.try_acquire(claim(name))
    assert written(database) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_between_the_check_and_the_commit_nobody_can_take_the_lock(
    make, isolated, proxied, kind, database, name
):
    """The row is locked: a lease that ends just then does not let another one in."""
    proxy = proxied(kind)
    backend = make()
    connections[database].ensure_connection()  # not while the lease runs
    lease = backend.try_acquire(claim(name, duration=5))
    commit = proxy.delay(b"COMMIT")

    def is_over():
        info = backend.inspect(name)  # which does not wait for the row
        return (info.state, info.token) != (State.HELD, lease.token)

    def try_to_take():
        try:
            assert commit.kept_back.wait(30)
            eventually(is_over)
            return backend.try_acquire(claim(name)), backend.sweep().expired
        finally:
            commit.end()

    with ThreadPoolExecutor(1) as pool:
        with backend.atomic(lease, None):
            write(database)
            seen = pool.submit(try_to_take)
        assert seen.result() == (None, 0)
    assert written(database) == 1
    assert backend.try_acquire(claim(name)).token > lease.token


@pytest.mark.parametrize("kind", ["mariadb"])
@pytest.mark.parametrize("level", ["repeatable read"])
def test_where_mariadb_keeps_to_its_snapshot(make, isolated, kind, database, name, sql):
    """The default from MariaDB 11.6.2 on: what was renewed meanwhile could not be locked."""
    settings = connections.settings[database]
    settings["OPTIONS"]["init_command"] = "SET innodb_snapshot_isolation = ON"
    connections[database].close()
    backend = make()
    lease = backend.try_acquire(claim(name))
    with backend.atomic(lease, None):
        written(database)
        assert backend.renew([lease]) == {}
        write(database)
    assert written(database) == 1


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("level", ["repeatable read"])
def test_a_renewal_just_when_it_begins_lets_it_begin_anew(make, isolated, kind, database, name):
    if kind == "mariadb":
        connections.settings[database]["OPTIONS"]["init_command"] = (
            "SET innodb_snapshot_isolation = ON"
        )
    backend = make()
    renewer = make("renewer")  # this backend no longer renews a lease whose transaction begins
    lease = backend.try_acquire(claim(name))
    renewals = iter([True, True, False])

    def renewed_just_before(execute, sql, *arguments):
        if "database_lock" in sql and next(renewals, False):
            written(database)  # now it has a snapshot
            assert renewer.renew([lease]) == {lease.nonce: True}
        return execute(sql, *arguments)

    with isolated.execute_wrapper(renewed_just_before), backend.atomic(lease, None):
        write(database)
    assert list(renewals) == []
    assert written(database) == 1


def test_nested_in_a_transaction_it_is_refused_and_says_why(backend, database, name):
    lease = backend.try_acquire(claim(name))
    with (
        transaction.atomic(using=database),
        pytest.raises(LockError, match="ATOMIC_REQUESTS"),
        backend.atomic(lease, None),
    ):
        raise AssertionError("the body ran")
    assert backend.verify(lease)


def test_without_autocommit_it_is_refused(backend, database, name):
    lease = backend.try_acquire(claim(name))
    connections[database].set_autocommit(False)
    try:
        with pytest.raises(LockError, match="autocommit"), backend.atomic(lease, None):
            raise AssertionError("the body ran")
    finally:
        connections[database].rollback()
        connections[database].set_autocommit(True)


def test_nested_in_itself_it_is_a_savepoint(backend, isolated, database, name):
    lease = backend.try_acquire(claim(name))
    with backend.atomic(lease, None):
        write(database)
        with pytest.raises(ZeroDivisionError), backend.atomic(lease, None):
            Group.objects.using(database).all().delete()
            raise ZeroDivisionError
    assert written(database) == 1


ABOVE = [case for case in EVERY_LEVEL if case[1] in ("repeatable read", "serializable")]
UP_TO = [case for case in EVERY_LEVEL if case not in ABOVE]


@pytest.fixture
def pair(kind, backend_settings, settings, isolated, name):
    """Two locks."""
    settings.DISTLOCK = backend_settings(kind)
    yield Lock(f"{name}:a"), Lock(f"{name}:b")
    eventually(lambda: not any(hold.lease.name.startswith(name) for hold in manager().all()))
    locks.close_all()


@pytest.mark.parametrize(("kind", "level"), ABOVE)
def test_above_read_committed_a_second_lock_cannot_join(pair, database):
    first, second = pair
    with first.atomic():
        written(database)
        with pytest.raises(LockError, match=r"MultiLock\.atomic"), second.atomic():
            raise AssertionError("the body ran")
        assert not second.locked()


@pytest.mark.parametrize(("kind", "level"), UP_TO)
def test_a_second_lock_joins_and_both_are_freed_after_the_commit(kind, pair, database):
    first, second = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReleasedInTransaction)
        with first.atomic():
            with second.atomic():
                write(database)
            with second.atomic(), first.atomic():
                pass
            if kind != "sqlite":
                assert second.locked()
    assert written(database) == 1
    assert not first.locked()
    assert not second.locked()


def break_unnoticed(lock):
    """Break a hold as another process would: nobody here learns of it, so the row decides."""
    backend = locks["default"]
    listener, backend.listener = backend.listener, None
    try:
        assert backend.force_release(lock.name, lock.token)
    finally:
        backend.listener = listener


@pytest.mark.parametrize(("kind", "level"), [case for case in UP_TO if case[0] in SERVERS])
def test_the_loss_of_a_second_lock_rolls_back_all(pair, database):
    first, second = pair
    with pytest.raises(LockLost, match=":b'"), first.atomic():
        write(database)
        with second.atomic():
            pass
        break_unnoticed(second)
    assert written(database) == 0
    assert not first.locked()


@pytest.mark.parametrize(("kind", "level"), UP_TO)
def test_a_second_lock_whose_block_fails_counts_no_more(kind, pair, database):
    first, second = pair
    with first.atomic():
        with pytest.raises(ZeroDivisionError), second.atomic():
            write(database)
            raise ZeroDivisionError
        if kind != "sqlite":
            break_unnoticed(second)
        write(database)
    assert written(database) == 1
    eventually(lambda: not second.locked())


@pytest.mark.parametrize(("kind", "level"), UP_TO)
def test_a_rollback_frees_the_second_lock_too(pair, database):
    first, second = pair
    with pytest.raises(ZeroDivisionError), first.atomic():  # noqa: PT012
        with second.atomic():
            write(database)
        raise ZeroDivisionError
    assert written(database) == 0
    eventually(lambda: not second.locked())


@pytest.mark.parametrize(("kind", "level"), EVERY_LEVEL)
def test_several_locks_around_one_transaction(pair, database):
    first, second = pair
    both = MultiLock(first, second)
    with both.atomic() as entered:
        assert entered.held
        with both.atomic():
            write(database)
        with first.atomic():
            pass
    assert written(database) == 1
    assert not both.locked()


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("kind", "level"), [(kind, "read committed") for kind in SERVERS])
def test_the_loss_of_one_of_several_locks_rolls_back(pair, database, at):
    both = MultiLock(*pair)
    with pytest.raises(LockLost, match=f":{'ab'[at]}'"), both.atomic():
        write(database)
        break_unnoticed(pair[at])
    assert written(database) == 0
    assert not both.locked()


@pytest.mark.parametrize(("kind", "level"), UP_TO)
def test_several_locks_join_that_of_another(pair, database, name):
    with Lock(f"{name}:outer").atomic(), MultiLock(*pair).atomic():
        write(database)
    assert written(database) == 1
    assert not MultiLock(*pair).locked()


@pytest.mark.parametrize("kind", ["postgresql"])
def test_what_cannot_be_tied_to_one_transaction_is_refused(pair, settings, name):
    settings.DISTLOCK = {**settings.DISTLOCK, "other": settings.DISTLOCK["default"]}
    for part in (Lock(name, using="other"), Semaphore(name, 2)):
        with pytest.raises(NotSupported, match="MultiLock"), MultiLock(pair[0], part).atomic():
            raise AssertionError("the body ran")
    assert not pair[0].locked()


def test_another_database_is_not_supported(backend, kind, name):
    lease = backend.try_acquire(claim(name))
    other = next(alias for alias in ALIASES.values() if alias != ALIASES[kind])
    with pytest.raises(NotSupported, match=other), backend.atomic(lease, other):
        raise AssertionError("the body ran")


def test_a_body_that_asked_for_a_rollback_gets_it(backend, isolated, database, name):
    lease = backend.try_acquire(claim(name))
    with backend.atomic(lease, database):
        write(database)
        transaction.set_rollback(True, using=database)
    assert written(database) == 0
    assert backend.verify(lease)


@pytest.mark.every_day_on("mariadb")
def test_threads_add_up_under_the_lock(kind, backend_settings, settings, database, name):
    """Read, then write what was read and one: nobody's is lost."""
    settings.DISTLOCK = backend_settings(kind)
    Group.objects.using(database).filter(name__startswith=GROUP).delete()
    Group.objects.using(database).create(name=f"{GROUP}:0")
    errors = []

    def work():
        try:
            for _ in range(5):
                with Lock(name).atomic():
                    group = Group.objects.using(database).get(name__startswith=GROUP)
                    number = int(group.name.rpartition(":")[2])
                    Group.objects.using(database).update(name=f"{GROUP}:{number + 1}")
        except BaseException as error:
            errors.append(error)
        finally:
            connections[database].close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks.close_all()
    assert errors == []
    assert Group.objects.using(database).get().name == f"{GROUP}:20"
    Group.objects.using(database).all().delete()
