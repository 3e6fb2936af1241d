"""How many wait is told of all threads, though a process asks a backend once for all of its own."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading

import pytest

from distlock import Lock
from distlock.backends.store import observers
from distlock.concurrency.clock import clock
from tests.commands.processes import crowd, hold_before_crowd
from tests.contract.watch import eventually

pytestmark = pytest.mark.every_day_on("postgresql", "zookeeper")

HOST = socket.gethostname()


@pytest.fixture(params=["mariadb", "postgresql", "zookeeper", "etcd"])
def kind(request):
    """The kinds that know who waits."""
    return request.param


def counted(name="stock"):
    info = Lock(name).info()
    return info.waiting, info.waiting_processes


def numbers(entry):
    return entry["waiting"], entry["waiting_processes"], len(entry["waiters"])


def seen(shown, *patterns):
    return all(re.search(one, shown) for one in patterns)


def test_they_are_counted_in_each_process_while_it_lives(shared, run, run_json, taken, child):
    (lock,) = taken("stock", lease=None)
    crowds = [child(crowd, "stock", 5), child(crowd, "stock", 4)]
    # Between two statements that wait, a waiter is not seen for a moment.
    eventually(lambda: counted() == (9, 2))
    eventually(lambda: " 9 in 2 processes " in run("list").out)
    behind = [
        f"behind +{number} more in {HOST}:{process.pid}\n"
        for process, number in zip(crowds, (4, 3), strict=True)
    ]
    eventually(lambda: seen(run("show", "stock").out, "waiters +9 in 2 processes\n", *behind))
    eventually(lambda: numbers(run_json("list")["locks"][0]) == (9, 2, 2))
    crowds[0].kill()
    eventually(lambda: counted() == (4, 1))
    lock.release()
    assert crowds[1].line() == "done"
    eventually(lambda: counted() == (0, 0))


def test_those_behind_a_holder_of_their_process_are_counted_with_it(shared, run, child):
    """Its process has no waiter that the backend knows."""
    holder = child(hold_before_crowd, "stock", 3)
    assert holder.line() == "held"
    eventually(lambda: counted() == (3, 1))
    assert Lock("stock").info().waiters == ()
    assert seen(run("show", "stock").out, "waiters +3 in 1 process\n")
    holder.tell()
    assert holder.line() == "done"
    eventually(lambda: counted() == (0, 0))


def test_a_crowd_of_this_process_is_counted_as_it_is_now(shared, run, taken):
    (lock,) = taken("stock", lease=None)
    threads = [threading.Thread(target=crowd, args=("stock", 1)) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: counted() == (3, 1))
    assert [waiter.pid for waiter in Lock("stock").info().waiters] == [os.getpid()] * 3
    assert " 3 in 1 process " in run("list").out
    lock.release()
    for thread in threads:
        thread.join()


@pytest.fixture
def often_switched():
    """Each thread runs for a moment only before it is another one's turn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_process_writes_its_numbers_seldom_however_many_come_and_go(shared, often_switched):
    """The lock changes hands hundreds of times, or thousands, meanwhile."""
    began, writes, over = clock(), [], threading.Event()

    def note(store, directory, revision):
        if store is shared.store:  # others are of what earlier tests have left
            writes.append(directory)
            over.set()

    def come_and_go():
        while not over.is_set():
            with Lock("stock"):
                turns.append(1)

    turns: list[int] = []
    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    observers.append(note)
    try:
        for thread in threads:
            thread.start()
        assert over.wait(60)
        for thread in threads:
            thread.join()
    finally:
        observers.remove(note)
    assert len(turns) > len(writes) * 10
    assert set(writes) == {"waiting"}
    assert len(writes) <= 1 + (clock() - began) / 5
