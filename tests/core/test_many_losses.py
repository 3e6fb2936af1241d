"""When a database goes away, every lock of a process may be lost at once."""

import threading

from distlock import Lock
from tests.contract.watch import eventually

LOCKS = 300


def test_all_are_told_on_few_threads():
    told, go = [], threading.Event()

    def on_lost(lease):
        go.wait(30)
        told.append(lease.name)

    locks = [
        Lock(f"many:{number}", lease=1, renew=False, on_lost=on_lost) for number in range(LOCKS)
    ]
    for lock in locks:
        lock.acquire()
    eventually(lambda: not any(lock.held for lock in locks))
    eventually(lambda: any(thread.name == "distlock-lost" for thread in threading.enumerate()))
    tellers = sum(thread.name == "distlock-lost" for thread in threading.enumerate())
    go.set()
    eventually(lambda: len(told) == LOCKS)
    assert len(set(told)) == LOCKS
    assert tellers <= 32
