"""Processes that are stopped or killed while several of their threads wait, before everybody else.

What they waited for is not kept from the next process until their session ends. All leases are
long, and each test sees that the session of the dead process still goes on.
"""

import random
import signal
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial

import pytest

from distlock.recipes import Election, Group, Names, Queue, RWLock, Semaphore
from distlock.records import shared_backend
from distlock.records.seat_requests import SeatRequests
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.recipes.every_kind import ONE_LEASE, pytest_generate_tests  # noqa: F401
from tests.recipes.referee import Referee, write
from tests.recipes.taking import in_queue
from tests.recipes.test_seats_faults import stop
from tests.recipes.wrapping import in_thread

#: threads that wait in the process that dies
NUMBER = 4

pytestmark = pytest.mark.shared


@pytest.fixture
def using(kind, backend_settings, configured):
    """The alias of the backend under test, with leases that outlast a test."""
    # A process may be stopped while it waits for an answer, and then is late to read it.
    options = {"timeout": PATIENCE}
    if kind in ONE_LEASE:
        configured(backend_settings(kind, OPTIONS={**options, "session_timeout": PATIENCE}))
    else:
        configured(backend_settings(kind, OPTIONS=options, LEASE=2 * PATIENCE))
    return "default"


@pytest.fixture(autouse=True)
def rare_looks(monkeypatch):
    """Here nobody looks by itself within a test, but for those who may be behind a dead process."""
    monkeypatch.setattr(shared_backend.SharedBackend, "pause", 2 * PATIENCE)


class Seat:
    """A semaphore of one seat. ``take()`` waits, ``leave()`` lets the next one in."""

    def __init__(self, name):
        self._look = partial(in_queue, "default", name)
        self._new = partial(Semaphore, name, 1)
        self._held = self._new()

    def hold(self):
        self._held.acquire()

    def waiting(self):
        return self._look()

    def take(self):
        lock = self._new()
        lock.acquire()
        return lock.release

    def leave(self):
        self._held.release()


class Reader(Seat):
    """Readers wait, and the next one is a writer."""

    def __init__(self, name):
        self._look = partial(in_queue, "default", name, RWLock)
        self._held, self._new = RWLock(name).writer(), RWLock(name).reader


class Writer(Reader):
    def __init__(self, name):
        super().__init__(name)
        self._new = RWLock(name).writer


class Candidate:
    def __init__(self, name):
        self._name, self._leader = name, Election(name, "leader")

    def hold(self):
        self._leader.campaign()

    def waiting(self):
        return len(self._leader.candidates()) - 1

    def take(self):
        election = Election(self._name)
        election.campaign()
        return election.resign

    def leave(self):
        self._leader.resign()


class Consumer:
    """The queue is empty; the first one who waits holds the seat of the line."""

    side = "get"

    def __init__(self, name):
        self._name, self._queue = name, Queue(name, 1)

    def hold(self):
        pass

    def waiting(self):
        info = Semaphore(f"queue:{self.side}:{self._name}").info()
        return info.taken + len(info.waiters)

    def take(self):
        return self._queue.get().ack

    def leave(self):
        self._queue.put("an item")


class Producer(Consumer):
    """The queue is full."""

    side = "put"

    def hold(self):
        self._queue.put("the first one")

    def take(self):
        self._queue.put("another one")
        return lambda: self._queue.get().ack()

    def leave(self):
        self._queue.get().ack()


class Name:
    """Those who wait for a name are in no line; all the same none of them keeps it."""

    def __init__(self, name):
        self._names, self._waiting = Names(name), 0

    def hold(self):
        self._held = self._names.register("front", "1")

    def waiting(self):
        return 0

    def take(self):
        return self._names.register("front", "2", timeout=None).unregister

    def leave(self):
        self._held.unregister()


WAYS = {one.__name__: one for one in (Seat, Reader, Writer, Candidate, Consumer, Producer, Name)}


def wait_in_line(way, name):
    """As a child: wait in several threads; say when one gets what it waits for, and leave it."""
    Group(name).join()
    threads = [threading.Thread(target=take_one, args=(WAYS[way](name),)) for _ in range(NUMBER)]
    for thread in threads:
        thread.start()
    write_line("waiting")
    for thread in threads:
        thread.join()


def take_one(way):
    leave = way.take()
    write_line("got it")
    leave()


def taken_in_a_thread(way):
    """Take it on a thread; return what leaves it there. It has an event, ``has_it``."""
    has_it, go_on = threading.Event(), threading.Event()

    def work():
        leave = way.take()
        has_it.set()
        assert go_on.wait(PATIENCE)
        leave()

    working = in_thread(work)

    def leave():
        go_on.set()
        working()

    leave.has_it = has_it
    return leave


@pytest.fixture
def line(child, kind, using, name):
    """``line(way, how)``: somebody waits behind a dead process; return that, and the process.

    The result of the first is how to leave what it got.
    """

    def make(way, how):
        way.hold()
        dead = child(wait_in_line, type(way).__name__, name)
        dead.line()
        number = 0 if isinstance(way, Name) else NUMBER
        eventually(lambda: way.waiting() == number)
        behind = WAYS["Writer" if isinstance(way, Reader) else type(way).__name__](name)
        leave = taken_in_a_thread(behind)
        eventually(lambda: way.waiting() == (number and number + 1))
        (stop(dead, kind) if how == "stopped" else dead.kill())
        way.leave()
        assert leave.has_it.wait(PATIENCE)
        assert len(Group(name).members()) == 1, "the session of the dead process has ended"
        return leave, dead

    return make


DEAD = pytest.mark.parametrize("how", ["stopped", pytest.param("killed", marks=pytest.mark.slow)])


@DEAD
@pytest.mark.every_day_on("postgresql", "zookeeper")
@pytest.mark.parametrize("way", ["Seat", "Candidate"])
def test_a_dead_process_in_line_keeps_nobody_out(line, name, way, how):
    leave, _ = line(WAYS[way](name), how)
    leave()


@DEAD
@pytest.mark.every_day_on("postgresql")
@pytest.mark.parametrize("way", ["Reader", "Writer", "Consumer", "Producer", "Name"])
def test_so_it_is_with_all_that_is_waited_for(line, name, way, how):
    leave, _ = line(WAYS[way](name), how)
    leave()


@pytest.mark.every_day_on("postgresql")
@pytest.mark.parametrize("way", ["Seat", "Candidate"])
def test_those_that_were_passed_over_and_live_line_up_anew(line, name, way):
    """They are told nothing that is not so: none has it before the one that passed by has left."""
    what = WAYS[way](name)
    leave, living = line(what, "stopped")
    living.signal(signal.SIGCONT)
    # A leader stands, too.
    eventually(lambda: what.waiting() == NUMBER)
    leave()
    assert living.finish() == ["got it"] * NUMBER, living.errors


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Writer", "Consumer", "Producer", "Name"])
def test_so_do_all_others(line, name, way):
    what = WAYS[way](name)
    leave, living = line(what, "stopped")
    living.signal(signal.SIGCONT)
    leave()
    for _ in range(NUMBER if way == "Consumer" else 0):
        Queue(name).put("one more")
    assert living.finish() == ["got it"] * NUMBER, living.errors


@pytest.fixture
def looks(monkeypatch):
    """Whom those who wait in this process have passed over, at each look."""
    passed_over, look = [], SeatRequests.look

    def note(requests, claim, wait, passed_by, *args, **options):
        passed_over.append(passed_by)
        return look(requests, claim, wait, passed_by, *args, **options)

    monkeypatch.setattr(SeatRequests, "look", note)
    return passed_over


@pytest.mark.every_day_on("postgresql")
def test_one_that_is_in_line_is_not_passed_over_while_it_waits(child, using, name, looks):
    """A control: it lives, and nobody has left a seat, for longer than anybody has patience."""
    way = Seat(name)
    way.hold()
    first = child(wait_in_line, "Seat", name)
    first.line()
    eventually(lambda: way.waiting() == NUMBER)
    leave = taken_in_a_thread(WAYS["Seat"](name))
    eventually(lambda: way.waiting() == NUMBER + 1)
    looks.clear()
    eventually(lambda: len(looks) > 2 or any(looks))
    assert set(looks) == {frozenset()}
    way.leave()
    assert [first.line() for _ in range(NUMBER)] == ["got it"] * NUMBER
    leave()
    first.finish()


#: what a writer counts for in the log: more than all readers together
ALONE = 1000
KINDS_OF_WORK = {
    "seats": (lambda name, _: Semaphore(name, 2), lambda _: 1, 2),
    "sides": (
        lambda name, dice: RWLock(name).writer() if dice > 0.7 else RWLock(name).reader(),
        lambda lock: ALONE if "Writer" in type(lock).__name__ else 1,
        ALONE,
    ),
    "election": (lambda name, _: Election(name), lambda _: 1, 1),
    #: a control: nobody is kept out
    "nothing": (lambda *_: nullcontext(), lambda _: 1, None),
}


def work_for(name, what, log, who, seconds):
    """As a child: several threads enter again and again, and write down how many are in."""
    new, weight, _ = KINDS_OF_WORK[what]
    ends = time.monotonic() + seconds

    def work(dice):
        while time.monotonic() < ends:
            lock = new(name, dice.random())
            with lock:
                write(log, weight(lock))
                time.sleep(dice.random() * 0.01)
                write(log, -weight(lock))

    threads = [
        threading.Thread(target=work, args=(random.Random(f"{who}:{one}"),)) for one in range(3)
    ]
    for thread in threads:
        thread.start()
    write_line("working")
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["seats", "sides", "election"])
def test_nobody_enters_too_many_however_often_others_stand_still(
    child, kind, using, name, what, tmp_path
):
    """Each is stopped for longer than it is waited for, so it is passed over again and again."""
    referee, dice = Referee(tmp_path / "log"), random.Random(name)
    working = [child(work_for, name, what, str(referee.path), who, 9) for who in range(3)]
    for one in working:
        one.line()
    for _ in range(4):
        victim = dice.choice(working)
        with suppress(ProcessLookupError):
            stop(victim, kind)
            passed(1.5 + dice.random())
            victim.signal(signal.SIGCONT)
    for one in working:
        one.finish(2 * PATIENCE)
    assert 0 < referee.most <= KINDS_OF_WORK[what][2]


@pytest.mark.every_day_on("postgresql")
def test_the_log_shows_it_if_nobody_is_kept_out(child, kind, using, name, tmp_path):
    referee = Referee(tmp_path / "log")
    working = [child(work_for, name, "nothing", str(referee.path), who, 1) for who in range(2)]
    for one in working:
        one.finish()
    assert referee.most > 2
