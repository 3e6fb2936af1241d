"""A server that is not there."""

import gc

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.backends.zookeeper.contender import ZooKeeperContender
from distlock.backends.zookeeper.requests import Reply
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually, passed


def test_a_server_that_cannot_be_reached_is_not_a_held_lock(configure, network, name):
    network.refuse()
    using = configure({"default": network.location}, timeout=0.5)

    def refusal(**options):
        """Say why; the client may not have come far enough yet to know."""
        with pytest.raises(LockUnavailable, match=network.location) as caught:
            Lock(name, using=using).acquire(**options)
        assert not caught.value.maybe_applied
        return caught.value.__cause__

    for options in ({"blocking": False}, {"timeout": 0.6}):
        eventually(lambda how=options: isinstance(refusal(**how), ConnectionRefusedError))
    with pytest.raises(LockUnavailable):
        Lock(name, using=using).locked()
    network.heal()
    locks[using].options.timeout = 4
    with Lock(name, using=using) as lock:
        lock.verify()


def test_who_has_given_up_in_an_outage_is_forgotten(configure, network, name):
    network.refuse()
    using = configure({"default": network.location}, timeout=0.5)
    lock = Lock(name, using=using)

    def remembered():
        gc.collect()
        # isinstance() would ask each lazy object for its class, and so evaluate it.
        kinds = [type(one) for one in gc.get_objects()]
        return kinds.count(ZooKeeperContender) + kinds.count(Reply)

    before = remembered()
    for _ in range(20):
        with pytest.raises(LockUnavailable):
            lock.acquire(timeout=0.01)
        with pytest.raises(LockUnavailable):
            locks[using].inspect(name, clock() + 0.01)
    assert remembered() - before < 10


async def test_nor_for_tasks(configure, network, name):
    network.refuse()
    using = configure({"default": network.location}, timeout=0.5)
    with pytest.raises(LockUnavailable):
        await Lock(name, using=using).aacquire(blocking=False)
    network.heal()
    locks[using].options.timeout = 4
    async with Lock(name, using=using) as lock:
        await lock.averify()


def test_a_held_lock_can_be_left_after_the_outage(using, network, tree, name):
    lock = Lock(name, using=using)
    lock.acquire()
    passed(0.1)
    network.refuse()
    eventually(lambda: not locks[using].client.connected)
    network.heal()
    lock.release()
    assert tree.queue(name) == []


def test_a_lock_that_is_left_without_a_connection_is_freed_when_it_comes_back(
    configure, network, tree, name
):
    """Long before its session would end."""
    using = configure({"default": network.location}, session_timeout=60, timeout=0.3)
    lock = Lock(name, using=using)
    lock.acquire()
    passed(0.1)
    network.refuse()
    eventually(lambda: not locks[using].client.connected)
    with pytest.raises(LockUnavailable):
        lock.release()
    session = locks[using].client.session
    network.heal()
    eventually(lambda: tree.queue(name) == [])
    assert not session.over
