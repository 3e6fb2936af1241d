"""Nobody is told that someone else has a lock unless the database has said so."""

from concurrent.futures import wait
from contextlib import ExitStack, closing, contextmanager

import pytest
from django.db import connections

from distlock import Lock, LockUnavailable
from distlock.concurrency.clock import clock
from tests.contract.actors import BRIEF, PATIENCE, answered
from tests.contract.watch import Once, eventually, in_line, steadily, waits
from tests.databases import SERVERS
from tests.faults.conftest import renewed

pytestmark = [pytest.mark.once, pytest.mark.parametrize("kind", SERVERS)]

#: Seconds beyond a limit that a loaded machine may take.
SLACK = 5.0
ANSWER_LIMIT = 4


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def answer_limit():
    return ANSWER_LIMIT


RECORDS = "database_lock_directory", "database_lock_record", "database_lock_session"

LOCKING = {
    ("mysql", "row"): "SELECT * FROM database_lock WHERE `lock` = %s FOR UPDATE",
    ("postgresql", "row"): "SELECT * FROM database_lock WHERE lock = %s FOR UPDATE",
    ("mysql", "table"): "LOCK TABLES database_lock READ",
    ("postgresql", "table"): "LOCK TABLE database_lock IN SHARE MODE",
    ("mysql", "records"): f"LOCK TABLES {', '.join(f'{table} READ' for table in RECORDS)}",
    ("postgresql", "records"): f"LOCK TABLE {', '.join(RECORDS)} IN SHARE MODE",
    ("mysql", "directories"): "SELECT * FROM database_lock_directory FOR UPDATE",
    ("postgresql", "directories"): "SELECT * FROM database_lock_directory FOR UPDATE",
    ("mysql", "sessions"): "SELECT * FROM database_lock_session FOR UPDATE",
    ("postgresql", "sessions"): "SELECT * FROM database_lock_session FOR UPDATE",
}


@contextmanager
def locked_by_an_operator(database, what, name=""):
    """Let a transaction beside the locks keep all others from writing a row, or tables."""
    with closing(connections[database].copy()) as connection:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute(LOCKING[connection.vendor, what], [name] if what == "row" else None)
        yield
        connection.rollback()


# A server that falls silent


@pytest.mark.parametrize(
    ("who", "timeout"), [("thread", 1), slow("task", 1), slow("thread", 6), slow("task", 6)]
)
@pytest.mark.every_day_on("postgresql")
def test_a_silent_server_is_nobody_who_has_the_lock(actor, using, server, kind, who, timeout, name):
    """The process has waited for it a moment before, and would ask by waiting once more."""
    held, lock = actor("process").take(name), actor(who).lock(name)
    assert answered(lambda: lock.acquire(timeout=0.3)) is False
    held.release()
    server(kind).pause()
    began = clock()
    with pytest.raises(LockUnavailable):
        lock.acquire(timeout=timeout)
    assert clock() - began < min(timeout, ANSWER_LIMIT) + SLACK


@pytest.mark.slow
@pytest.mark.parametrize("who", ["thread", "task"])
def test_another_thread_that_asks_a_silent_server_does_not_have_the_lock(
    actor, using, server, kind, who, name
):
    with Lock(name):
        pass
    server(kind).pause()
    first = actor("thread").lock(name).start("acquire", blocking=False)
    eventually(lambda: in_line(using, name) == 1)
    with pytest.raises(LockUnavailable):
        actor(who).lock(name).acquire(blocking=False)
    with pytest.raises(LockUnavailable):
        first.result(PATIENCE)


@pytest.mark.every_day_on("postgresql")
def test_who_has_waited_is_told_that_the_lock_is_held(actor, using, name):
    actor("process").take(name)
    lock = actor("thread").lock(name)

    def three_times():
        return [lock.acquire(timeout=BRIEF) for _ in range(3)]

    assert answered(three_times) == [False] * 3


# Operators at work on the table


@pytest.mark.parametrize(
    ("what", "timeout"),
    [
        ("row", 0.5),
        ("row", 1.5),
        slow("row", 4),
        slow("table", 0.5),
        slow("table", 1.5),
        slow("table", 4),
    ],
)
def test_a_free_lock_that_an_operator_keeps_locked_is_not_held(
    actor, database, what, timeout, name
):
    with Lock(name):
        pass
    lock = actor("thread").lock(name)

    def told():
        began = clock()
        with pytest.raises(LockUnavailable) as error:
            lock.acquire(timeout=timeout)
        assert clock() - began < timeout + SLACK
        return str(error.value)

    with locked_by_an_operator(database, what, name):
        # Not each time, because the server may not answer just then.
        assert any("locked" in told() for _ in range(3))
    assert answered(lambda: lock.acquire(timeout=PATIENCE))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["directories", "records"])
@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.5}, {"timeout": 4}], ids=str)
def test_free_seats_that_an_operator_keeps_locked_are_not_taken(actor, database, what, how, name):
    seats = actor("thread").lock(name, make="semaphore", value=2)
    assert seats.acquire()
    seats.release()
    with locked_by_an_operator(database, what), pytest.raises(LockUnavailable):
        seats.acquire(**how)
    assert seats.acquire(timeout=PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["row", "table"])
def test_those_behind_one_who_cannot_take_it_are_told_too(actor, database, what, name):
    with Lock(name):
        pass
    with locked_by_an_operator(database, what, name):
        first = actor("process").lock(name).start("acquire", timeout=PATIENCE)
        assert waits(first, 0.5)
        behind = actor("task").lock(name)

        def told():
            with pytest.raises(LockUnavailable) as error:
                behind.acquire(timeout=1.5)
            return str(error.value)

        # Not each time, because the server may not answer just then.
        assert any("locked" in told() for _ in range(3))
    assert first.result(PATIENCE)


@pytest.mark.parametrize(
    ("what", "timeout"), [("row", 1), slow("row", 1.5), slow("table", 1), slow("table", 1.5)]
)
@pytest.mark.every_day_on("mariadb")
def test_a_held_lock_that_an_operator_keeps_locked_is_held(actor, database, what, timeout, name):
    actor("process").take(name, lease=60)
    with locked_by_an_operator(database, what, name):
        for who in ("thread", "task"):
            lock = actor(who).lock(name)
            assert answered(lambda lock=lock: lock.acquire(timeout=timeout)) is False


@pytest.mark.slow
def test_whoever_waits_for_ever_gets_it_when_the_operator_is_done(actor, database, name):
    with Lock(name):
        pass
    with locked_by_an_operator(database, "row", name):
        waiting = actor("thread").lock(name).start("acquire")
        assert waits(waiting, 3)
    assert waiting.result(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("leases", [(3, 3.3, 3.6), (6, 12)], ids=["short", "long"])
def test_a_row_that_an_operator_keeps_locked_costs_no_other_lock_its_lease(
    actor, database, leases, name
):
    def attempt(lease):
        stuck, kept, row = Once(), Once(), f"{name}:{lease}:stuck"
        actor("thread").take(row, lease=lease, on_lost=stuck)
        lock = actor("thread").take(f"{name}:{lease}:kept", lease=lease, on_lost=kept)
        with locked_by_an_operator(database, "row", row):
            stuck.wait()
            renewed(lock, lock.check)
            lock.verify()
        assert not kept.calls

    steadily(attempt, *leases)


@pytest.mark.slow
def test_nor_is_a_seat_lost_because_the_row_of_another_one_is_locked(actor, database, name):
    """Both have sessions of their own, which are renewed by one statement."""
    stuck, kept = Once(), Once()
    how = {"make": "semaphore", "value": 1}
    actor("thread").take(f"{name}:stuck", lease=6, on_lost=stuck, **how)
    with locked_by_an_operator(database, "sessions"):
        lock = actor("thread").take(f"{name}:kept", lease=6.1, on_lost=kept, **how)
        stuck.wait()
        renewed(lock)
        lock.verify()
    assert not kept.calls


@pytest.mark.slow
def test_threads_that_ask_for_locked_rows_do_not_keep_holders_from_renewing(actor, database, name):
    """They share a few sessions of the process, all of which are then waiting for those rows."""

    def attempt(lease):
        rows = [f"{name}:{lease}:{number}" for number in range(24)]
        for row in rows:
            with Lock(row):
                pass
        lost, kept = Once(), f"{name}:{lease}:kept"
        lock = actor("thread").take(kept, lease=lease, on_lost=lost)
        seen = actor("process").lock(kept)
        with ExitStack() as operators:
            for row in rows:
                operators.enter_context(locked_by_an_operator(database, "row", row))
            asking = [actor("thread").lock(row).start("acquire", timeout=PATIENCE) for row in rows]
            for _ in range(3):
                renewed(seen, lock.check)
            lock.check()
        wait(asking, PATIENCE)  # some have given up: there was no session for them in time
        lock.verify()
        assert not lost.calls

    steadily(attempt, 3, 3.3, 3.6)
