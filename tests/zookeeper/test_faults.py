"""Broken connections: what is held, what is waited for, and what an answer that never came meant.

The first client reaches the server through a network that breaks; the others do not.
"""

import pytest

from distlock import Lock, LockLost, LockTimeout, LockUnavailable, locks
from distlock.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed, waits
from tests.zookeeper.conftest import SESSION, running
from tests.zookeeper.network import Network
from tests.zookeeper.tree import expire

ONE, THREE = pytest.param(1, id="one"), pytest.param(3, id="three")
THREE_SLOWLY = pytest.param(3, id="three", marks=pytest.mark.slow)

#: One test of each fault runs on three servers in the common run, too; the others take long.
everywhere = pytest.mark.parametrize("servers", [ONE, THREE], indirect=True)


@pytest.fixture(params=[ONE, THREE_SLOWLY])
def servers(request):
    yield from running(request)


@pytest.fixture
def network(servers):
    with Network(servers) as network:
        yield network
        locks.close_all()  # while there is somebody to say farewell to


@pytest.fixture
def using(configure, network):
    return configure({"default": network.location})


@pytest.fixture
def successor(actor):
    """``successor(name, hold)``: another client takes the lock of ``hold`` when it comes free.

    Returns its token, and what the hold knew of its own end at that moment.
    """

    def start(name, hold):
        def take():
            lock = Lock(name, using="other", timeout=PATIENCE)
            lock.acquire()
            return lock.token, hold.why_lost()

        return actor("thread", "other").call(take)

    return start


def silence(network):
    network.silence()


def refuse(network):
    network.refuse()


def drop_requests(network):
    network.drop_requests()


def drop_replies(network):
    network.drop_replies()


def everywhere_once(*outages):
    """Run on one server with all of these outages, in the common run on three with the first."""
    rest = [
        pytest.param(3, outage, marks=pytest.mark.slow, id=f"three-{outage.__name__}")
        for outage in outages[1:]
    ]
    first = [
        pytest.param(number, outage, id=f"{name}-{outage.__name__}")
        for number, name in ((1, "one"), (3, "three"))
        for outage in (outages if number == 1 else outages[:1])
    ]
    return pytest.mark.parametrize(("servers", "outage"), [*first, *rest], indirect=["servers"])


# Holders


@everywhere_once(refuse, silence, drop_replies)
def test_a_hold_survives_an_outage_that_its_session_survives(
    using, network, tree, told, outage, name
):
    lock = Lock(name, using=using)
    lock.acquire()
    line = tree.line(name)
    outage(network)
    passed(SESSION / 6)
    network.heal()
    end = clock() + 1.2 * SESSION
    while clock() < end:
        assert lock.held
        assert not Lock(name, using="other").acquire(blocking=False)
    lock.verify()
    eventually(lambda: tree.line(name) == line)  # the last try does not wait for its node to go
    lock.release()
    assert told.words(name) == ["acquired", "released"]
    eventually(lambda: tree.line(name) == [])


def test_a_hold_survives_many_short_cuts(using, network, tree, name):
    lock = Lock(name, using=using)
    lock.acquire()
    line = tree.line(name)
    for _ in range(10):
        network.cut()
        passed(SESSION / 10)
        assert lock.held
    lock.verify()
    assert tree.line(name) == line
    lock.release()


@everywhere_once(silence, refuse, drop_requests)
def test_an_outage_that_outlasts_the_session_is_told_before_anyone_else_can_hold(
    using, network, tree, successor, outage, name
):
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
    lock.acquire()
    token = lock.token
    taking = successor(name, lock._hold)
    eventually(lambda: len(tree.line(name)) == 2)
    outage(network)
    next_token, known = taking.result(PATIENCE)
    assert known is not None
    assert next_token > token
    on_lost.wait()
    assert not lock.held
    with pytest.raises(LockLost):
        lock.release()
    network.heal()
    again = Lock(name, using=using)
    assert again.acquire(blocking=False) is False  # on a new session
    eventually(lambda: len(tree.line(name)) == 1)  # the answer does not wait for its node to go


def test_an_answer_from_the_server_is_needed_for_a_hold_to_go_on(using, network, name):
    """Requests reach it, and its session lives; but this side cannot know that."""
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
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
    expire(servers[0], locks[using]._client._kazoo.client_id)
    (lease,) = on_lost.wait()
    assert lease.token == token
    with pytest.raises(LockLost, match="session"):
        lock.release()
    assert tree.line(name) == []
    with Lock(name, using=using) as again:
        assert again.token > token


def test_a_lost_hold_is_not_brought_back_by_a_new_session(using, network, tree, name):
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
    lock.acquire()
    network.refuse()
    eventually(lambda: tree.line(name) == [])
    network.heal()
    with Lock(f"{name}:other", using=using):  # connected again
        assert not lock.held
        with pytest.raises(LockLost):
            lock.verify()
    assert len(on_lost.calls) == 1


# Waiters


def test_a_waiter_keeps_its_place_through_an_outage(using, network, tree, actor, name):
    with Lock(name, using="other"):
        waiting = actor("thread", using).lock(name).start("acquire")
        eventually(lambda: len(tree.line(name)) == 2)
        line = tree.line(name)
        network.cut()
        passed(SESSION / 6)
        assert tree.line(name) == line
        assert waits(waiting, 0.01)
    assert waiting.result(PATIENCE) is True
    assert tree.line(name) == line[1:]


def test_a_lock_that_comes_free_during_an_outage_is_had_after_it(using, network, tree, actor, name):
    held = Lock(name, using="other")
    held.acquire()
    waiting = actor("thread", using).lock(name).start("acquire")
    eventually(lambda: len(tree.line(name)) == 2)
    network.refuse()
    held.release()
    assert waits(waiting, SESSION / 6)
    network.heal()
    assert waiting.result(PATIENCE) is True
    assert len(tree.line(name)) == 1


@pytest.mark.parametrize("what", ["thread", "task"])
def test_a_waiter_whose_session_ended_starts_over(using, network, tree, actor, name, what):
    with Lock(name, using="other") as held:
        waiting = actor(what, using).lock(name).start("acquire")
        eventually(lambda: len(tree.line(name)) == 2)
        old = tree.line(name)[1]
        network.refuse()
        eventually(lambda: len(tree.line(name)) == 1)
        network.heal()
        eventually(lambda: len(tree.line(name)) == 2)
        assert tree.line(name)[1] != old
        assert waits(waiting, 0.01)
        token = held.token
    assert waiting.result(PATIENCE) is True
    assert tree.token(name) > token


@everywhere
def test_a_waiter_whose_session_the_server_ends_starts_over(using, servers, tree, actor, name):
    with Lock(name, using="other"):
        waiting = actor("thread", using).lock(name).start("acquire")
        eventually(lambda: len(tree.line(name)) == 2)
        expire(servers[0], locks[using]._client._kazoo.client_id)
        eventually(lambda: len(tree.line(name)) == 2)
        assert waits(waiting, 0.01)
    assert waiting.result(PATIENCE) is True
    assert len(tree.line(name)) == 1


@pytest.mark.parametrize("what", ["thread", "task"])
def test_a_waiter_gives_up_in_time_during_an_outage_and_leaves_no_node(
    using, network, tree, actor, name, what
):
    """Nobody can tell then whether someone else has the lock: that is no plain time-out."""
    with Lock(name, using="other"):
        person = actor(what, using)
        waiting = person.lock(name).start("acquire", timeout=0.6)
        eventually(lambda: len(tree.line(name)) == 2)
        network.refuse()
        with pytest.raises(LockUnavailable):
            waiting.result(PATIENCE)
        network.heal()
        eventually(lambda: locks[using]._client.connected)
        assert person.lock(name).acquire(timeout=0.1) is False
        eventually(lambda: len(tree.line(name)) == 1)


def test_who_waits_for_ever_is_told_when_there_is_nobody_to_wait_for(
    configure, network, actor, name
):
    using = configure({"default": network.location}, timeout=0.5, session_timeout=1)
    with Lock(name, using="other"):
        waiting = actor("thread", using).lock(name).start("acquire")
        assert waits(waiting)
        network.refuse()
        with pytest.raises(LockUnavailable):
            waiting.result(PATIENCE)


def test_a_time_limit_holds_when_the_server_falls_silent(using, network, actor, name):
    with Lock(f"{name}:connected", using=using):
        network.silence()
        waiting = actor("thread", using).lock(name).start("acquire", timeout=0.3)
        with pytest.raises(LockUnavailable):
            waiting.result(PATIENCE)
        network.heal()


# A server that is not there


def test_a_server_that_cannot_be_reached_is_not_a_held_lock(configure, network, name):
    network.refuse()
    using = configure({"default": network.location}, timeout=0.5)
    for options in ({"blocking": False}, {"timeout": 0.6}):
        with pytest.raises(LockUnavailable, match=network.location) as caught:
            Lock(name, using=using).acquire(**options)
        assert not caught.value.sent
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    with pytest.raises(LockUnavailable):
        Lock(name, using=using).locked()
    network.heal()
    with Lock(name, using=using) as lock:
        lock.verify()


async def test_nor_for_tasks(configure, network, name):
    network.refuse()
    using = configure({"default": network.location}, timeout=0.5)
    with pytest.raises(LockUnavailable):
        await Lock(name, using=using).aacquire(blocking=False)
    network.heal()
    async with Lock(name, using=using) as lock:
        await lock.averify()


def test_a_held_lock_can_be_left_after_the_outage(using, network, tree, name):
    lock = Lock(name, using=using)
    lock.acquire()
    passed(0.1)
    network.refuse()
    eventually(lambda: not locks[using]._client.connected)
    network.heal()
    lock.release()
    assert tree.line(name) == []


def test_a_lock_that_is_left_without_a_connection_is_freed_when_it_comes_back(
    configure, network, tree, name
):
    """Long before its session would end."""
    using = configure({"default": network.location}, session_timeout=4, timeout=0.3)
    lock = Lock(name, using=using)
    lock.acquire()
    passed(0.1)
    network.refuse()
    eventually(lambda: not locks[using]._client.connected)
    with pytest.raises(LockUnavailable):
        lock.release()
    session = locks[using]._client.session
    network.heal()
    eventually(lambda: tree.line(name) == [])
    assert not session.over


# Answers that were lost


@everywhere
@pytest.mark.parametrize("what", ["thread", "task"])
def test_a_node_whose_creation_was_never_answered_is_found_again(
    using, network, tree, actor, told, name, what
):
    person = actor(what, using)
    person.take(name).release()
    lost = network.lose_reply(to=name.encode())
    lock = person.take(name)
    assert lost.is_set()
    (path,) = tree.line(name)
    assert lock.token == tree.read(path)[1].czxid
    lock.verify()
    lock.release()
    eventually(lambda: tree.line(name) == [])
    assert told.words(name) == ["acquired", "released"] * 2


@everywhere
def test_a_place_in_line_that_was_never_answered_is_found_again(using, network, tree, actor, name):
    person = actor("thread", using)
    person.take(f"{name}:connected")
    with Lock(name, using="other"):
        lost = network.lose_reply(to=name.encode())
        waiting = person.lock(name).start("acquire")
        assert lost.wait(PATIENCE)
        eventually(lambda: locks[using]._client.connected)
        assert len(tree.line(name)) == 2
        assert waits(waiting)
        assert len(tree.line(name)) == 2
    assert waiting.result(PATIENCE) is True
    assert len(tree.line(name)) == 1


def test_nothing_stays_of_a_try_that_was_never_answered_and_given_up(
    using, network, tree, actor, name
):
    person = actor("thread", using)
    person.take(name).release()
    eventually(lambda: tree.line(name) == [])
    network.drop_replies()
    with pytest.raises(LockUnavailable) as caught:
        person.lock(name).acquire(timeout=0.1)
    assert caught.value.sent
    eventually(lambda: len(tree.line(name)) == 1)
    network.heal()
    eventually(lambda: tree.line(name) == [])


def test_a_failed_try_whose_node_was_never_seen_to_go_leaves_nothing(using, network, tree, name):
    with Lock(name, using="other"):
        Lock(name, using=using).locked()
        for _ in range(5):
            assert Lock(name, using=using).acquire(blocking=False) is False
            network.cut()
        eventually(lambda: len(tree.line(name)) == 1)


@pytest.mark.parametrize("age", [0, 0.1])
def test_a_release_that_was_never_answered_is_a_release(using, network, tree, told, name, age):
    lock = Lock(name, using=using)
    lock.acquire()
    passed(age)
    lost = network.lose_reply(to=name.encode())
    lock.release()
    assert lost.wait(PATIENCE)
    eventually(lambda: tree.line(name) == [])
    with Lock(name, using=using):
        pass
    assert "lost" not in told.words(name)


def test_a_break_that_was_never_answered_is_a_break(using, network, tree, name):
    held = Lock(name, using="other")
    held.acquire()
    breaker = Lock(name, using=using)
    breaker.locked()
    node = tree.line(name)[0].rpartition("/")[2]
    lost = network.lose_reply(to=(2).to_bytes(4) + len(tree.line(name)[0]).to_bytes(4))
    assert breaker.force_release(held.token) is True
    assert lost.is_set()
    assert node not in str(tree.line(name))
    with pytest.raises(LockLost):
        held.release()


# A server that goes away and comes back


@pytest.mark.slow
def test_holds_and_waits_outlast_servers_that_are_started_again(
    configure, servers, tree, actor, name
):
    """Sessions are kept on their disks, and clients wait for as long as they are told to."""
    using = configure(session_timeout=4, timeout=PATIENCE)
    lock = Lock(name, using=using)
    lock.acquire()
    token, hold = lock.token, lock._hold
    waiting = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: len(tree.line(name)) == 2)
    for server in servers:
        server.kill()
    for server in servers:
        server.launch()
    for server in servers:
        server.await_answer()
    try:
        lock.verify()
        assert lock.token == token
        assert not waiting.done()
        lock.release()
    except LockLost:  # it has taken longer than a lease, on a slow machine
        assert hold.why_lost() is not None
    assert waiting.result(2 * PATIENCE) is True
    assert len(tree.line(name)) == 1


def test_who_has_waited_long_enough_is_told_that_someone_else_has_it(using, name):
    with (
        Lock(name, using="other"),
        pytest.raises(LockTimeout),
        Lock(name, using=using, timeout=0.1),
    ):
        raise AssertionError("the body must not run")
