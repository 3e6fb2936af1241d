"""An election and a queue whose processes use different nodes at once."""

import os
import random
import threading
import time
from collections import Counter
from queue import Empty

import pytest

from distlock import LockError, LockUnavailable
from distlock.recipes import Election, Queue
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.faults.checker import Log, check
from tests.galera.conftest import NODES

#: seconds
LEASE = 4
#: leaders that are killed
KILLS = 5
#: items of each producer
ITEMS = 15


@pytest.fixture
def options():
    return {"timeout": LEASE}


def lead_now_and_then(node, name, path):
    """As a child: stand, lead for a moment, resign, and stand again, whatever fails."""
    log = Log(path)
    told = threading.Thread(target=read_line, daemon=True)
    told.start()
    while told.is_alive():
        election = Election(name, f"{node}-{os.getpid()}", using=node)
        try:
            if election.campaign(timeout=1):
                log.write("enter", election.term, os.getpid())
                time.sleep(random.uniform(0, 0.3))
                log.write("leave", election.term, os.getpid())
        except LockUnavailable:
            time.sleep(0.1)
        finally:
            give_up(election)


def give_up(election):
    while True:
        try:
            return election.resign()
        except LockUnavailable:
            time.sleep(0.1)
        except LockError:  # it did not lead, or does no more
            return None


def test_one_leads_at_a_time_whichever_node_it_uses(nodes, settings, child, name, log):
    """Leaders are killed where they lead; each term is greater than the one before it."""
    settings.DISTLOCK = {alias: {**one, "LEASE": LEASE} for alias, one in settings.DISTLOCK.items()}
    people = [child(lead_now_and_then, node, name, log.path) for node in NODES]
    for number in range(KILLS):
        before = len(log.events())
        eventually(lambda before=before: len(log.events()) > before + 4, 2 * PATIENCE)
        inside = log.events()[-1]
        victim = next((one for one in people if str(one.pid) == inside[2]), people[0])
        log.write("kill", victim.pid)
        victim.kill()
        people.remove(victim)
        people.append(child(lead_now_and_then, NODES[number % 3], name, log.path))
    before = len(log.events())
    pids = {str(one.pid) for one in people}
    eventually(lambda: {event[-1] for event in log.events()[before:]} == pids, 4 * PATIENCE)
    for one in people:
        one.tell("end")
        one.finish()
    assert check(log.events()) > 3 * KILLS


def produce(node, name):
    """As a child: put items, each until it is known to be in the queue."""
    queue = Queue(name, maxsize=10, using=node)
    accepted, doubtful = [], []
    for number in range(ITEMS):
        body = f"{node}:{number}"
        while True:
            try:
                queue.put(body)
                accepted.append(body)
            except LockUnavailable as error:
                if not error.maybe_applied:
                    continue
                doubtful.append(body)
            break
    write_line(",".join(accepted) or "-", ",".join(doubtful) or "-")


def consume(node, name):
    """As a child: work on items until told to end; says which ones it has acknowledged."""
    told = threading.Thread(target=read_line, daemon=True)
    told.start()
    queue, done = Queue(name, maxsize=10, max_deliveries=100, using=node), []
    while told.is_alive():
        try:
            with queue.get(timeout=0.5) as delivery:
                body = delivery.body
            done.append(body)
        except (Empty, LockError):
            pass
    write_line(",".join(done) or "-")


def test_each_item_is_done_by_one_consumer_whichever_node_it_uses(nodes, child, name):
    """Producers and consumers at each node; nothing fails, so nothing is delivered twice."""
    consumers = [child(consume, node, name) for node in NODES]
    producers = [child(produce, node, name) for node in NODES]
    accepted, doubtful = [], []
    for one in producers:
        known, unknown = one.line(4 * PATIENCE).split()
        accepted += [] if known == "-" else known.split(",")
        doubtful += [] if unknown == "-" else unknown.split(",")
        one.finish()
    queue = Queue(name, using=NODES[0])
    assert queue.join(2 * PATIENCE)
    done = Counter()
    for one in consumers:
        one.tell("end")
        words = one.line(PATIENCE)
        done.update([] if words == "-" else words.split(","))
        one.finish()
    assert done.keys() >= set(accepted)
    assert done.keys() <= {*accepted, *doubtful}
    assert set(done.values()) == {1}
    assert queue.dead() == ()
