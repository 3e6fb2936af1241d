"""Servers that answer, and write late: what was asked for is carried out in the end, but once."""

from contextlib import suppress

import pytest

from distlock import Lock, LockUnavailable
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.servers.zookeeper import stalled_disks
from tests.zookeeper.conftest import SESSION
from tests.zookeeper.faults.outages import THREE

ONE_SLOWLY = pytest.param(1, id="one", marks=pytest.mark.slow)

pytestmark = pytest.mark.parametrize("servers", [ONE_SLOWLY, THREE], indirect=True)

#: Seconds: sessions last, and clients lose patience with one server after the other.
STALL = SESSION * 3 / 4

WAYS = ["thread", pytest.param("task", marks=pytest.mark.slow)]


@pytest.fixture
def using(configure):
    return configure(session_timeout=SESSION)


@pytest.fixture
def person(using, actor, request, name):
    """Someone who is connected, and has had the lock before."""
    person = actor(getattr(request, "param", "thread"), using)
    person.take(name).release()
    return person


@pytest.mark.slow
@pytest.mark.parametrize("person", WAYS, indirect=True)
def test_a_lock_that_nobody_else_wants_is_had_by_its_one_node(person, servers, tree, name):
    lock = person.lock(name)
    with stalled_disks(servers):
        taking = lock.start("acquire", timeout=PATIENCE / 3)
        passed(STALL)
        assert not taking.done()
    assert taking.result(PATIENCE) is True
    lock.verify()
    assert len(tree.queue(name)) == 1
    lock.release()
    eventually(lambda: tree.queue(name) == [])


@pytest.mark.slow
@pytest.mark.parametrize("person", WAYS, indirect=True)
def test_one_try_is_no_reason_to_say_that_someone_else_has_it(person, servers, tree, name):
    lock = person.lock(name)
    with stalled_disks(servers):
        taking = lock.start("acquire", blocking=False)
        passed(STALL)
    try:
        assert taking.result(PATIENCE) is True
        lock.release()
    except LockUnavailable:
        pass
    eventually(lambda: tree.queue(name) == [])


@pytest.mark.slow
@pytest.mark.parametrize("person", ["thread", "task"], indirect=True)
def test_a_time_limit_that_ends_meanwhile_leaves_nothing(person, servers, tree, name):
    with stalled_disks(servers):
        taking = person.lock(name).start("acquire", timeout=STALL / 2)
        with pytest.raises(LockUnavailable):
            taking.result(PATIENCE)
    assert Lock(name, using="other", timeout=PATIENCE).acquire() is True
    eventually(lambda: len(tree.queue(name)) == 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["thread", "task"])
def test_who_waits_in_vain_leaves_nothing(configure, actor, servers, tree, name, what):
    """Behind a holder whose lease lasts through the time in which it cannot be renewed."""
    using = configure(session_timeout=3 * SESSION)
    person = actor(what, using)
    person.take(f"{name}:connected")
    with Lock(name, using="other"):
        with stalled_disks(servers):
            taking = person.lock(name).start("acquire", timeout=2 * STALL)
            passed(STALL)
        with suppress(LockUnavailable):  # the last answer may be late, too
            assert taking.result(PATIENCE) is False
        eventually(lambda: len(tree.queue(name)) == 1)
