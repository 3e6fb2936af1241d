"""Processes of a worker join a group by the setting, and leave it with the worker."""

from __future__ import annotations

import os
import signal
from itertools import islice

import pytest

from distlock.recipes import Group
from tests.contract.actors import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def group(broker, settings, key):
    """The group that workers join; they are started after that."""
    settings.DISTLOCK_GROUPS = {"celery": key, "using": "mariadb"}
    return Group(key, using="mariadb")


def test_each_process_of_a_pool_is_a_member_until_it_ends(group, start_worker, key):
    worker = start_worker(key, "prefork", 2).ready()
    assert group.wait_for(2, PATIENCE)
    members = group.members()
    assert worker.pid not in {member.owner.pid for member in members}
    for member in members:
        assert member.data == {
            "role": "celery",
            "worker": f"{key}@tests",
            "queues": sorted([key, "many"]),
        }
        assert member.name.endswith(f":{member.owner.pid}")
    changes = group.changes(3 * PATIENCE)
    assert [change.what for change in islice(changes, 2)] == ["joined", "joined"]
    os.kill(members[0].owner.pid, signal.SIGKILL)
    told = {change.what: change.member for change in islice(changes, 2)}
    assert told["crashed"] == members[0]
    assert told["joined"].owner.pid != members[0].owner.pid  # Celery has replaced it
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert [change.what for change in islice(changes, 2)] == ["left", "left"]
    worker.close()


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_a_pool_without_processes_is_one_member(group, start_worker, key, pool):
    worker = start_worker(key, pool, 2).ready()
    assert group.wait_for(1, PATIENCE)
    (member,) = group.members()
    assert member.owner.pid == worker.pid
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert group.members() == ()
    worker.close()
