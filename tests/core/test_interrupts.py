"""Ctrl-C, or a worker's time limit, at any moment leaves a lock held or free, never stuck."""

import itertools
import threading
import uuid

from distlock import Lock
from tests.core.interrupting import interrupted


def interrupted_everywhere(call, prepare=lambda lock: None):
    """Interrupt ``call(lock)`` at one moment after the other; yield the locks."""
    for moment in itertools.count(1):
        lock = Lock(f"{uuid.uuid4().hex}:{moment}")
        prepare(lock)
        if not interrupted(lambda: call(lock), moment):  # noqa: B023 - called at once
            assert moment > 20, "the interrupts did not reach the code"
            while lock.held:
                lock.release()
            return
        yield lock


def others_get_it(locks):
    """Let go of what is still held; then another thread has to get all of it."""
    names = []
    for lock in locks:
        while lock.held:
            lock.release()
        names.append(lock.name)
    got = []

    def take():
        for name in names:
            with Lock(name, timeout=10):
                got.append(name)

    other = threading.Thread(target=take, daemon=True)
    other.start()
    other.join(60)
    assert got == names


def test_while_taking():
    others_get_it(interrupted_everywhere(Lock.acquire))


def test_while_releasing():
    others_get_it(interrupted_everywhere(Lock.release, prepare=Lock.acquire))


def test_while_leaving_one_of_two_levels():
    def twice(lock):
        lock.acquire()
        lock.acquire()

    others_get_it(interrupted_everywhere(Lock.release, prepare=twice))


def take_and_leave(name):
    with Lock(name, timeout=20):
        pass


def test_who_waits_is_woken_when_the_turn_before_it_was_interrupted_in_leaving():
    def wait_for(lock):
        lock.acquire()
        waiting = threading.Thread(target=take_and_leave, args=[lock.name])
        waiting.start()
        waiters.append(waiting)

    waiters = []
    for lock in interrupted_everywhere(Lock.release, prepare=wait_for):
        while lock.held:
            lock.release()
    for waiting in waiters:
        waiting.join(30)
        assert not waiting.is_alive()
