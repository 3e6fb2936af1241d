"""A transaction at one node commits only while no other node has given the lock away."""

import threading

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections

from distlock import Lock, LockLost, LockUnavailable
from tests.contract.actors import PATIENCE
from tests.galera.conftest import NODES

RACES = 200


def exists(node, name):
    return Group.objects.using(node).filter(name=name).exists()


class Race:
    """Somebody commits at one node while somebody else breaks the lock at another and takes it."""

    def __init__(self, name):
        self.name = name
        self.committed = self.error = self.token = None
        self.ready = threading.Barrier(2, timeout=PATIENCE)

    def run(self):
        other = threading.Thread(target=self.commit)
        other.start()
        self.ready.wait()
        rival, seen = Lock(self.name, using=NODES[1], timeout=PATIENCE), None
        if rival.force_release(self.token):
            with rival:
                seen = exists(NODES[1], self.name)
        other.join()
        if self.error:
            raise self.error
        assert exists(NODES[1], self.name) == self.committed
        return seen

    def commit(self):
        lock = Lock(self.name, using=NODES[0], timeout=PATIENCE)
        try:
            with lock.atomic():
                Group.objects.using(NODES[0]).create(name=self.name)
                self.token = lock.token
                self.ready.wait()
            self.committed = True
        except LockLost:
            self.committed = False
        except Exception as error:
            self.error = error
        finally:
            connections[NODES[0]].close()


def test_nothing_is_committed_after_another_node_has_given_the_lock_to_the_next(nodes, name):
    outcomes = []
    # Each of them may win: the races go on until both have.
    while len(outcomes) < RACES or (len(set(outcomes)) == 1 and len(outcomes) < 5 * RACES):
        race = Race(f"{name}:{len(outcomes)}"[-140:])
        seen = race.run()
        outcomes.append((race.committed, seen))
    connections[NODES[1]].close()
    # Who had the lock next did not see it, and yet it was committed.
    assert outcomes.count((True, False)) == 0, outcomes
    assert len(set(outcomes)) > 1, outcomes  # or it was no race


def test_who_loses_against_another_write_does_not_take_the_lock_for_lost(nodes, name):
    group = Group.objects.using(NODES[0]).create(name=name)
    lock = Lock(name, using=NODES[0])
    with lock:
        with pytest.raises((LockUnavailable, OperationalError), match="1213"), lock.atomic():
            Group.objects.using(NODES[0]).filter(pk=group.pk).update(name="first")
            Group.objects.using(NODES[1]).filter(pk=group.pk).update(name="second")
            assert Group.objects.using(NODES[2]).get(pk=group.pk).name == "second"
        lock.verify()
    assert Group.objects.using(NODES[0]).get(pk=group.pk).name == "second"
