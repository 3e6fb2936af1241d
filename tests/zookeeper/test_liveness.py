"""Leases are counted from what the leader is known to have heard; silent servers are left."""

import socket

import pytest

from distlock import Lock, LockLost, locks
from distlock.backends.zookeeper.connection import SessionLiveness
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually
from tests.servers.proxy import Proxy
from tests.zookeeper.conftest import CLIENTS, SESSION
from tests.zookeeper.network import server_of

LEASE = SESSION * 2 / 3


@pytest.fixture
def liveness():
    return SessionLiveness(100.0, 10.0)


def test_a_new_connection_was_confirmed_by_the_leader(liveness):
    assert liveness.counted_from(100.5) == 100.0
    assert liveness.counted_from(109.0) == 100.0


def test_an_answer_says_what_the_leader_had_heard_by_then(liveness):
    liveness.add(103.0)
    assert liveness.counted_from(103.0) == 100.0
    assert liveness.counted_from(103.9) == 100.0  # the server may not have reported it yet
    assert liveness.counted_from(104.1) == 103.0
    liveness.add(104.1)
    assert liveness.counted_from(104.1) == 103.0


def test_many_answers_in_a_moment_do_not_push_out_the_earlier_ones(liveness):
    for number in range(10_000):
        liveness.add(104 + number / 100_000)
    assert liveness.counted_from(104.1) == 100.0


def paused(using):
    """Make a client believe that nothing of it was heard for more than a third of its session."""
    locks[using].client.connection.liveness = SessionLiveness(clock() - SESSION / 2, SESSION)


def test_after_a_pause_a_renewal_waits_until_the_leader_must_have_heard(brief, name):
    backend = locks[brief]
    lease = backend.try_acquire(Claim(name, current_owner(), LEASE))
    paused(brief)
    begun_at = clock()
    assert backend.renew([lease]) == {lease.nonce: True}
    counted_from = backend.client.counted_from(clock())
    assert counted_from >= begun_at - SESSION / 3  # what a lease leaves of its session


def test_after_a_pause_the_lease_of_a_lock_that_is_taken_ends_earlier(brief, name):
    backend = locks[brief]
    Lock(name, using=brief).locked()  # connects
    paused(brief)
    backend.client.connection.liveness.add = lambda sent_at: None  # of a ping
    session_ends_at = clock() + SESSION / 2
    lease = backend.try_acquire(Claim(name, current_owner(), LEASE))
    assert lease.deadline <= session_ends_at
    backend.release(lease)


@pytest.mark.slow
def test_a_server_that_falls_silent_is_left_for_another_and_a_loss_is_told(
    long_sessions, configure, name
):
    """A server that has died does not even close its connections."""
    with Proxy(long_sessions.port) as one, Proxy(long_sessions.port) as two:
        location = f"{one.host}:{one.port},{two.host}:{two.port}"
        using = configure({"default": location}, session_timeout=4, timeout=PATIENCE)
        on_lost = Once()
        lock = Lock(name, using=using, on_lost=on_lost)
        lock.acquire()
        token = lock.token
        port = server_of(using)[1]
        silent, other = (one, two) if port == one.port else (two, one)
        silent.silence()
        eventually(lambda: other.connections)
        with Lock(f"{name}:next", using=using):
            assert server_of(using)[1] == other.port
        try:
            lock.verify()
            assert lock.token == token
        except LockLost:  # its lease has ended before another server was found
            on_lost.wait()
        locks.close_all()


@pytest.mark.slow
def test_a_server_that_accepts_a_connection_and_says_nothing_is_left_in_time(
    long_sessions, configure, name
):
    """As one may that is being started; each of three clients comes upon it or upon the other."""
    with socket.create_server(("127.0.0.1", 0)) as mute, Proxy(long_sessions.port) as good:
        location = f"127.0.0.1:{mute.getsockname()[1]},{good.host}:{good.port}"
        configure(dict.fromkeys(CLIENTS, location), session_timeout=60, timeout=4)
        for alias in CLIENTS:
            with Lock(name, using=alias) as lock:
                lock.verify()
        locks.close_all()
