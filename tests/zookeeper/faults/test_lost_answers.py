"""What an answer that never came meant."""

import pytest
from kazoo.protocol.serialization import Create2

from distlock import Lock, LockLost, LockUnavailable, locks
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed, waits
from tests.zookeeper.faults.outages import everywhere


@everywhere
@pytest.mark.parametrize("what", ["thread", "task"])
def test_a_node_whose_creation_was_never_answered_is_found_again(
    using, network, tree, actor, sent_events, name, what
):
    person = actor(what, using)
    person.take(name).release()
    eventually(lambda: tree.queue(name) == [])  # else it is that reply which gets lost
    lost = network.lose_reply(to=name.encode())
    lock = person.take(name)
    assert lost.is_set()
    (path,) = tree.queue(name)
    assert lock.token == tree.read(path)[1].czxid
    lock.verify()
    lock.release()
    eventually(lambda: tree.queue(name) == [])
    assert sent_events.words(name) == ["acquired", "released"] * 2


@everywhere
def test_a_place_in_line_that_was_never_answered_is_found_again(using, network, tree, actor, name):
    person = actor("thread", using)
    person.take(f"{name}:connected")
    with Lock(name, using="other"):
        lost = network.lose_reply(to=f"{name}/".encode())
        waiting = person.lock(name).start("acquire")
        assert lost.wait(PATIENCE)
        eventually(lambda: locks[using].client.connected)
        eventually(lambda: len(tree.queue(name)) == 2)
        assert waits(waiting)
        assert len(tree.queue(name)) == 2
    assert waiting.result(PATIENCE) is True
    assert len(tree.queue(name)) == 1


def test_of_two_own_nodes_the_first_stays_in_the_queue(using, network, tree, actor, name):
    """As after a request that was carried out twice."""
    client = locks[using].client
    with Lock(name, using="other"):
        waiting = actor("thread", using).lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        queue = tree.queue(name)
        prefix = queue[1].rpartition("-")[0] + "-"
        again = client.send(Create2(prefix, b"", client.options.acl, 3))
        assert again.wait(PATIENCE) and again.error is None
        assert len(tree.queue(name)) == 3
        network.cut()
        eventually(lambda: tree.queue(name) == queue)
        assert waits(waiting)
    assert waiting.result(PATIENCE) is True
    assert tree.queue(name) == queue[1:]


def test_nothing_stays_of_a_try_that_was_never_answered_and_given_up(
    using, network, tree, actor, name
):
    person = actor("thread", using)
    person.take(name).release()
    eventually(lambda: tree.queue(name) == [])
    network.drop_replies()
    with pytest.raises(LockUnavailable) as caught:
        person.lock(name).acquire(timeout=0.1)
    assert caught.value.maybe_applied
    eventually(lambda: len(tree.queue(name)) == 1)
    network.heal()
    eventually(lambda: tree.queue(name) == [])


def test_a_failed_try_whose_node_was_never_seen_to_go_leaves_nothing(using, network, tree, name):
    with Lock(name, using="other"):
        Lock(name, using=using).locked()
        for _ in range(5):
            assert Lock(name, using=using).acquire(blocking=False) is False
            network.cut()
        eventually(lambda: len(tree.queue(name)) == 1)


@pytest.mark.parametrize("age", [0, 0.1])
def test_a_release_that_was_never_answered_is_a_release(
    using, network, tree, sent_events, name, age
):
    lock = Lock(name, using=using)
    lock.acquire()
    passed(age)
    lost = network.lose_reply(to=name.encode())
    lock.release()
    assert lost.wait(PATIENCE)
    eventually(lambda: tree.queue(name) == [])
    with Lock(name, using=using):
        pass
    assert "lost" not in sent_events.words(name)


def test_a_break_that_was_never_answered_is_a_break(using, network, tree, name):
    held = Lock(name, using="other")
    held.acquire()
    breaker = Lock(name, using=using)
    breaker.locked()
    node = tree.queue(name)[0].rpartition("/")[2]
    lost = network.lose_reply(to=(2).to_bytes(4) + len(tree.queue(name)[0]).to_bytes(4))
    assert breaker.force_release(held.token) is True
    assert lost.is_set()
    assert node not in str(tree.queue(name))
    with pytest.raises(LockLost):
        held.release()
