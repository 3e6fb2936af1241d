"""The same under every pool: processes, threads, greenlets, and none."""

import signal

import pytest

from distlock import LockLost, locks
from distlock.celery import SKIPPED
from distlock.types.lease import State
from tests.celery.stage import LIMIT, cue, published
from tests.celery.tasks import BACKENDS, OF, QUEUEING, leave_behind, tries

pytestmark = pytest.mark.once

#: Pools by how long a task may be in a system call when it is to be ended.
NAPS = {"prefork": 30, "threads": 0.01, "gevent": 30, "solo": 30}


@pytest.fixture(scope="module", params=["threads", "gevent", "solo", "prefork"])
def worker(request):
    """A worker with that pool."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def tasks(using, worker):
    """The tasks with locks in that backend."""
    return OF[using]


@pytest.fixture
def side_by_side(worker):
    """Skip nothing: how many tasks the worker runs at once."""
    return 1 if worker.queue == "solo" else 2


@pytest.mark.slow
def test_each_run_has_a_lock_of_its_own(tasks, key, using, worker, side_by_side):
    keys = [f"{key}-{number}" for number in range(side_by_side)]
    results = [tasks.wait.apply_async((key,), queue=worker.queue) for key in keys]
    for each in keys:
        assert published(f"{each}:started")["token"] == locks[using].inspect(each).token
    for each in keys:
        cue(f"{each}:end")
    assert [result.get(timeout=LIMIT) for result in results] == keys
    assert {locks[using].inspect(each).state for each in keys} == {State.FREE}


def test_tasks_of_one_key_take_turns(tasks, key, worker, side_by_side):
    first = tasks.wait.apply_async((key,), queue=worker.queue)
    token = published(f"{key}:started")["token"]
    if side_by_side > 1:
        skipped = tasks.skip.apply_async((key,), queue=worker.queue)
        assert skipped.get(timeout=LIMIT) is None
        assert skipped.state == SKIPPED
    second = tasks.wait.apply_async((key,), queue=worker.queue)
    cue(f"{key}:end", 2)
    assert published(f"{key}:started")["token"] > token
    assert first.get(timeout=LIMIT) == second.get(timeout=LIMIT) == key


@pytest.mark.slow
def test_a_task_whose_lock_is_lost_is_ended(tasks, key, using, worker):
    result = tasks.watchful.apply_async((key, NAPS[worker.queue]), queue=worker.queue)
    token = published(f"{key}:started")["token"]
    locks[using].force_release(key, token)
    published(f"{key}:ended")
    with pytest.raises(LockLost, match=rf"lock '{key}' \(token {token}\) was lost"):
        result.get(timeout=LIMIT)
    again = tasks.wait.apply_async((key,), queue=worker.queue)  # nothing is left in the worker
    published(f"{key}:started")
    cue(f"{key}:end")
    assert again.get(timeout=LIMIT) == key


def test_a_queueing_lock_is_freed(tasks, key, using, worker):
    result = tasks.queued_whole.apply_async((key,), queue=worker.queue)
    published(f"{key}:started")
    assert tasks.queued_whole.apply_async((key,), queue=worker.queue).id == result.id
    cue(f"{key}:end")
    result.get(timeout=LIMIT)
    assert locks[QUEUEING].inspect(f"queueing:{key}").state is State.FREE


@pytest.mark.parametrize(
    "pool",
    [*(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "gevent")), "solo"],
)
def test_a_warm_shutdown_lets_tasks_end(start_worker, key, pool):
    worker = start_worker(f"warm-{pool}", pool, 1).ready()
    results = []
    for using in BACKENDS[: 1 if pool == "solo" else 2]:
        each = f"{key}-{using}"
        results.append(OF[using].wait.apply_async((each,), queue=worker.queue))
        if pool != "solo":
            worker.await_log(f"{results[-1].id}] received")
    published(f"{key}-mariadb:started")
    worker.signal(signal.SIGTERM)
    for using in BACKENDS:
        cue(f"{key}-{using}:end")
    assert results[0].get(timeout=LIMIT)
    worker.wait()
    assert locks["mariadb"].inspect(f"{key}-mariadb").state is State.FREE


@pytest.mark.parametrize(
    "pool",
    [
        "prefork",
        "threads",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("gevent", "solo")),
    ],
)
def test_a_plain_task_does_not_enter_what_another_one_has_left_behind(start_worker, key, pool):
    """Both run in one process, and on one thread."""
    worker = start_worker(f"plain-{pool}", pool, 1).ready()
    send = {"args": (key, "mariadb"), "queue": worker.queue}
    assert leave_behind.apply_async(**send).get(timeout=LIMIT) is True
    assert tries.apply_async(**send).get(timeout=LIMIT) is False
    assert worker.await_log(f"ended without releasing lock {key!r}")
