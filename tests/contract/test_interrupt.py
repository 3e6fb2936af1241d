"""Ctrl-C while waiting: a real SIGINT ends the wait at once, and leaves nothing behind."""

import os
import signal
import threading

import pytest

from distlock import Lock, LockNotHeld
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, in_line, passed, waits


def interrupt(using, name, places):
    """Send this process a SIGINT once so many stand in line."""
    eventually(lambda: in_line(using, name) == places)
    passed(0.05)  # until the last one waits at the backend
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_when_waiting(using, name):
    """Begin to look out for the main thread's wait for another process, to interrupt it."""
    threading.Thread(target=interrupt, args=(using, name, 1), daemon=True).start()


def wait_interrupted(using, name):
    """Wait for a lock that another thread of this process holds; interrupted by SIGINT."""
    lock, taken, over = Lock(name, using=using), threading.Event(), threading.Event()

    def hold():
        with Lock(name, using=using):
            taken.set()
            over.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    interrupter = threading.Thread(target=interrupt, args=(using, name, 2))
    holder.start()
    taken.wait(PATIENCE)
    interrupter.start()
    try:
        lock.acquire()
    except KeyboardInterrupt:
        interrupted = True
    over.set()
    holder.join(PATIENCE)
    got = lock.acquire(timeout=PATIENCE)
    lock.release()
    try:
        lock.release()
    except LockNotHeld:
        return interrupted, got


def interrupted_in_with(using, name):
    """The body is interrupted: the lock is left on the way out."""
    try:
        with Lock(name, using=using):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(PATIENCE)
    except KeyboardInterrupt:
        return Lock(name, using=using).locked()


def interrupted_again_and_again(using, name, rounds):
    """Take and leave the lock under a rain of SIGINTs; return how many came through."""
    caught = 0
    lock = Lock(name, using=using)
    for number in range(rounds):
        timer = threading.Timer(0.0005 * number, os.kill, (os.getpid(), signal.SIGINT))
        late = clock() + 1
        try:
            timer.start()
            while True:
                with lock:
                    pass
                # Python drops what is raised where a weak reference's callback runs.
                if clock() > late and not timer.is_alive():
                    os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            caught += 1
        timer.join()
        # An interrupt between taking and the body's beginning can leave the lock entered.
        while lock.held:
            lock.release()
    return caught


@pytest.fixture
def process(actor):
    return actor("process")


def test_waiting_for_another_thread_can_be_interrupted(process, using, name):
    assert process.call(wait_interrupted, using, name).result(PATIENCE) == (True, True)


@pytest.mark.shared
def test_waiting_for_another_process_can_be_interrupted(process, third, fourth, using, name):
    held = third.take(name)
    lock = process.lock(name)
    process.call(interrupt_when_waiting, using, name).result(PATIENCE)
    waiting = lock.start("acquire")
    with pytest.raises(KeyboardInterrupt):
        waiting.result(PATIENCE)
    assert lock.held is False
    held.release()
    after = fourth.lock(name)
    assert after.acquire(timeout=PATIENCE)
    after.verify()


@pytest.mark.shared
def test_who_was_interrupted_can_wait_again(process, third, using, name):
    held = third.take(name)
    lock = process.lock(name)
    for _ in range(2):
        process.call(interrupt_when_waiting, using, name).result(PATIENCE)
        waiting = lock.start("acquire")
        with pytest.raises(KeyboardInterrupt):
            waiting.result(PATIENCE)
    waiting = lock.start("acquire")
    assert waits(waiting)
    held.release()
    assert waiting.result(PATIENCE) is True


def test_an_interrupted_body_leaves_its_lock(process, using, name):
    assert process.call(interrupted_in_with, using, name).result(PATIENCE) is False


def test_interrupts_at_any_moment_leave_nothing_behind(process, kind, third, using, name):
    assert process.call(interrupted_again_and_again, using, name, 25).result(PATIENCE) == 25
    after = process.lock(name)
    assert after.acquire(timeout=PATIENCE)
    after.release()
    assert third.lock(name).acquire(timeout=PATIENCE)
