"""When a database goes away, every lock of a process may be lost at once."""

import queue
import signal
import threading

from distlock import Lock
from distlock.runtime import holds
from distlock.runtime.manager import manager
from tests.children import write_line
from tests.contract.watch import eventually, in_line
from tests.recipes.wrapping import in_thread

LOCKS = 300


def test_all_are_told_on_few_threads():
    told, tellers, go = [], set(), threading.Event()

    def on_lost(lease):
        tellers.add(threading.get_ident())
        go.wait(30)
        told.append(lease.name)

    locks = [
        Lock(f"many:{number}", lease=1, renew=False, on_lost=on_lost) for number in range(LOCKS)
    ]
    for lock in locks:
        lock.acquire()
    eventually(lambda: not any(in_line("default", lock.name) for lock in locks))
    eventually(lambda: tellers)
    many = len(tellers)  # those who are at it at the same time
    go.set()
    eventually(lambda: len(told) == LOCKS)
    assert len(set(told)) == LOCKS
    assert many <= 32


def leave_none(count):
    """As a child: take many locks whose leases end soon, in threads that end, and leave none."""
    holds._REMEMBERED = 0.0

    def take(number, **options):
        assert Lock(f"left:{number}", **options).acquire(blocking=False)

    for number in range(count):
        take(number, lease=0.01, renew=False)
        in_thread(take, -number, lease=0.01)()
    write_line(len(manager().all()))


def test_holds_that_nobody_leaves_are_forgotten(child):
    assert int(child(leave_none, 300).line()) < 300


def test_programs_that_a_callback_starts_take_signals():
    """The thread of the timers, which finds that a lease has ended, takes none."""
    masks = queue.SimpleQueue()

    def on_lost(lease):
        masks.put(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    Lock("masks", lease=0.2, renew=False, on_lost=on_lost).acquire()
    assert masks.get(timeout=30) == set()
