"""Leases are counted from what the leader is known to have heard; silent servers are left."""

import socket

import pytest

from distlock import Lock, locks
from distlock.backends.zookeeper.evidence import Evidence
from distlock.clock import clock
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.servers.proxy import Proxy
from tests.zookeeper.conftest import CLIENTS, SESSION

LEASE = SESSION * 2 / 3


@pytest.fixture
def evidence():
    found = Evidence(100.0)
    found.session_timeout = 10.0
    return found


def test_a_new_connection_was_confirmed_by_the_leader(evidence):
    assert evidence.counted_from(100.5) == 100.0
    assert evidence.counted_from(109.0) == 100.0


def test_an_answer_says_what_the_leader_had_heard_by_then(evidence):
    evidence.add(103.0)
    assert evidence.counted_from(103.0) == 100.0
    assert evidence.counted_from(103.9) == 100.0  # the server may not have reported it yet
    assert evidence.counted_from(104.1) == 103.0
    evidence.add(104.1)
    assert evidence.counted_from(104.1) == 103.0


def test_many_answers_in_a_moment_do_not_push_out_the_earlier_ones(evidence):
    for number in range(10_000):
        evidence.add(104 + number / 100_000)
    assert evidence.counted_from(104.1) == 100.0


def paused(using):
    """Make a client believe that nothing of it was heard for more than a third of its session."""
    wire = locks[using]._client._handler.wire
    wire.evidence = Evidence(clock() - SESSION / 2)
    wire.evidence.session_timeout = SESSION


def test_after_a_pause_a_renewal_waits_until_the_leader_must_have_heard(using, name):
    lock = Lock(name, using=using, renew=False)
    lock.acquire()
    backend, lease = locks[using], lock._hold.lease
    paused(using)
    begun_at = clock()
    assert backend.renew([lease]) == {lease.nonce: True}
    counted_from = locks[using]._client.counted_from(clock())
    assert counted_from >= begun_at - SESSION / 3  # what a lease leaves of its session


def test_after_a_pause_the_lease_of_a_lock_that_is_taken_ends_earlier(using, backend, name):
    Lock(name, using=using).locked()  # connects
    paused(using)
    locks[using]._client._handler.wire.evidence.add = lambda sent_at: None  # of a ping
    session_ends_at = clock() + SESSION / 2
    lease = backend.try_acquire(Claim(name, current_owner(), LEASE))
    assert lease.deadline <= session_ends_at
    backend.release(lease)


def test_a_hold_moves_to_another_server_when_its_own_says_nothing(
    patient, configure, tree, name, caplog
):
    """Before its lease ends; a server that has died so does not even close its connections."""
    with Proxy(patient.port) as one, Proxy(patient.port) as two:
        location = f"{one.host}:{one.port},{two.host}:{two.port}"
        using = configure({"default": location}, session_timeout=9, timeout=10)
        lock = Lock(name, using=using)
        lock.acquire()
        token = lock.token
        its_own, other = (one, two) if one.connections else (two, one)
        its_own.silence()
        lock.verify()
        assert other.connections
        assert "a request is not answered" in caplog.text  # kazoo finds out later, by itself
        assert lock.token == token
        lock.release()
        locks.close_all()


def test_a_server_that_accepts_a_connection_and_says_nothing_is_left_in_time(
    patient, configure, name
):
    """As one may that is being started; each of three clients comes upon it or upon the other."""
    with socket.create_server(("127.0.0.1", 0)) as mute, Proxy(patient.port) as good:
        location = f"127.0.0.1:{mute.getsockname()[1]},{good.host}:{good.port}"
        configure(dict.fromkeys(CLIENTS, location), session_timeout=60, timeout=4)
        for alias in CLIENTS:
            with Lock(name, using=alias) as lock:
                lock.verify()
        locks.close_all()
