"""The clocks of the nodes are two seconds apart."""

import time

import pytest

from distlock import Lock, LockTimeout
from tests.contract.actors import PATIENCE
from tests.faults.checker import check
from tests.galera.conftest import NODES, running
from tests.galera.turns import all_take_part, crowd, outcomes

SECONDS = 15
#: by how many seconds the clocks of the nodes are wrong
AHEAD = [0.0, 2.0, -2.0]


@pytest.fixture(scope="module")
def cluster(committed_tables):
    yield from running(AHEAD)


def test_the_clocks_are_apart(nodes):
    for node, ahead in zip(nodes, AHEAD, strict=True):
        before = time.time()
        ((there,),) = node.execute("SELECT UNIX_TIMESTAMP(SYSDATE(6))")
        assert before - 0.5 < float(there) - ahead < time.time() + 0.5


def test_processes_at_all_nodes_exclude_each_other_and_tokens_grow(nodes, child, name, log):
    people = crowd(child, name, log)
    all_take_part(people, log)
    time.sleep(SECONDS)
    found = outcomes(people)
    assert check(log.events()) == sum(turns for turns, _ in found)
    assert [errors for _, errors in found if errors] == []


def test_a_lease_that_is_renewed_is_not_taken_over_by_whose_clock_is_ahead(nodes, name):
    with Lock(name, using=NODES[2], lease=15) as lock:
        with pytest.raises(LockTimeout), Lock(name, using=NODES[1], timeout=20):
            pass
        lock.verify()


def test_tokens_grow_from_node_to_node(nodes, name):
    tokens = []
    for node in [NODES[1], NODES[2], NODES[0]] * 3:
        with Lock(name, using=node, timeout=PATIENCE) as lock:
            tokens.append(lock.token)
    assert tokens == sorted(set(tokens))
