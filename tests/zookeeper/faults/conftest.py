"""A first client that reaches its servers through a network that breaks; the others do not."""

import pytest

from distlock import Lock, locks
from tests.contract.actors import PATIENCE
from tests.zookeeper.conftest import running
from tests.zookeeper.faults.outages import ONE, THREE_SLOWLY
from tests.zookeeper.network import Network


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
def brief(configure, network):
    """The alias of the first client; its sessions, not those of the others, end soon."""
    return configure({"default": network.location}, brief=("default",))


@pytest.fixture
def successor(actor):
    """``successor(name, lock)``: another client takes the lock when it is free.

    Returns its token, and whether ``lock`` was still held, as its actor saw it at that moment.
    """

    def start(name, held):
        def take():
            lock = Lock(name, using="other", timeout=PATIENCE)
            lock.acquire()
            return lock.token, held.held

        return actor("thread", "other").call(take)

    return start
