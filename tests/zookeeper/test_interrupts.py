"""What an interrupted wait leaves behind is in nobody's way."""

import gc
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from kazoo.protocol.serialization import GetChildren

from distlock import Lock, locks
from distlock.backends import zookeeper
from distlock.backends.zookeeper.client import Grants
from distlock.backends.zookeeper.connection import ZooKeeperConnection
from distlock.backends.zookeeper.contender import ZooKeeperContender
from distlock.backends.zookeeper.requests import Reply
from distlock.concurrency import pending
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import run
from distlock.exceptions import BodyEnded
from distlock.types.lease import Claim, Owner
from tests.contract.actors import PATIENCE, answered
from tests.core.interrupting import interrupted

CODE = (str(Path(zookeeper.__file__).parent),)
#: How many moments in a row nothing is interrupted at before the call is taken to have no more: how
#: often a waiter looks differs from time to time.
MISSES = 5

#: errors that code of the caller's is interrupted by, and that are no BaseExceptions only
interrupts = pytest.mark.parametrize("error", [SoftTimeLimitExceeded, BodyEnded])


def test_the_garbage_of_an_interrupted_wait_may_be_collected_while_a_request_is_sent(using):
    """The collector may run anywhere, also in a thread that has the mutex of the connection."""

    def wait():
        lock = Lock("popular", using=using)
        answered(lambda: lock.acquire(timeout=0.02))

    def collect(frame, event, arg):
        in_submit = frame.f_code is ZooKeeperConnection.submit.__code__
        if in_submit and event == "c_call" and arg.__name__ == "append":  # it has the mutex
            gc.collect()

    def take():
        with Lock("free", using=using):
            sys.setprofile(collect)
        sys.setprofile(None)
        taken.append(True)

    taken = []
    gc.disable()
    try:
        with Lock("popular", using="other"):
            for moment in itertools.count(1):
                if interrupted(wait, moment, code=CODE) is None:
                    break
            assert moment > 20, "the interrupts did not reach the code"
            thread = threading.Thread(target=take, daemon=True)
            thread.start()
            thread.join(PATIENCE)
            assert taken
    finally:
        gc.enable()


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def answers_at_once(using, monkeypatch):
    """Has lists of contenders answered before they are waited for, so the caller goes on itself."""
    client = locks[using].client
    send_all, caller = client.send_all, threading.current_thread()

    def send(requests, only_if=None):
        replies = send_all(requests, only_if)
        if isinstance(requests[-1], GetChildren) and threading.current_thread() is caller:
            until(lambda: replies[-1].done)
        return replies

    monkeypatch.setattr(client, "send_all", send)


@interrupts
def test_an_interrupt_of_a_wait_comes_out_and_nothing_stays_in_the_queue(using, error):
    assert_comes_out(using, error, timeout=0.02)


@interrupts
@pytest.mark.parametrize("timeout", [0.02, 0])
@pytest.mark.usefixtures("answers_at_once")
def test_an_interrupt_of_a_caller_who_need_not_wait_for_answers_comes_out(using, error, timeout):
    assert_comes_out(using, error, timeout)


@interrupts
@pytest.mark.usefixtures("answers_at_once")
def test_an_interrupt_of_a_caller_whose_time_is_over_comes_out(using, error, monkeypatch):
    """It comes while the caller is about to note that someone else has the lock."""

    def strike(pending, value):
        raise error

    with Lock("warm", using=using), Lock("popular", using="other"):
        client = locks[using].client
        contender = ZooKeeperContender(client, Grants(print), claim(), clock(), wait=False)
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(Pending, "resolve", strike)
            run(contender.steps())


def claim():
    return Claim("popular", Owner("test:1", "host", 1, "thread"), 10.0)


def assert_comes_out(using, error, timeout):
    """At each moment of a wait in vain the error is the caller's, and another client is next."""
    for alias in (using, "other", "third"):
        with Lock("popular", using=alias):
            pass
    moment = misses = 0
    while misses < MISSES:
        moment += 1
        came_out = []

        def wait():
            try:
                answered(lambda: Lock("popular", using=using).acquire(timeout=timeout))
            except error:
                came_out.append(True)  # noqa: B023 - called at once
                raise

        with Lock("popular", using="other"):
            struck = interrupted(wait, moment, error, (*CODE, pending.__file__))
        if struck is None:
            misses += 1
            continue
        misses = 0
        assert came_out, f"swallowed at moment {moment}"
        third = Lock("popular", using="third")
        assert third.acquire(timeout=PATIENCE), f"in the way since moment {moment}"
        third.release()
    assert moment > 20, "the interrupts did not reach the code"


@interrupts
def test_an_interrupt_of_a_callback_is_that_of_the_caller_whose_answer_was_there(error):
    def strike(_):
        raise error

    reply = Reply()
    reply.settle()
    with pytest.raises(error):
        reply.then(strike)


def test_a_claim_that_nobody_waits_for_fails_in_silence(using, caplog):
    """It was given up while there was no connection, and then the client is closed."""
    with Lock("warm", using=using):
        client = locks[using].client
    with Lock("popular", using="other"):
        contender = ZooKeeperContender(client, Grants(print), claim(), None, wait=True)
        next(contender.steps())
        until(lambda: contender._watch is not None)
        client.connection.lose_requests()
        client.watches.on_disconnect()
        contender.cancel()
        last = client.when_connected()
        client.close()
        assert last.wait(PATIENCE)
    assert "a callback of the ZooKeeper client failed" not in caplog.text
