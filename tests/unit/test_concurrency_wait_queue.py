"""The queue in which threads wait loses no item and no wake-up."""

import sys
import threading
import time
from collections import Counter
from queue import Empty
from types import SimpleNamespace

import pytest

from distlock.concurrency.threads import WaitQueue
from tests.contract.watch import eventually

PATIENCE = 20.0


@pytest.fixture
def restless():
    """Change the running thread all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_items_come_in_order_and_nothing_comes_too_late():
    queue = WaitQueue()
    assert queue.empty()
    for item in range(3):
        queue.put(item)
    assert not queue.empty()
    assert [queue.get(0.0) for _ in range(3)] == [0, 1, 2]
    for seconds in (0.0, 0.01):
        with pytest.raises(Empty):
            queue.get(seconds)


@pytest.mark.parametrize("consumers", [1, 8])
def test_each_item_is_got_once_by_one_of_several_threads(restless, consumers):
    queue, got, late = WaitQueue(), [], []

    def consume():
        while (item := queue.get(PATIENCE)) is not None:
            got.append(item)
            late.append(time.monotonic() - item[2])

    def produce(number):
        for count in range(500):
            queue.put((number, count, time.monotonic()))

    threads = [threading.Thread(target=consume) for _ in range(consumers)]
    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads + producers:
        thread.start()
    for thread in producers:
        thread.join()
    eventually(queue.empty)
    for _ in threads:
        queue.put(None)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    counted = Counter((number, count) for number, count, _ in got)
    assert set(counted) == {(number, count) for number in range(4) for count in range(500)}
    assert max(counted.values()) == 1
    # Nobody has slept beside an item until the end of its patience.
    assert max(late) < PATIENCE / 2


def test_who_waits_is_woken(restless):
    queue, got = WaitQueue(), []
    threads = [threading.Thread(target=lambda: got.append(queue.get(PATIENCE))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for item in range(4):
        eventually(lambda: len(queue._waiting) == 4 - len(got))
        queue.put(item)
        eventually(lambda item=item: item in got)
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(got) == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("can't allocate lock")])
def test_who_waits_goes_on_while_the_memory_is_short(monkeypatch, error):
    def fail():
        asked.append(error)
        raise error

    queue, asked = WaitQueue(), []
    short = SimpleNamespace(**{**vars(threading), "Lock": fail})
    monkeypatch.setattr("distlock.concurrency.threads.threading", short)
    with pytest.raises(Empty):
        queue.get(0.03)
    threading.Timer(0.05, queue.put, ["item"]).start()
    assert queue.get(PATIENCE) == "item"
    assert asked
