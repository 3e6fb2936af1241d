"""A bell is heard by who waits for it, whatever happens to who rings it."""

import threading

from distlock.bell import Bell
from distlock.clock import clock
from tests.core.interrupting import interrupted


def test_who_waits_is_woken():
    bell = Bell()
    ringing = threading.Timer(0.05, bell.ring)
    ringing.start()
    assert bell.wait(30)
    ringing.join()


def test_it_is_heard_however_late_and_often_one_listens():
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert bell.wait(0)


def test_nobody_waits_longer_than_was_said():
    def waited():
        began = clock()
        assert not Bell().wait(0.05)
        return clock() - began

    assert 0.05 <= min(waited() for _ in range(3)) < 1


def test_who_is_interrupted_in_ringing_can_ring_again():
    moment = 1
    while True:
        bell = Bell()
        over = not interrupted(bell.ring, moment)
        bell.ring()
        assert bell.wait(0)
        if over:
            return
        moment += 1


def test_half_a_ring_is_heard_too():
    """As when the interrupt comes before the lock is released."""
    bell = Bell()
    half = threading.Timer(0.05, setattr, [bell, "rung", True])
    half.start()
    assert bell.wait(30)
    half.join()
