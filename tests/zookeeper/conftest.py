"""Clients of a ZooKeeper, and a look at its tree that goes past all of them."""

import uuid

import pytest
from kazoo.client import KazooClient

from distlock import locks
from tests.contract.actor_process import actors
from tests.servers.process import START_LIMIT
from tests.servers.zookeeper import Ensemble, ZooKeeper
from tests.zookeeper.tree import Tree

BACKEND = "distlock.backends.zookeeper.ZooKeeperBackend"

#: seconds, of sessions whose end is waited for; a lease lasts two thirds of it
SESSION = 4
#: seconds, of all others: they are to survive a machine that stands still for a moment
LONG_SESSION = 10

#: each alias is a client of its own, as if it were another process
CLIENTS = ("default", "other", "third")


@pytest.fixture
def root():
    """A node of the test's own, below which its locks are."""
    return f"/test-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def ensemble():
    """Three servers that are one service."""
    with Ensemble(3, stallable=True) as servers:
        yield servers


@pytest.fixture(params=[pytest.param(1, id="one")])
def servers(request):
    """The servers that the clients of the test use, all of them up."""
    yield from running(request)


def running(request):
    """Yield one server or three, as the parameter has it, and mend them afterwards."""
    if request.param == 1:
        one = request.getfixturevalue("zookeeper")
        yield [one]
        one.heal()
    else:
        several = request.getfixturevalue("ensemble")
        yield several.members
        several.heal()


@pytest.fixture
def hosts(servers):
    """The connection string of the servers."""
    return ",".join(server.url for server in servers)


@pytest.fixture
def configure(settings, root, hosts):
    """``configure({alias: location}, option=value)``: clients that reach the servers in a way.

    Of the clients ``brief`` the sessions end soon after nothing is heard of them.
    """

    def make(locations=None, *, brief=(), **options):
        usual = {
            "root": root,
            "session_timeout": LONG_SESSION,
            "timeout": 2 * SESSION,
            "retry": {"max_delay": SESSION / 10},
        }
        settings.DISTLOCK = {
            alias: {
                "BACKEND": BACKEND,
                "LOCATION": hosts,
                "OPTIONS": {
                    **usual,
                    **({"session_timeout": SESSION} if alias in brief else {}),
                    **options,
                },
            }
            for alias in CLIENTS
        }
        for alias, location in (locations or {}).items():
            settings.DISTLOCK[alias] = {**settings.DISTLOCK[alias], "LOCATION": location}
        locks.close_all()
        return "default"

    yield make
    locks.close_all()


@pytest.fixture
def using(configure):
    """The alias of the first client."""
    return configure()


@pytest.fixture
def brief(configure):
    """The alias of the first client; its sessions, not those of the others, end soon."""
    return configure(brief=("default",))


@pytest.fixture
def store(using):
    return locks[using].store


@pytest.fixture
def other(using):
    """The store of another client."""
    return locks["other"].store


@pytest.fixture
def sent(backend, monkeypatch):
    """The requests of each time that some were sent at once."""
    client, together = backend.client, []
    send_all = client.send_all

    def send(requests, only_if=None):
        together.append(requests)
        return send_all(requests, only_if)

    monkeypatch.setattr(client, "send_all", send)
    return together


@pytest.fixture
def tree(hosts, root):
    """The nodes as they are, read on a session of its own."""
    kazoo = KazooClient(hosts=hosts, timeout=10, command_retry={"max_tries": -1, "max_delay": 1})
    kazoo.start(START_LIMIT)
    yield Tree(kazoo, root)
    kazoo.stop()
    kazoo.close()


@pytest.fixture
def actor(loop):
    """``actor("thread", using)``: an actor; see actors()."""
    with actors(loop) as make:
        yield make


@pytest.fixture(scope="session")
def long_sessions():
    """A server that keeps silent sessions for ten minutes if it is asked to."""
    with ZooKeeper(properties={"maxSessionTimeout": "600000"}) as server:
        yield server
