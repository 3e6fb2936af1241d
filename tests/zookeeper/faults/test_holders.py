"""What becomes of holds when the connection breaks."""

import pytest

from distlock import Lock, LockLost, locks
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed
from tests.zookeeper.faults.outages import (
    drop_replies,
    drop_requests,
    everywhere,
    everywhere_once,
    refuse,
    silence,
)
from tests.zookeeper.tree import expire

#: seconds, of a session that outlasts an outage, and a machine that stands still for a moment
OUTLASTING = 9


@pytest.mark.slow
@everywhere_once(refuse, silence, drop_replies)
def test_a_hold_survives_an_outage_that_its_session_survives(
    configure, network, tree, sent_events, outage, name
):
    using = configure({"default": network.location}, session_timeout=OUTLASTING)
    lock = Lock(name, using=using)
    lock.acquire()
    queue = tree.queue(name)
    outage(network)
    passed(0.4)
    network.heal()
    end = clock() + 1.1 * OUTLASTING
    while clock() < end:
        assert lock.held
        assert not Lock(name, using="other").acquire(blocking=False)
    lock.verify()
    eventually(lambda: tree.queue(name) == queue)  # the last try does not wait for its node to go
    lock.release()
    assert sent_events.words(name) == ["acquired", "released"]
    eventually(lambda: tree.queue(name) == [])


def test_a_hold_survives_many_short_cuts(using, network, tree, name):
    lock = Lock(name, using=using)
    lock.acquire()
    queue = tree.queue(name)
    for _ in range(10):
        network.cut()
        passed(0.24)
        assert lock.held
    lock.verify()
    assert tree.queue(name) == queue
    lock.release()


@pytest.mark.slow
@everywhere_once(silence, refuse, drop_requests)
def test_an_outage_that_outlasts_the_session_is_told_before_anyone_else_can_hold(
    brief, network, tree, actor, successor, outage, name
):
    on_lost = Once()
    lock = actor("thread", brief).take(name, on_lost=on_lost)
    token = lock.token
    taking = successor(name, lock)
    eventually(lambda: len(tree.queue(name)) == 2)
    outage(network)
    next_token, still_held = taking.result(PATIENCE)
    assert not still_held
    assert next_token > token
    on_lost.wait()
    assert not lock.held
    with pytest.raises(LockLost):
        lock.release()
    network.heal()
    again = Lock(name, using=brief)
    assert again.acquire(blocking=False) is False  # on a new session
    eventually(lambda: len(tree.queue(name)) == 1)  # the answer does not wait for its node to go


@pytest.mark.slow
def test_an_answer_from_the_server_is_needed_for_a_hold_to_go_on(brief, network, name):
    """Requests reach it, and its session lives; but this side cannot know that."""
    on_lost = Once()
    lock = Lock(name, using=brief, on_lost=on_lost)
    lock.acquire()
    network.drop_replies()
    on_lost.wait()
    with pytest.raises(LockLost):
        lock.check()
    network.heal()


@everywhere
def test_a_session_that_the_server_ends_is_told_at_once(using, tree, servers, name):
    """An operator may do so; nobody could have known before."""
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
    lock.acquire()
    token = lock.token
    expire(servers[0], locks[using].client.kazoo.client_id)
    (lease,) = on_lost.wait()
    assert lease.token == token
    with pytest.raises(LockLost, match="session"):
        lock.release()
    assert tree.queue(name) == []
    with Lock(name, using=using) as again:
        assert again.token > token


@pytest.mark.slow
def test_a_lost_hold_is_not_brought_back_by_a_new_session(brief, network, tree, name):
    on_lost = Once()
    lock = Lock(name, using=brief, on_lost=on_lost)
    lock.acquire()
    network.refuse()
    eventually(lambda: tree.queue(name) == [])
    network.heal()
    with Lock(f"{name}:other", using=brief):  # connected again
        assert not lock.held
        with pytest.raises(LockLost):
            lock.verify()
    on_lost.wait()
    assert len(on_lost.calls) == 1
