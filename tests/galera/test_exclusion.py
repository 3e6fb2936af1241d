"""Processes take turns through different nodes: never two at once, and tokens grow."""

import time

import pytest

from distlock import Lock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.faults.checker import check
from tests.galera.conftest import NODES
from tests.galera.turns import all_take_part, crowd, outcomes

#: how long, in seconds, processes take turns
SECONDS = 15


@pytest.mark.parametrize(
    ("options", "seats"),
    [({}, False), ({"wait": "poll"}, False), ({}, True)],
    ids=["native", "poll", "seats"],
)
def test_processes_at_all_nodes_exclude_each_other(nodes, child, name, log, seats):
    people = crowd(child, name, log, seats=seats)
    all_take_part(people, log)
    time.sleep(SECONDS)
    found = outcomes(people)
    assert check(log.events()) == sum(turns for turns, _ in found)
    assert [errors for _, errors in found if errors] == []


def kill(nodes):
    nodes[2].kill()
    time.sleep(2)
    nodes[2].start()


def stop(nodes):
    nodes[1].stop()
    nodes[1].start()


def pause(nodes):
    nodes[0].pause()
    time.sleep(7)  # the others wait for it for less
    nodes[0].resume()


def isolate(nodes):
    nodes[1].isolate()
    eventually(nodes[1].is_cut_off)
    nodes[1].isolate(False)


@pytest.mark.parametrize("fault", [kill, stop, pause, isolate])
def test_while_a_node_is_gone_for_a_while(nodes, child, name, log, fault):
    people = crowd(child, name, log, lease=4, timeout=2)
    all_take_part(people, log)
    fault(nodes)
    all_take_part(people, log)
    outcomes(people)
    check(log.events())
    lock = Lock(name, using=NODES[0], timeout=PATIENCE)
    assert lock.acquire()
    assert lock.token > max(int(event[1]) for event in log.events())
    lock.release()
