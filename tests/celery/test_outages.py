"""What becomes of tasks while a backend cannot be asked for their locks."""

import os
import signal
import time

import pytest
from celery.exceptions import WorkerLostError
from django.test import override_settings

from distlock import Lock, LockUnavailable, locks
from distlock.types.lease import State
from tests.celery.conftest import LEASE
from tests.celery.stage import LIMIT, cue, published
from tests.celery.tasks import (
    FRAGILE,
    OF,
    PATIENT,
    fragile_auto,
    fragile_briefly,
    fragile_long,
    fragile_queued,
    fragile_retry,
    refuse_auto,
)
from tests.celery.tasks import patient as patient_task
from tests.contract.watch import eventually, passed
from tests.databases import ALIASES, moved
from tests.nodes import ROOT
from tests.servers.guard import descendants
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.once

#: Seconds for which the session of a killed process goes on.
PATIENCE = 40.0


@pytest.fixture(scope="module")
def fragile(locked, postgresql, zookeeper):
    """Locks in PostgreSQL: the network of the worker breaks; the test's own does not."""
    from django.conf import settings

    entry = {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "LEASE": LEASE,
        "OPTIONS": {"database": ALIASES["postgresql"], "idle": 60},
    }
    patient = {
        **settings.DISTLOCK["zookeeper"],
        "OPTIONS": {"root": ROOT, "session_timeout": PATIENCE},
    }
    wanted = {**settings.DISTLOCK, FRAGILE: entry, PATIENT: patient}
    with Proxy(postgresql.port) as proxy, override_settings(DISTLOCK=wanted):
        yield proxy


@pytest.fixture(scope="module")
def worker(start_worker, fragile):
    """A worker that reaches PostgreSQL through the proxy, and soon gives up an answer.

    The test's own requests may take as long as they do on a machine that stands still.
    """
    from django.conf import settings

    entry = settings.DISTLOCK[FRAGILE]
    hasty = {**entry, "OPTIONS": {**entry["OPTIONS"], "timeout": 1}}
    with (
        moved(ALIASES["postgresql"], fragile.port),
        override_settings(DISTLOCK={**settings.DISTLOCK, FRAGILE: hasty}),
    ):
        worker = start_worker("outages", "prefork", 2)
    return worker.ready()


@pytest.fixture
def proxy(worker, fragile):
    """The network between the worker and PostgreSQL."""
    yield fragile
    fragile.heal()


@pytest.mark.parametrize("fault", ["refuse", "drop_replies"])
def test_a_busy_task_keeps_its_place_while_that_cannot_be_asked_for(worker, proxy, key, fault):
    task = OF["mariadb"].both_fragile
    with Lock(key, using="mariadb"):
        first = task.apply_async((key,), queue=worker.queue)
        worker.await_log(f"{first.id}] is requeued")
        getattr(proxy, fault)()
        worker.await_log(f"queueing lock 'queueing:{key}' ")
        proxy.heal()
        assert task.delay(key).id == first.id
    published(f"{key}:started")
    eventually(lambda: locks[FRAGILE].inspect(f"queueing:{key}").state is State.FREE)
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key


@pytest.mark.slow
def test_a_place_that_nobody_could_free_is_not_that_of_the_next_call(worker, proxy, key):
    proxy.refuse()
    first = fragile_queued.apply_async((key,), queue=worker.queue)
    pid = published(f"{key}:started")["pid"]
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key
    os.kill(pid, signal.SIGKILL)  # what was to free the place is gone with it
    eventually(lambda: pid not in descendants(worker.pid))  # it is given no other task
    proxy.heal()
    assert locks[FRAGILE].inspect(f"queueing:{key}").state is State.HELD
    second = fragile_queued.apply_async((key,), queue=worker.queue)
    assert second.id != first.id
    published(f"{key}:started")
    cue(f"{key}:end")
    assert second.get(timeout=LIMIT) == key


def test_a_late_release_does_not_free_the_place_of_a_retry(worker, proxy, key):
    place = f"queueing:{key}"
    release = proxy.delay(place.encode())
    first = fragile_queued.apply_async((key, True), queue=worker.queue)
    assert release.kept_back.wait(LIMIT)
    published(f"{key}:started")  # the worker has given up waiting for an answer
    eventually(lambda: locks[FRAGILE].inspect(place).state is State.FREE)
    cue(f"{key}:end")
    eventually(lambda: first.state == "RETRY")
    assert locks[FRAGILE].inspect(place).state is State.HELD
    release.end()
    passed(1)  # nobody is told when the server has carried it out
    assert fragile_queued.apply_async((key,), queue=worker.queue).id == first.id
    assert fragile_queued.unqueue(key) == first.id


def begin(task, key, worker):
    """Have the worker begin with a task; return its result when it has tried once."""
    result = task.apply_async((key,), queue=worker.queue)
    eventually(lambda: result.state != "PENDING")
    return result


def test_a_task_whose_lock_cannot_be_asked_for_is_requeued(worker, proxy, key):
    proxy.refuse()
    result = begin(fragile_retry, key, worker)
    assert result.state == "RETRY"
    proxy.heal()
    assert published(f"{key}:started")["retries"] == 0
    cue(f"{key}:end")
    assert result.get(timeout=LIMIT) == key


def test_a_task_is_requeued_for_so_long_and_fails_then(worker, proxy, key):
    proxy.refuse()
    result = begin(fragile_briefly, key, worker)
    with pytest.raises(LockUnavailable):
        result.get(timeout=LIMIT)
    assert worker.log.count(f"{result.id}] is requeued") == 2  # for 0.1 s, then for 0.2 s


def test_celery_retries_a_task_whose_lock_cannot_be_asked_for(worker, proxy, key):
    proxy.refuse()
    result = begin(fragile_auto, key, worker)
    assert result.state == "RETRY"
    proxy.heal()
    assert published(f"{key}:started")["retries"] > 0
    cue(f"{key}:end")
    assert result.get(timeout=LIMIT) == key


def test_celery_retries_a_task_whose_lock_is_busy(worker, key):
    with Lock(key, using="mariadb"):
        result = begin(refuse_auto, key, worker)
        assert result.state == "RETRY"
    assert published(f"{key}:started")["retries"] > 0
    cue(f"{key}:end")
    assert result.get(timeout=LIMIT) == key
    assert locks["mariadb"].inspect(key).state is State.FREE


def kill(task, key, worker):
    """Kill the process that runs the task once it has begun; return when that was."""
    result = task.apply_async((key,), queue=worker.queue)
    pid = published(f"{key}:started")["pid"]
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        result.get(timeout=LIMIT)
    return killed_at


@pytest.mark.slow
def test_a_lock_in_zookeeper_is_freed_before_the_session_of_a_killed_process_ends(worker, key):
    killed_at = kill(patient_task, key, worker)
    eventually(lambda: locks[PATIENT].inspect(key).state is State.FREE)
    assert time.monotonic() - killed_at < PATIENCE * 0.75
    # The process that takes the place of the killed one is forked from one that is connected now.
    names = [f"{key}-{number}" for number in range(2)]
    results = [patient_task.apply_async((name,), queue=worker.queue) for name in names]
    for name in names:
        published(f"{name}:started")
        cue(f"{name}:end")
    assert [result.get(timeout=LIMIT) for result in results] == names


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_a_killed_process_held_is_freed_after_a_long_outage(worker, proxy, key):
    """The worker goes on trying for as long as the lease lasts, not for a minute or so."""
    result = fragile_long.apply_async((key,), queue=worker.queue)
    pid = published(f"{key}:started")["pid"]
    proxy.refuse()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        result.get(timeout=LIMIT)
    time.sleep(100)  # the outage itself: longer than any minute of tries
    assert locks[FRAGILE].inspect(key).state is State.HELD
    proxy.heal()
    eventually(lambda: locks[FRAGILE].inspect(key).state is State.FREE)
