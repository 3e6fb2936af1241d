"""A cluster of three, each node a database and a backend of its own: ``node1`` to ``node3``."""

from contextlib import suppress

import pytest
from django.db import connections

from distlock import locks
from tests.databases import migrate
from tests.faults.checker import Log
from tests.servers.galera import Galera

#: the aliases of the nodes, in ``DATABASES`` and in ``DISTLOCK``
NODES = ["node1", "node2", "node3"]


def pytest_itemcollected(item):
    item.add_marker("slow")
    item.add_marker(pytest.mark.timeout(300))


def running(seconds_ahead=()):
    """Yield a cluster whose nodes are behind the aliases; the table of locks is on all of them."""
    before = _forgotten()
    with Galera(seconds_ahead=seconds_ahead) as cluster:
        for alias, node in zip(NODES, cluster.members, strict=True):
            # What a project has to set where its connections go to different nodes.
            options = {"init_command": "SET SESSION wsrep_sync_wait = 7"}
            entry = {**node.django(), "OPTIONS": options}
            connections.settings[alias] = {**connections.settings["mariadb"], **entry}
        migrate(NODES[0])
        yield cluster
    _forgotten()
    connections.settings.update(before)


def _forgotten():
    """Let nobody know the nodes any more; where they were."""
    for alias in NODES:
        with suppress(AttributeError):  # there may be no connection
            del connections[alias]
    return {
        alias: connections.settings.pop(alias) for alias in set(NODES) & connections.settings.keys()
    }


@pytest.fixture(scope="session")
def cluster(committed_tables):
    """The servers, whose clocks are right."""
    yield from running()


@pytest.fixture
def options():
    """What a test wants to have in ``OPTIONS``."""
    return {}


@pytest.fixture
def nodes(cluster, options, settings):
    """The servers, healed after the test; ``DISTLOCK`` has a backend for each node."""
    backend = "distlock.backends.database.DatabaseBackend"
    settings.DISTLOCK = {
        alias: {"BACKEND": backend, "OPTIONS": {"database": alias, "idle": 60, **options}}
        for alias in NODES
    }
    yield cluster.members
    cluster.heal()
    locks.close_all()
    for alias in NODES:
        connections[alias].close()


@pytest.fixture
def log(tmp_path):
    """The events of processes that take turns."""
    log = Log(tmp_path / "events")
    yield log
    log.close()
