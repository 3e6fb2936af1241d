"""Signals tell of every lock that is taken and left, with its lease and its backend."""

import pytest

from distlock import Lock
from distlock.signals import lock_acquired, lock_released
from distlock.types.lease import Lease
from tests.contract.actors import PATIENCE


def test_taking_and_leaving_are_told(first, name, sent_events, using, backend):
    lock = first.take(name)
    token = lock.token
    lock.release()
    assert [event for event in sent_events if event[1] == name] == [
        ("acquired", name, token, using, type(backend)),
        ("released", name, token, using, type(backend)),
    ]


def test_entering_again_is_no_new_event(first, name, sent_events):
    lock = first.take(name)
    lock.acquire()
    lock.release()
    assert sent_events.words(name) == ["acquired"]
    lock.release()
    assert sent_events.words(name) == ["acquired", "released"]


def test_a_failed_try_is_no_event(first, second, name, sent_events):
    first.take(name)
    second.tries(name)
    assert sent_events.words(name) == ["acquired"]


@pytest.mark.parametrize("signal", [lock_acquired, lock_released])
def test_receivers_get_the_lease(using, name, signal):
    leases = []

    def receive(sender, lease, using, **kwargs):
        if lease.name == name:
            leases.append(lease)

    signal.connect(receive)
    try:
        with Lock(name, using=using) as lock:
            token = lock.token
    finally:
        signal.disconnect(receive)
    (lease,) = leases
    assert isinstance(lease, Lease)
    assert lease.token == token


@pytest.mark.parametrize("signal", [lock_acquired, lock_released])
def test_an_error_in_a_receiver_disturbs_nobody(first, second, at_once, name, signal):
    def fail(**kwargs):
        raise RuntimeError("a receiver has a bug")

    signal.connect(fail)
    try:
        lock = first.take(name)
        lock.verify()
        lock.release()
    finally:
        signal.disconnect(fail)
    assert at_once(lambda: second.tries(name))


def test_the_lock_is_held_when_its_taking_is_told(using, name):
    held = []

    def receive(sender, lease, using, **kwargs):
        if lease.name == name:
            held.append(Lock(name, using=using).held)

    lock_acquired.connect(receive)
    try:
        with Lock(name, using=using):
            assert held == [True]
    finally:
        lock_acquired.disconnect(receive)


def test_a_receiver_may_be_a_coroutine_function(using, actor, name):
    seen = []

    async def receive(sender, lease, using, **kwargs):
        if lease.name == name:
            seen.append(lease.name)

    async def work():
        async with Lock(name, using=using):
            return list(seen)

    lock_acquired.connect(receive)
    try:
        assert actor("task").call(work).result(PATIENCE) == [name]
    finally:
        lock_acquired.disconnect(receive)
