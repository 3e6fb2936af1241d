"""What taking, waiting and leaving do to the tree, and what the servers see of it."""

import asyncio
import concurrent.futures
import os
import socket
import threading
from datetime import UTC, datetime

import pytest
from kazoo.protocol.serialization import GetChildren

from distlock import Lock, LockTimeout, LockUnavailable, locks
from distlock.types.lease import Claim, State
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed, waits
from tests.servers.zookeeper import ZooKeeper
from tests.zookeeper.conftest import CLIENTS
from tests.zookeeper.tree import packets, session_of, watches


def test_a_holder_is_a_node_of_its_session_that_tells_who_it_is(using, backend, tree, name):
    before = datetime.now(UTC)
    with Lock(name, using=using, description="nightly run") as lock:
        call_site = lock.info().call_site
        (path,) = tree.queue(name)
        data, stat = tree.read(path)
        assert stat.czxid == lock.token
        assert stat.ephemeralOwner % 2**64 == session_of(backend)
    since = datetime.fromisoformat(data.pop("since"))
    assert abs((since - before).total_seconds()) < PATIENCE
    assert data.pop("owner")
    assert data == {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "thread": threading.current_thread().name,
        "description": f"nightly run (at {call_site})",
        "renews": True,
        "session_timeout": pytest.approx(backend.settings.lease / backend.options.lease_of(1)),
    }


def test_a_released_lock_has_no_node(using, tree, name):
    with Lock(name, using=using):
        pass
    eventually(lambda: tree.queue(name) == [])


def test_the_servers_clear_the_node_of_a_lock_that_nobody_uses(configure, name):
    """It is a container; they look for empty ones every minute, and here more often."""
    with ZooKeeper(containers_checked_every=100) as server:
        using = configure({"default": server.hosts})
        with Lock(name, using=using) as lock:
            token = lock.token
        client = locks[using].client
        root = client.options.root

        def known():
            return client.send(GetChildren(root, None))

        eventually(lambda: (reply := known()).wait(PATIENCE) and reply.value == [])
        with Lock(name, using=using) as lock:
            assert lock.token > token
        locks.close_all()


def test_root_and_chroot_are_made_when_they_are_missing(configure, zookeeper, tree, name):
    using = configure({"default": f"{zookeeper.hosts}{tree.root}/chroot/deep"}, root="/a/b")
    with Lock(name, using=using):
        assert tree.kazoo.get_children(f"{tree.root}/chroot/deep/a/b") == [name]


def test_a_failed_try_leaves_neither_node_nor_watch(using, zookeeper, tree, name):
    with Lock(name, using="other"):
        for _ in range(5):
            assert Lock(name, using=using).acquire(blocking=False) is False
        eventually(lambda: len(tree.queue(name)) == 1)
        assert watches(zookeeper, session_of(locks[using])) == []


def test_who_waited_too_long_leaves_neither_node_nor_watch(using, zookeeper, tree, name):
    with Lock(name, using="other"):
        for _ in range(3):
            # A server may take longer than that to say that someone else has it.
            with pytest.raises((LockTimeout, LockUnavailable)):
                Lock(name, using=using, timeout=0.05).__enter__()
        eventually(lambda: len(tree.queue(name)) == 1)
        eventually(lambda: watches(zookeeper, session_of(locks[using])) == [])


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_steps_that_are_closed_or_interrupted_leave_neither_node_nor_watch(
    backend, zookeeper, tree, name, error
):
    with Lock(name, using="other"):
        steps = backend.enqueue(Claim(name, current_owner(), 5.0), None)
        next(steps)
        eventually(lambda: len(tree.queue(name)) == 2)
        eventually(lambda: watches(zookeeper, session_of(backend)) == tree.queue(name)[:1])
        if error is None:
            steps.close()
        else:
            with pytest.raises(error):
                steps.throw(error())
        eventually(lambda: len(tree.queue(name)) == 1)
        eventually(lambda: watches(zookeeper, session_of(backend)) == [])


def test_a_waiting_task_that_is_cancelled_leaves_neither_node_nor_watch(
    using, zookeeper, tree, actor, name
):
    with Lock(name, using="other"):
        task = actor("task", using)
        waiting = task.lock(name).start("acquire")
        eventually(lambda: locks[using].client.session)
        eventually(lambda: watches(zookeeper, session_of(locks[using])) == tree.queue(name)[:1])
        task.cancel()
        with pytest.raises((concurrent.futures.CancelledError, asyncio.CancelledError)):
            waiting.result(PATIENCE)
        eventually(lambda: len(tree.queue(name)) == 1)
        eventually(lambda: watches(zookeeper, session_of(locks[using])) == [])


def test_everyone_watches_the_node_just_ahead_and_nothing_else(using, zookeeper, tree, actor, name):
    with Lock(name, using=using):
        waiting = [actor("thread", "other").lock(name).start("acquire")]
        eventually(lambda: len(tree.queue(name)) == 2)
        waiting.append(actor("thread", "third").lock(name).start("acquire"))
        eventually(lambda: len(tree.queue(name)) == 3)
        queue = tree.queue(name)
        for place, alias in enumerate(CLIENTS[1:]):
            session = session_of(locks[alias])
            eventually(lambda p=place, s=session: watches(zookeeper, s) == [queue[p]])
        assert all(waits(each, 0.01) for each in waiting)


def test_taking_a_free_lock_is_one_round_trip(configure, zookeeper, tree, name):
    """Two requests that are sent together."""
    using = configure(session_timeout=60)  # no ping comes in between
    lock = Lock(name, using=using)
    lock.acquire()
    lock.release()
    session = session_of(locks[using])

    def asked():
        return packets(zookeeper)[session][0]

    def cost():
        eventually(lambda: not tree.queue(name))  # nobody waits for the answer to the delete
        before = asked()
        lock.acquire()
        taken = asked()
        lock.release()
        left = eventually(lambda: (now := asked()) > taken and now)
        return left - before

    # Create, list, delete. Where the answers take long, it is written down since when it is held.
    assert any(cost() <= 3 for _ in range(5))


def test_someone_who_came_in_between_is_not_overlooked(using, tree, actor, name):
    """Left and taken again at once, while another one joins the queue at every possible moment."""
    lock = Lock(name, using=using)
    other = actor("thread", "other")
    for _ in range(30):
        lock.acquire()
        lock.release()
    tokens = []
    for _ in range(40):
        lock.acquire()
        tokens.append(lock.token)
        waiting = other.lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        lock.release()
        again = Lock(name, using=using)
        assert again.acquire(blocking=False) is False
        assert waiting.result(PATIENCE)
        tokens.append(tree.token(name))
        other.start(0, "call", leave, name, "other").result(PATIENCE)
    assert tokens == sorted(set(tokens))


def leave(name, using):
    Lock(name, using=using).release()


def test_a_parent_that_vanishes_is_made_again(using, tree, name):
    """As when a sweep, or the server, clears it between two turns."""
    lock = Lock(name, using=using)
    tokens = []
    for _ in range(5):
        with lock:
            tokens.append(lock.token)
        eventually(lambda: tree.queue(name) == [])
        tree.kazoo.delete(tree.path(name))
    assert tokens == sorted(set(tokens))


def test_a_waiter_whose_node_is_removed_gets_in_line_again(using, tree, actor, name):
    with Lock(name, using="third"):
        first = actor("thread", "other").lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        behind = actor("thread", using)
        second = behind.lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 3)
        removed = tree.queue(name)[2]
        tree.kazoo.delete(removed)
        tree.kazoo.delete(tree.queue(name)[1])  # wakes the second, who looks where it stands
        eventually(lambda: len(tree.queue(name)) == 2)
        assert removed not in tree.queue(name)
        assert waits(first, 0.01) and waits(second, 0.01)
    assert second.result(PATIENCE) is True
    eventually(lambda: len(tree.queue(name)) == 2)  # the first has found out too
    assert waits(first, 0.01)
    behind.start(0, "call", leave, name, using).result(PATIENCE)
    assert first.result(PATIENCE) is True


def test_holder_and_waiters_are_told_in_order(using, backend, tree, actor, name):
    people = [actor("thread", alias) for alias in ("other", "third")]
    with Lock(name, using=using, description="why") as lock:
        for number, person in enumerate(people):
            person.lock(name).start("acquire")
            eventually(lambda number=number: len(tree.queue(name)) == number + 2)
        info = lock.info()
        keys = [tree.read(path)[0]["owner"] for path in tree.queue(name)]
        assert (info.state, info.token, info.description) == (State.HELD, lock.token, "why")
        assert info.owner.key == keys[0]
        assert [waiter.key for waiter in info.waiters] == keys[1:]
        assert (info.until, info.remaining) == (None, None)
        (listed,) = backend.list(name)
        assert (listed.owner, listed.waiters) == (info.owner, info.waiters)


def test_a_lock_is_held_since_it_was_had_and_not_since_it_was_waited_for(using, tree, actor, name):
    lock = Lock(name, using=using)
    lock.acquire()
    waiting = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: len(tree.queue(name)) == 2)
    in_line = tree.kazoo.get(tree.queue(name)[1])[1].ctime / 1000
    passed(1.2)
    lock.release()
    assert waiting.result(PATIENCE)
    eventually(lambda: lock.info().since.timestamp() > in_line + 1.1)
    assert lock.info().held_for < 60


def test_a_node_that_is_not_ours_is_shown_as_a_stranger(using, tree, name):
    """If its name is like that of a contender; others are passed over."""
    path = tree.path(name)
    tree.kazoo.ensure_path(path)
    tree.kazoo.create(f"{path}/note", b"")
    assert Lock(name, using=using).info().state is State.FREE
    tree.kazoo.create(f"{path}/{'a' * 32}-", b"\xff", sequence=True)
    info = Lock(name, using=using).info()
    assert (info.state, info.owner.host) == (State.HELD, "unknown")
    assert Lock(name, using=using).acquire(blocking=False) is False
