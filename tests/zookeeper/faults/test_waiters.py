"""What becomes of waits when the connection breaks."""

import pytest

from distlock import Lock, LockUnavailable, locks
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually, passed, waits
from tests.zookeeper.conftest import SESSION
from tests.zookeeper.faults.outages import everywhere
from tests.zookeeper.tree import expire


def test_a_waiter_keeps_its_place_through_an_outage(using, network, tree, actor, name):
    with Lock(name, using="other"):
        waiting = actor("thread", using).lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        queue = tree.queue(name)
        network.cut()
        passed(SESSION / 6)
        assert tree.queue(name) == queue
        assert waits(waiting, 0.01)
    assert waiting.result(PATIENCE) is True
    assert tree.queue(name) == queue[1:]


def test_a_lock_that_comes_free_during_an_outage_is_had_after_it(using, network, tree, actor, name):
    held = Lock(name, using="other")
    held.acquire()
    waiting = actor("thread", using).lock(name).start("acquire")
    eventually(lambda: len(tree.queue(name)) == 2)
    network.refuse()
    held.release()
    assert waits(waiting, SESSION / 6)
    network.heal()
    assert waiting.result(PATIENCE) is True
    assert len(tree.queue(name)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["thread", "task"])
def test_a_waiter_whose_session_ended_starts_over(brief, network, tree, actor, name, what):
    with Lock(name, using="other") as held:
        waiting = actor(what, brief).lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        old = tree.queue(name)[1]
        network.refuse()
        eventually(lambda: len(tree.queue(name)) == 1)
        network.heal()
        eventually(lambda: len(tree.queue(name)) == 2)
        assert tree.queue(name)[1] != old
        assert waits(waiting, 0.01)
        token = held.token
    assert waiting.result(PATIENCE) is True
    assert tree.token(name) > token


@pytest.mark.slow
@everywhere
def test_a_waiter_whose_session_the_server_ends_starts_over(using, servers, tree, actor, name):
    with Lock(name, using="other"):
        waiting = actor("thread", using).lock(name).start("acquire")
        eventually(lambda: len(tree.queue(name)) == 2)
        expire(servers[0], locks[using].client.kazoo.client_id)
        eventually(lambda: len(tree.queue(name)) == 2)
        assert waits(waiting, 0.01)
    assert waiting.result(PATIENCE) is True
    assert len(tree.queue(name)) == 1


@pytest.mark.parametrize("what", ["thread", "task"])
def test_a_waiter_gives_up_in_time_during_an_outage_and_leaves_no_node(
    using, network, tree, actor, name, what
):
    """Nobody can tell then whether someone else has the lock: that is no plain time-out."""
    with Lock(name, using="other"):
        person = actor(what, using)
        person.lock(name).locked()  # connects

        def is_told(limit):
            """Wait through an outage; False if the time was over before it could be noticed."""
            waiting = person.lock(name).start("acquire", timeout=limit)
            eventually(lambda: waiting.done() or len(tree.queue(name)) == 2)
            network.refuse()
            try:
                assert waiting.result(PATIENCE) is False
                return False
            except LockUnavailable:
                return True
            finally:
                network.heal()
                eventually(lambda: locks[using].client.connected)

        assert any(map(is_told, (1, 8)))
        assert person.lock(name).acquire(blocking=False) is False
        eventually(lambda: len(tree.queue(name)) == 1)


def test_who_waits_for_ever_is_told_when_there_is_nobody_to_wait_for(
    configure, network, actor, name, settings
):
    using = configure({"default": network.location}, timeout=2, session_timeout=2)
    options = settings.DISTLOCK["other"]["OPTIONS"]
    patient = {"timeout": PATIENCE, "session_timeout": PATIENCE}
    settings.DISTLOCK["other"]["OPTIONS"] = {**options, **patient}
    with Lock(name, using="other"):
        person = actor("thread", using)
        answered(person.lock(name).locked)  # connects
        waiting = person.lock(name).start("acquire")
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
