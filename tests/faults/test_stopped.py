"""A holder that is stopped past the end of its lease and goes on has lost, and can do no harm."""

import signal
import sqlite3
from contextlib import closing

import pytest
from django.db import connections

from distlock import Lock, LockLost, StaleToken
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually
from tests.databases import SERVERS
from tests.faults.conftest import EAGER, renewed
from tests.models import Seat
from tests.servers.process import await_rest

LEASE = 0.8  # seconds, of a lease that is to end
LASTING = 12  # and of one that is not


def sell(using, name, database, seat):
    """Hold the lock; once told to go on, find out whether it is still held, and try to write."""
    lock = Lock(name, using=using, lease=LEASE)
    answered(lock.acquire)
    token = lock.info().token  # also if this process has stood still until it ended
    write_line("held", token)
    read_line()
    write_line("held" if lock.held else "not held")
    try:
        lock.check()
        write_line("unharmed")
    except LockLost:
        write_line("LockLost")
    try:
        Seat.objects.using(database).filter(pk=seat).fenced_update(token, state="stale")
        write_line("written")
    except StaleToken:
        write_line("StaleToken")
    try:
        lock.release()
        write_line("released")
    except LockLost:
        write_line("LockLost")


def stop(process, database):
    """Stop a process, but not where it would keep everybody from SQLite's file."""

    def is_out_of_the_way():
        process.signal(signal.SIGSTOP)
        await_rest([process.pid])
        if is_free(database):
            return True
        process.signal(signal.SIGCONT)
        return False

    eventually(is_out_of_the_way)


def is_free(database):
    connection = connections[database]
    if connection.vendor != "sqlite":
        return True
    with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0)) as own:
        try:
            own.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
    return True


@pytest.fixture
def seat(database):
    seat = Seat.objects.using(database).create()
    yield seat
    Seat.objects.using(database).filter(pk=seat.pk).delete()


def test_a_stopped_holder_learns_of_its_loss_before_it_does_harm(
    child, actor, using, database, seat, name
):
    stopped = child(sell, using, name, database, seat.pk)
    token = int(stopped.line().split()[1])
    stop(stopped, database)
    successor = actor("thread").lock(name)
    assert successor.acquire(timeout=PATIENCE)
    assert successor.token > token
    assert (
        Seat.objects.using(database).filter(pk=seat.pk).fenced_update(successor.token, state="sold")
    )
    connections[database].close()
    stopped.tell("go on")  # it reads this the moment it runs again
    stopped.signal(signal.SIGCONT)
    assert stopped.finish() == ["not held", "LockLost", "StaleToken", "LockLost"]
    seat.refresh_from_db()
    assert (seat.state, seat.fence) == ("sold", successor.token)
    successor.verify()


@pytest.mark.every_day_on("postgresql")
def test_a_stopped_holder_whose_lock_nobody_took_has_lost_it_all_the_same(
    child, actor, using, database, seat, name
):
    """It cannot know what happened meanwhile."""
    stopped = child(sell, using, name, database, seat.pk)
    stopped.line()
    stop(stopped, database)
    lock = actor("thread").lock(name)
    eventually(lambda: not lock.locked())
    stopped.tell("go on")
    stopped.signal(signal.SIGCONT)
    assert stopped.finish()[:2] == ["not held", "LockLost"]


def sell_atomically(using, name, database, seat):
    try:
        with Lock(name, using=using, lease=LEASE).atomic():
            Seat.objects.using(database).filter(pk=seat).update(state="stale")
            write_line("written")
            read_line()
        write_line("committed")
    except LockLost:
        write_line("LockLost")


@pytest.mark.parametrize("kind", SERVERS)
def test_a_transaction_of_a_stopped_holder_is_rolled_back(
    child, actor, using, database, seat, name
):
    stopped = child(sell_atomically, using, name, database, seat.pk)
    assert stopped.line() == "written"
    stopped.signal(signal.SIGSTOP)
    successor = actor("thread").take(name)
    stopped.tell("go on")
    stopped.signal(signal.SIGCONT)
    assert stopped.finish() == ["LockLost"]
    seat.refresh_from_db()
    assert seat.state == "free"
    successor.verify()


def wait_for_it(using, name):
    lock = Lock(name, using=using, lease=LASTING)
    write_line("waiting")
    lock.acquire()
    write_line("held", lock.token)
    lock.verify()
    write_line("verified")


def test_a_stopped_waiter_keeps_nobody_from_the_lock(child, actor, using, database, name):
    """It may have been the next one, or been given the lock while it could not take it."""
    held = actor("thread").take(name)
    stopped = child(wait_for_it, using, name)
    assert stopped.line() == "waiting"
    stop(stopped, database)
    held.release()
    lock = actor("thread").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    stopped.signal(signal.SIGCONT)
    lock.verify()
    lock.release()
    assert stopped.line().startswith("held ")
    assert stopped.line() == "verified"


def hold_for_long(using, name):
    with Lock(name, using=using, lease=LASTING) as lock:
        write_line("held", lock.token)
        read_line()
        lock.verify()
        write_line("verified")


@EAGER
@pytest.mark.every_day_on("mariadb")
def test_a_holder_stopped_for_less_than_its_lease_goes_on(child, actor, kind, using, name):
    holder = child(hold_for_long, using, name)
    holder.line()
    tries = actor("thread")

    def stop_shortly():
        holder.signal(signal.SIGSTOP)
        holder.signal(signal.SIGCONT)
        assert not tries.tries(name)

    renewed(tries.lock(name), stop_shortly)
    holder.tell("go on")
    assert holder.line() == "verified"
    holder.finish()
