"""Waiting on SQLite: nobody gets all the turns, and nobody who has the mutex blocks it."""

import os
import signal
import time
from itertools import pairwise

import pytest

from distlock import Lock
from distlock.backends.database.sqlite import FileMutex
from distlock.concurrency.clock import clock
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.faults.checker import Log

PROCESSES = 4
#: of each process, at the least
TURNS = 40
#: seconds after which they end all the same, where one gets all the turns
SECONDS = 20
#: of all turns; without the mutex, most are had by who had the one before
MOST_REPEATED = 0.3


@pytest.fixture(params=["sqlite"])
def kind(request):
    """The kind of database."""
    return request.param


@pytest.fixture
def using(backend_settings, kind, settings):
    settings.DISTLOCK = backend_settings(kind)
    return "default"


@pytest.fixture
def path(using, settings):
    """The file of the database."""
    return settings.DATABASES[settings.DISTLOCK[using]["OPTIONS"]["database"]]["NAME"]


def take_turns(using, name, log, ready):
    """Leave the lock and want it again, without any pause."""
    log, ready = Log(log), Log(ready)
    lock = Lock(name, using=using)
    ready.write("ready", os.getpid())
    while len(ready.events()) < PROCESSES:
        time.sleep(0.01)
    end, turns = clock() + SECONDS, 0
    while clock() < end and len(ready.events()) < 2 * PROCESSES:  # all have had enough
        with lock:
            log.write("enter", lock.token, os.getpid())
            time.sleep(0.002)
        turns += 1
        if turns == TURNS:
            ready.write("enough", os.getpid())


@pytest.mark.slow
def test_who_leaves_and_comes_again_does_not_overtake_those_who_wait(child, using, name, tmp_path):
    path = str(tmp_path / "turns")
    arguments = (using, name, path, str(tmp_path / "ready"))
    workers = [child(take_turns, *arguments) for _ in range(PROCESSES)]
    for worker in workers:
        worker.finish()
    log = Log(path)
    pids = [event[2] for event in log.events()]
    log.close()
    everybody = [str(worker.pid) for worker in workers]
    assert min(map(pids.count, everybody)) >= TURNS
    # Judged by their order, while all were there: a slow machine changes how many turns there are.
    begin = max(pids.index(pid) for pid in everybody)
    end = len(pids) - max(pids[::-1].index(pid) for pid in everybody)
    together = pids[begin:end]
    repeated = sum(pid == before for before, pid in pairwise(together))
    assert repeated <= MOST_REPEATED * len(together), f"{repeated} of {len(together)}"


def keep_locked(path, name):
    """Keep the mutex locked."""
    with FileMutex(path, name) as mutex:
        write_line(mutex.try_lock())
        signal.pause()


def test_one_at_a_time_has_the_mutex_and_the_dead_have_not(child, path, name):
    inside = child(keep_locked, path, name)
    assert inside.line() == "True"
    with FileMutex(path, name) as mutex, FileMutex(path, f"{name}:other") as other:
        assert other.try_lock()
        assert not mutex.try_lock()
        inside.kill()
        assert mutex.try_lock()


def test_one_who_keeps_the_mutex_blocks_nobody_for_long(child, path, using, name):
    inside = child(keep_locked, path, name)
    assert inside.line() == "True"
    lock = Lock(name, using=using)
    assert lock.acquire(timeout=PATIENCE)
    lock.release()
    assert lock.acquire(blocking=False)
    lock.release()
    assert lock.acquire(timeout=0.01)  # the last look is made at the end of the wait
    lock.release()


@pytest.mark.parametrize("database", [":memory:", "file:locks?mode=memory&cache=shared", ""])
def test_where_there_is_no_file_all_have_the_mutex(database, name):
    with FileMutex(database, name) as one, FileMutex(database, name) as two:
        assert one.try_lock()
        assert two.try_lock()


def test_where_no_file_can_be_made_everybody_gets_in(tmp_path, name):
    database = tmp_path / "here.sqlite3"
    database.touch()
    (tmp_path / "here.sqlite3-distlock").mkdir()
    with FileMutex(str(database), name) as one:
        assert one.try_lock()


def test_a_file_that_cannot_be_opened_for_a_while_is_opened_later(child, tmp_path, name):
    database = tmp_path / "here.sqlite3"
    database.touch()
    in_the_way = tmp_path / "here.sqlite3-distlock"
    in_the_way.mkdir()
    with FileMutex(str(database), name) as one:
        assert one.try_lock()
    in_the_way.rmdir()
    assert child(keep_locked, str(database), name).line() == "True"
    with FileMutex(str(database), name) as two:
        assert not two.try_lock()


def test_a_child_of_a_fork_does_not_unlock_the_mutex_of_its_parent(path, name):
    with FileMutex(path, name) as mutex:
        assert mutex.try_lock()
        if (pid := os.fork()) == 0:
            mutex.__exit__(None, None, None)
            with FileMutex(path, name) as mine:
                os._exit(1 if mine.try_lock() else 0)
        assert os.waitpid(pid, 0)[1] == 0
