"""Sessions that go to one node and then to another, as behind a balancer."""

import threading

import pytest
from django.core.checks import run_checks
from django.db import connections

from distlock import Lock, locks
from tests.contract.watch import eventually
from tests.databases import moved
from tests.galera.conftest import NODES
from tests.servers.proxy import Proxy


@pytest.fixture
def balancer(nodes):
    """Leads to the last node; what uses that node's alias goes through it."""
    with Proxy(nodes[2].port) as balancer, moved(NODES[2], balancer.port):
        locks.close_all()
        yield balancer
        locks.close_all()
    connections[NODES[2]].close()


def test_a_node_that_is_cut_off_is_left_for_another_one(nodes, balancer, name):
    held = Lock(name, using=NODES[2], lease=60)
    held.acquire()
    nodes[2].isolate()
    eventually(nodes[2].is_cut_off)
    # The old connection is still there: only what the server says can tell.
    balancer.lead_new_to(nodes[0].port)
    held.verify()
    held.release()
    with Lock(name, using=NODES[0], timeout=0):
        pass


def test_a_hold_is_known_to_a_node_that_lags_behind(nodes, balancer, name, monkeypatch):
    """Sessions for locks wait for what other nodes have committed, whatever the project sets."""
    monkeypatch.setitem(connections.settings[NODES[2]], "OPTIONS", {})
    with nodes[0].locked():
        held = Lock(name, using=NODES[2], lease=60)
        held.acquire()
        balancer.lead_new_to(nodes[0].port)
        locks.close_all()
        unlocking = threading.Timer(1, nodes[0].unlock)
        unlocking.start()
        held.verify()
        unlocking.join()
    held.release()


@pytest.mark.parametrize(("wait", "warned"), [(0, True), (7, False)])
def test_what_a_cluster_has_to_set_is_checked(nodes, settings, wait, warned):
    settings.DISTLOCK = {"default": settings.DISTLOCK[NODES[0]]}
    locks.close_all()
    with connections[NODES[0]].cursor() as cursor:
        cursor.execute(f"SET SESSION wsrep_sync_wait = {wait}")
    found = run_checks(tags=["distlock"], databases=[NODES[0]])
    assert [message.obj for message in found if message.id == "distlock.W007"] == (
        ["DISTLOCK['default']"] if warned else []
    )
