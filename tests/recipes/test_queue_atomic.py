"""``delivery.atomic()``: an acknowledgement that commits with the work, or not at all."""

from queue import Full

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from distlock import LockError, LockLost, LockNotHeld, LockUnavailable, NotSupported, recipes
from distlock.recipes import Queue
from tests.contract.actors import PATIENCE
from tests.contract.watch import passed
from tests.databases import ALIASES
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it

WORK = "done with a letter"


@pytest.fixture
def database(kind, using, sqlite):
    """The alias of the database that the transaction is to be in."""
    alias = ALIASES.get(kind, "default")
    Group.objects.using(alias).filter(name=WORK).delete()
    yield alias
    Group.objects.using(alias).filter(name=WORK).delete()
    connections[alias].close()


@pytest.fixture
def queue(using, name):
    """A queue with two letters."""
    queue = Queue(name, using=using)
    queue.put_many(["one", "two"])
    return queue


@pytest.fixture
def refused(kind, queue):
    """Whether it was refused by name, because the queue is in no database."""
    if kind in ALIASES:
        return False
    taken = queue.get()
    with pytest.raises(NotSupported, match="not kept in a database"), taken.atomic():
        raise AssertionError("the body ran")
    taken.ack()
    return True


def work(database):
    Group.objects.using(database).create(name=WORK)


def done(database):
    return Group.objects.using(database).filter(name=WORK).count()


def test_it_commits_with_the_work(refused, queue, database):
    if refused:
        return
    taken = queue.get()
    with taken.atomic():
        work(database)
    assert (done(database), queue.qsize()) == (1, 1)
    with pytest.raises(LockNotHeld):
        taken.ack()
    assert queue.get(timeout=PATIENCE).body == "two"


def test_it_is_rolled_back_with_the_work(refused, queue, database):
    if refused:
        return
    with pytest.raises(ZeroDivisionError), queue.get() as taken, taken.atomic():
        work(database)
        raise ZeroDivisionError
    assert (done(database), queue.qsize()) == (0, 2)
    again = queue.get(blocking=False)
    assert (again.body, again.attempt) == ("one", 2)
    again.ack()


def test_it_is_rolled_back_without_an_error(refused, queue, database):
    if refused:
        return
    with queue.get() as taken, taken.atomic():
        work(database)
        transaction.set_rollback(True, using=database)
    assert (done(database), queue.qsize()) == (0, 2)
    again = queue.get(blocking=False)
    assert (again.body, again.attempt) == ("one", 2)
    again.ack()


@pytest.mark.every_day_on("local", "sqlite")
def test_a_hook_that_fails_after_the_commit_leaves_it_acknowledged(refused, queue, database):
    if refused:
        return

    def fail():
        raise Full

    with pytest.raises(Full) as raised, queue.get() as taken, taken.atomic():
        work(database)
        transaction.on_commit(fail, using=database)
    assert not hasattr(raised.value, "__notes__")
    assert (done(database), queue.qsize()) == (1, 1)
    assert not taken.held
    with pytest.raises(LockNotHeld, match="acknowledged"):
        taken.check()


def test_what_was_lost_before_the_commit_is_rolled_back(kind, refused, queue, database):
    if refused:
        return
    taken = queue.get()
    if kind == "sqlite":  # nobody else can write while a transaction does
        assert queue.force_release(taken.id, taken.token)
    with pytest.raises(LockLost), taken.atomic():
        work(database)
        if kind != "sqlite":
            assert queue.force_release(taken.id, taken.token)
            again = queue.get(blocking=False)
            assert (again.body, again.attempt) == ("one", 2)
            again.ack()
    assert done(database) == 0
    assert queue.qsize() == (2 if kind == "sqlite" else 1)


@pytest.mark.brief
@pytest.mark.every_day_on("local", "postgresql")
@pytest.mark.not_on("sqlite")  # nobody else can write while a transaction does
def test_one_that_is_broken_in_its_transaction_is_told_as_lost_once(
    refused, queue, database, short, sent_events
):
    if refused:
        return
    taken = queue.get()
    with pytest.raises(LockLost), taken.atomic():
        assert queue.force_release(taken.id, taken.token)
        sent_events.wait_for("lost", queue.name)
    passed(short + 0.5)  # its lease has ended by now
    assert sent_events.words(queue.name).count("lost") == 1


def test_what_it_cannot_give_is_refused(refused, queue, database):
    if refused:
        return
    taken = queue.get()
    with (
        transaction.atomic(database),
        pytest.raises(LockError, match="inside a transaction"),
        taken.atomic(),
    ):
        raise AssertionError("the body ran")
    with pytest.raises(NotSupported, match="other"), taken.atomic(using="other"):
        raise AssertionError("the body ran")
    taken.ack()
    with pytest.raises(LockNotHeld), taken.atomic():
        raise AssertionError("the body ran")


@pytest.mark.not_on("local", "mariadb", "postgresql", "zookeeper", "etcd")
def test_nothing_can_be_put_in_the_file_after_the_transaction_has_written(database, name):
    with (
        transaction.atomic(database),
        pytest.raises(LockUnavailable, match=r"own transaction\. Do it before the transaction"),
    ):
        work(database)
        Queue(name).put("three")


@pytest.mark.not_on("local", "mariadb", "postgresql", "zookeeper", "etcd")
def test_nobody_joins_a_group_in_the_file_inside_a_transaction(database, name):
    wanted = "on SQLite this cannot be done inside a transaction. Do it before"
    with transaction.atomic(database), pytest.raises(NotSupported, match=wanted):
        recipes.Group(name).join()
