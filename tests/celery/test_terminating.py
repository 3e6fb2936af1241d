"""A task is ended by the loss of its lock, wherever that finds it, and never after its end."""

import gc
import random
import signal
import threading
import time

import pytest

from distlock import LockLost
from distlock.locking.run_under import SignalInterrupter, ThreadInterrupter, body_interrupter
from distlock.types.lease import Claim, Lease, Owner

pytestmark = pytest.mark.once

LOST = Lease(Claim("a", Owner("o", "h", 1, "t"), 1.0), 7, 0.0)
ROUNDS = 400


def sleep_until_ended():
    time.sleep(30)
    pytest.fail("nothing has ended this sleep")


def test_the_main_thread_is_woken_from_a_system_call():
    with pytest.raises(LockLost, match=r"lock 'a' \(token 7\)"), body_interrupter() as ending:
        assert isinstance(ending, SignalInterrupter)
        threading.Timer(0.05, ending.on_lost, [LOST]).start()
        sleep_until_ended()


def test_the_main_thread_is_woken_although_a_signal_was_missed():
    with pytest.raises(LockLost), body_interrupter() as ending:
        # As Python does with a signal that comes in the moment in which the sleep begins.
        handler = signal.signal(signal.SIGURG, signal.SIG_IGN)
        ending.on_lost(LOST)
        signal.signal(signal.SIGURG, handler)
        sleep_until_ended()


def test_another_thread_is_ended():
    def run():
        try:
            with body_interrupter() as ending:
                assert isinstance(ending, ThreadInterrupter)
                threading.Timer(0.05, ending.on_lost, [LOST]).start()
                while True:
                    time.sleep(0.001)
        except LockLost as error:
            ended.append(str(error))

    ended = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert ended == ["lock 'a' (token 7) was lost while the work under it was running"]


@pytest.fixture
def no_finalizers():
    """What is raised in the callback of a weak reference is dropped: there comes none meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def race():
    """Lose the lock at the moment at which the body ends; return how often which came first."""
    lost = kept = 0
    for _ in range(ROUNDS):
        teller = None
        try:
            with body_interrupter() as ending:
                teller = threading.Thread(target=ending.on_lost, args=[LOST])
                teller.start()
                for _ in range(random.randrange(300)):
                    pass
            kept += 1
        except LockLost as error:
            assert str(error)
            lost += 1
        teller.join()
        for _ in range(100):
            pass  # what came now would come outside of any task
    return lost, kept


@pytest.mark.usefixtures("no_finalizers")
def test_nothing_comes_after_the_end_in_the_main_thread():
    assert sum(race()) == ROUNDS


@pytest.mark.usefixtures("no_finalizers")
def test_nothing_comes_after_the_end_in_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(race()))
    thread.start()
    thread.join(60)
    assert sum(found[0]) == ROUNDS


def test_a_task_within_a_task_is_ended_by_its_own_loss():
    with body_interrupter() as outer:
        with pytest.raises(LockLost), body_interrupter() as inner:
            threading.Timer(0.05, inner.on_lost, [LOST]).start()
            sleep_until_ended()
        time.sleep(0.01)
    assert outer.loss is None


def test_an_error_of_the_body_stays():
    with pytest.raises(ZeroDivisionError), body_interrupter() as ending:
        try:
            ending.on_lost(LOST)
            sleep_until_ended()
        except LockLost:
            raise ZeroDivisionError from None
