"""Who waits for long on PostgreSQL leaves the queue, which costs the server, and keeps its turn."""

import signal
from concurrent.futures import FIRST_COMPLETED, wait

import pytest

from distlock import Lock
from distlock.backends.database.postgresql import PostgreSQLLocks
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.queue.engine import set_pace, unhurried

#: seconds between two who come, after which their order is sure; it is promised for two
APART = 5.0


@pytest.fixture(scope="module")
def kind():
    return "postgresql"


def shorten(seconds):
    """Let waits of this process be long ones so soon."""
    PostgreSQLLocks.longest_wait = seconds


@pytest.fixture
def long_waiter(actor):
    """``long_waiter()``: a process whose waits are long ones after a moment.

    They are looked at after ``grace`` seconds, and overtake those who do not come in that time.
    """
    made = []

    def make(grace=3.0):
        made.append(actor())
        made[-1].call(shorten, 0.5).result(PATIENCE)
        made[-1].call(set_pace, grace).result(PATIENCE)
        return made[-1]

    yield make
    for one in made:
        one.end()  # other tests want patient ones


@pytest.fixture
def reaches_long_waits(engine):
    """``reaches_long_waits(number)``: wait until so many wait for long."""
    return lambda number: eventually(
        lambda: (
            engine.number(
                "SELECT COUNT(*) FROM pg_locks"
                " WHERE locktype = 'advisory' AND granted AND objsubid = 2"
            )
            == number
        )
    )


@pytest.mark.slow
@unhurried
def test_nobody_loses_its_turn(long_waiter, actor, engine, reaches_long_waits, name):
    """The first has the native lock, two have left the queue, and the last is in it."""
    held = actor("thread").take(name)
    line = []
    for number in range(3):
        lock = long_waiter(grace=10.0).lock(name)
        line.append((lock, lock.start("acquire")))
        reaches_long_waits(number + 1)
        passed(APART)
    last = actor().lock(name)
    line.append((last, last.start("acquire")))
    engine.reaches_waiting(1)
    eventually(lambda: len(held.info().waiters) == 4)  # who does something else is not seen
    assert Lock(name).acquire(timeout=0.3) is False
    held.release()
    for number, (lock, got) in enumerate(line):
        assert got.result(PATIENCE)
        assert sum(future.done() for _, future in line) == number + 1
        eventually(lambda lock=lock, left=3 - number: len(lock.info().waiters) == left)
        lock.release()
    engine.reaches_line(0)


@pytest.mark.slow
@unhurried
def test_it_comes_before_those_who_came_later(long_waiter, actor, engine, reaches_long_waits, name):
    held = actor().take(name)
    ahead = {}
    for number in range(2):
        lock = long_waiter().lock(name)
        ahead[lock.start("acquire")] = lock
        reaches_long_waits(number + 1)
    third = actor().lock(name)
    last = third.start("acquire")
    engine.reaches_waiting(1)
    held.release()
    while ahead:  # in any order: these two came at almost the same time
        (got,) = wait([*ahead, last], PATIENCE, FIRST_COMPLETED).done
        assert got is not last and got.result()
        ahead.pop(got).release()
    assert last.result(PATIENCE)


def test_it_is_in_nobodys_way(long_waiter, actor, engine, reaches_long_waits, name):
    held = actor().take(name)
    actor().lock(name).start("acquire")
    engine.reaches_line(1)
    long_waiter().lock(name).start("acquire")
    reaches_long_waits(1)
    oldest = "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = 'distlock' AND {}"
    eventually(lambda: engine.number(oldest.format("backend_xmin IS NOT NULL")) == 0)
    held.verify()


@pytest.mark.slow
def test_one_that_is_stopped_keeps_nobody_out(long_waiter, actor, engine, reaches_long_waits, name):
    held, stopped = actor("thread").take(name), long_waiter()
    head = actor().lock(name)
    got = head.start("acquire")
    engine.reaches_line(1)
    waiting = stopped.lock(name).start("acquire")
    reaches_long_waits(1)
    stopped.child.signal(signal.SIGSTOP)
    held.release()
    assert got.result(PATIENCE)
    head.release()
    with Lock(name, timeout=PATIENCE):
        assert not waiting.done()
    stopped.child.signal(signal.SIGCONT)
    assert waiting.result(PATIENCE)


@pytest.mark.slow
def test_one_that_is_killed_or_gives_up_leaves_nothing(
    long_waiter, actor, engine, reaches_long_waits, name
):
    held, killed = actor("thread").take(name), long_waiter()
    head = actor().lock(name)
    got = head.start("acquire")
    engine.reaches_line(1)
    killed.lock(name).start("acquire")
    assert long_waiter().lock(name).acquire(timeout=5) is False
    reaches_long_waits(1)
    killed.end()
    held.release()
    assert got.result(PATIENCE)
    head.release()
    reaches_long_waits(0)
    engine.reaches_line(0)
