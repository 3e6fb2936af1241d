"""PostgreSQL pays for long waits, so who waits for long does so in another way, in its turn."""

import signal

import pytest

from distlock import Lock
from distlock.backends.database.waiting.postgresql import PostgreSQL
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.waiting.engine import set_pace, unhurried


@pytest.fixture(scope="module")
def kind():
    return "postgresql"


def shorten(seconds):
    """Let waits of this process stand aside so soon."""
    PostgreSQL.longest_wait = seconds


@pytest.fixture
def impatient(actor):
    """``impatient()``: a process whose waits stand aside after a moment."""
    made = []

    def make():
        made.append(actor())
        made[-1].call(shorten, 0.5).result(PATIENCE)
        made[-1].call(set_pace, 3.0).result(PATIENCE)  # it is looked at after so long
        return made[-1]

    yield make
    for one in made:
        one.end()  # other tests want patient ones


@pytest.fixture
def stood_aside(engine):
    """``stood_aside(number)``: wait until so many do."""
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
def test_nobody_loses_its_turn(impatient, actor, engine, stood_aside, name):
    """The first has the native lock, two stand aside, and the last is in the queue."""
    held = actor("thread").take(name)
    head = actor().lock(name)
    line = [(head, head.start("acquire"))]
    engine.reaches_line(1)
    for number in range(1, 3):
        lock = impatient().lock(name)
        line.append((lock, lock.start("acquire")))
        stood_aside(number + 1)
    last = actor().lock(name)
    line.append((last, last.start("acquire")))
    engine.reaches_waiting(1)
    assert len(held.info().waiters) == 4
    assert Lock(name).acquire(timeout=0.3) is False
    held.release()
    for number, (lock, got) in enumerate(line):
        assert got.result(PATIENCE)
        assert sum(future.done() for _, future in line) == number + 1
        assert len(lock.info().waiters) == 3 - number
        lock.release()
    engine.reaches_line(0)


@unhurried
def test_it_comes_before_those_who_came_later(impatient, actor, engine, stood_aside, name):
    held = actor().take(name)
    first, second, third = actor().lock(name), impatient().lock(name), actor().lock(name)
    line = [(first, first.start("acquire"))]
    engine.reaches_line(1)
    line.append((second, second.start("acquire")))
    stood_aside(2)  # the first as well, so that it is not overtaken
    line.append((third, third.start("acquire")))
    engine.reaches_waiting(1)
    held.release()
    for number, (lock, got) in enumerate(line, 1):
        assert got.result(PATIENCE)
        assert sum(future.done() for _, future in line) == number
        lock.release()


def test_it_is_in_nobodys_way(impatient, actor, engine, stood_aside, name):
    held = actor().take(name)
    actor().lock(name).start("acquire")
    engine.reaches_line(1)
    impatient().lock(name).start("acquire")
    stood_aside(2)
    oldest = "SELECT COUNT(*) FROM pg_stat_activity WHERE usename = 'distlock' AND {}"
    eventually(lambda: engine.number(oldest.format("backend_xmin IS NOT NULL")) == 0)
    held.verify()


@pytest.mark.slow
def test_one_that_is_stopped_keeps_nobody_out(impatient, actor, engine, stood_aside, name):
    held, stopped = actor("thread").take(name), impatient()
    head = actor().lock(name)
    got = head.start("acquire")
    engine.reaches_line(1)
    waiting = stopped.lock(name).start("acquire")
    stood_aside(2)
    stopped.child.signal(signal.SIGSTOP)
    held.release()
    assert got.result(PATIENCE)
    head.release()
    with Lock(name, timeout=PATIENCE):
        assert not waiting.done()
    stopped.child.signal(signal.SIGCONT)
    assert waiting.result(PATIENCE)


@pytest.mark.slow
def test_one_that_is_killed_or_gives_up_leaves_nothing(impatient, actor, engine, stood_aside, name):
    held, killed = actor("thread").take(name), impatient()
    head = actor().lock(name)
    got = head.start("acquire")
    engine.reaches_line(1)
    killed.lock(name).start("acquire")
    assert impatient().lock(name).acquire(timeout=5) is False
    stood_aside(2)
    killed.end()
    held.release()
    assert got.result(PATIENCE)
    head.release()
    stood_aside(0)
    engine.reaches_line(0)
