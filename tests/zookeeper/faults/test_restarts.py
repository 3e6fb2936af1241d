"""Servers that go away and come back."""

import pytest

from distlock import Lock, LockLost, LockTimeout, locks
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually, passed


@pytest.mark.slow
def test_holds_and_waits_outlast_servers_that_are_started_again(
    configure, servers, tree, actor, name
):
    """Sessions are kept on their disks, and clients wait for as long as they are told to."""
    using = configure(timeout=PATIENCE)
    lock = Lock(name, using=using)
    lock.acquire()
    token = lock.token
    waiting = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: len(tree.queue(name)) == 2)
    for server in servers:
        server.kill()
    for server in servers:
        server.launch()
    for server in servers:
        server.await_answer()
    had_by_the_next = waiting.done()  # first, because the lock may be lost any time
    try:
        lock.verify()
        assert lock.token == token
        assert not had_by_the_next
        lock.release()
    except LockLost:  # it has taken longer than a lease, on a slow machine
        assert not lock.held
    assert waiting.result(2 * PATIENCE) is True
    assert len(tree.queue(name)) == 1


@pytest.mark.slow
def test_what_nobody_has_is_freed_though_the_servers_were_away_for_longer_than_a_lease(
    brief, servers, tree, name
):
    """Where there was no server no session has ended, so what it holds is there again."""
    backend = locks[brief]
    lease = backend.try_acquire(Claim(name, current_owner(), backend.settings.lease))
    for server in servers:
        server.kill()
    backend.cleanup.add(lease.claim)  # as after an interrupt
    passed(lease.duration + 1)
    for server in servers:
        server.launch()
    for server in servers:
        server.await_answer()
    eventually(lambda: not tree.queue(name))
    eventually(lambda: not backend.cleanup.pending)


@pytest.mark.slow
def test_who_has_waited_long_enough_is_told_that_someone_else_has_it(using, name):
    def wait():
        with pytest.raises(LockTimeout), Lock(name, using=using, timeout=2):
            raise AssertionError("the body must not run")

    with Lock(name, using="other"):
        answered(wait)
