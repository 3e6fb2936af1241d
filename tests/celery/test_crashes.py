"""No hold outlives its worker, and none is freed while its worker works on."""

import os
import signal

import pytest
from celery.exceptions import (
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
)

from distlock import Lock, locks
from distlock.types.lease import State
from tests.celery.app import app
from tests.celery.stage import LIMIT, cue, published, silence
from tests.celery.tasks import OF, QUEUEING, queueing_of
from tests.contract.watch import eventually

pytestmark = pytest.mark.once


@pytest.fixture
def limited(key):
    """``limited(task, time_limit=1)``: a run that has begun before the limit ended it."""

    def run(task, **limit):
        result = task.apply_async((key,), **limit)
        try:
            published(f"{key}:started", LIMIT / 3)
        except AssertionError:  # the machine was busy for all that time
            result = task.apply_async((key,), **dict.fromkeys(limit, 10))
            published(f"{key}:started")
        return result

    return run


@pytest.fixture
def states(using, key):
    """The states of the task's two locks."""
    return lambda: (
        locks[using].inspect(key).state,
        locks[queueing_of(using)].inspect(f"queueing:{key}").state,
    )


HELD = (State.HELD, State.HELD)


#: Each of these starts a worker of its own, and what they show has little to do with the backend.
BOTH = ["mariadb", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("zookeeper", "etcd"))]


def until_free(states):
    """Wait until both locks may be taken."""
    eventually(lambda: State.HELD not in states())


@pytest.mark.slow
def test_a_pool_process_is_killed(tasks, key, states):
    result = tasks.doomed.delay(key)
    pid = published(f"{key}:started")["pid"]
    assert states() == HELD
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        result.get(timeout=LIMIT)
    until_free(states)


@pytest.mark.slow
@pytest.mark.parametrize("using", ["mariadb"])  # in ZooKeeper it ends with the process
def test_the_lock_of_a_killed_process_stays_taken_for_at_least_so_long(tasks, key, using, states):
    for task, name in ((tasks.doomed_minute, f"{key}-minute"), (tasks.doomed, key)):
        result = task.delay(name)
        os.kill(published(f"{name}:started")["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            result.get(timeout=LIMIT)
    until_free(states)
    assert locks[using].inspect(f"{key}-minute").state is State.HELD


@pytest.mark.slow
def test_the_one_who_waits_for_a_killed_process_comes_next(tasks, key):
    tasks.doomed.delay(key)
    first = published(f"{key}:started")
    second = tasks.wait.delay(key)
    os.kill(first["pid"], signal.SIGKILL)
    assert published(f"{key}:started")["token"] > first["token"]
    cue(f"{key}:end")
    assert second.get(timeout=LIMIT) == key


@pytest.mark.slow
def test_the_hard_time_limit_is_over(tasks, limited, states):
    result = limited(tasks.doomed, time_limit=1)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=LIMIT)
    until_free(states)


def test_the_soft_time_limit_is_over(tasks, limited, states):
    result = limited(tasks.doomed, soft_time_limit=1)
    eventually(result.failed)
    until_free(states)


@pytest.mark.slow
def test_the_soft_time_limit_is_over_while_an_event_is_sent(tasks, limited, states):
    result = limited(tasks.slow_event, soft_time_limit=1)
    eventually(result.ready)
    assert isinstance(result.result, SoftTimeLimitExceeded)
    until_free(states)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["doomed", "late"])
@pytest.mark.parametrize("signame", ["SIGTERM", "SIGKILL"])
def test_the_task_is_terminated(tasks, key, states, signame, name):
    result = getattr(tasks, name).delay(key)
    published(f"{key}:started")
    app.control.revoke(result.id, terminate=True, signal=signame)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=LIMIT)
    until_free(states)


@pytest.mark.slow
def test_a_message_comes_again_after_its_process_was_killed(tasks, key, states):
    result = tasks.late.delay(key)
    first = published(f"{key}:started")
    os.kill(first["pid"], signal.SIGKILL)
    second = published(f"{key}:started")
    assert (second["id"], second["token"] > first["token"]) == (result.id, True)
    assert states() == HELD
    assert tasks.late.delay(key).id == result.id
    cue(f"{key}:end")
    assert result.get(timeout=LIMIT) == key
    until_free(states)


def test_two_copies_of_one_message_exclude_each_other(tasks, key, states, prefork):
    """As when Redis delivers a task again because it has not been acknowledged in time."""
    result = tasks.late.apply_async((key,), queue="twice")
    with app.connection_for_write() as connection:
        twice = connection.SimpleQueue("twice")
        message = twice.get(timeout=5)
        message.ack()
        body, headers = message.body, dict(message.headers)
        properties = {"correlation_id": result.id, "content_type": message.content_type,
                      "content_encoding": message.content_encoding}  # fmt: skip
        for _ in range(2):
            connection.Producer().publish(
                body, headers=headers, routing_key="prefork", exchange="", **properties
            )
        twice.close()
    published(f"{key}:started")
    eventually(lambda: prefork.log.count(f"[{result.id}] received") == 2)
    assert silence(f"{key}:started")
    cue(f"{key}:end")
    published(f"{key}:started")
    cue(f"{key}:end")
    until_free(states)


@pytest.mark.slow
@pytest.mark.parametrize("using", BOTH)
def test_the_whole_worker_is_killed(start_worker, key, using, states):
    worker = start_worker("killed", "prefork", 1).ready()
    OF[using].retry.apply_async((key,), queue="killed")
    published(f"{key}:started")
    worker.kill()
    until_free(states)


@pytest.mark.slow
@pytest.mark.parametrize("using", BOTH)
@pytest.mark.parametrize(
    ("how", "signum"), [("warm", signal.SIGTERM), ("cold", signal.SIGQUIT)]
)  # fmt: skip
def test_the_worker_is_shut_down(start_worker, key, using, states, how, signum):
    worker = start_worker(how, "prefork", 1).ready()
    result = OF[using].doomed.apply_async((key,), queue=how)
    published(f"{key}:started")
    worker.signal(signum)
    if how == "warm":
        worker.await_log("Warm shutdown")
        assert states() == HELD
        cue(f"{key}:end")
        assert result.get(timeout=LIMIT) == key
    worker.wait()
    until_free(states)


@pytest.mark.slow
@pytest.mark.parametrize("using", ["mariadb"])
def test_a_place_is_kept_while_the_message_waits_for_another_worker(
    start_worker, key, using, states
):
    task = OF[using].late_wait
    worker = start_worker("leaving", "prefork", 1).ready()
    with Lock(key, using=using) as lock:
        result = task.apply_async((key,), queue="leaving", expires=600)
        eventually(lambda: lock.info().waiters)
        worker.signal(signal.SIGQUIT)
        worker.wait()
        assert states() == HELD
        assert locks[QUEUEING].inspect(f"queueing:{key}").remaining <= 600
        assert task.apply_async((key,), queue="leaving").id == result.id
    start_worker("leaving", "prefork", 1).ready()
    published(f"{key}:started")
    eventually(lambda: states() == (State.HELD, State.FREE))
    cue(f"{key}:end")
    assert result.get(timeout=LIMIT) == key
