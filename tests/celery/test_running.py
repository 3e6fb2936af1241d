"""A task's lock is held while it runs, and what a busy one does."""

import pytest

from distlock import LockBusy, LockTimeout
from distlock.celery import SKIPPED
from distlock.types.lease import State
from tests.celery.stage import LIMIT, cue, published, silence
from tests.celery.tasks import ETCD, report
from tests.contract.watch import eventually


def test_a_task_runs_under_its_lock(tasks, key, holder, prefork):
    result = tasks.skip.delay(key)
    token = published(f"{key}:started")["token"]
    info = holder()
    assert (info.state, info.token) == (State.HELD, token)
    assert info.description == f"Celery task {tasks.skip.name}[{result.id}]"
    cue(f"{key}:end")
    assert result.get(timeout=LIMIT) == key
    assert holder().state is State.FREE
    assert f"runs under lock '{key}'" in prefork.log


@pytest.mark.parametrize("using", [ETCD])
def test_tasks_take_turns_in_etcd(tasks, key, holder):
    results = [tasks.wait.delay(key) for _ in range(2)]
    token = published(f"{key}:started")["token"]
    assert holder().token == token
    assert silence(f"{key}:started")
    cue(f"{key}:end", 2)
    assert published(f"{key}:started")["token"] > token
    assert [result.get(timeout=LIMIT) for result in results] == [key] * 2


def test_a_busy_task_is_skipped(tasks, key, prefork):
    first = tasks.skip.delay(key)
    published(f"{key}:started")
    second, third = tasks.skip.delay(key), tasks.skip_given.delay(key)
    assert second.get(timeout=LIMIT) is None
    assert third.get(timeout=LIMIT) == {"skipped": True}
    assert (second.state, second.ready(), second.successful()) == (SKIPPED, True, True)
    assert f"[{first.id}]" in second.traceback
    assert f"Task {tasks.skip.name}[{second.id}] is skipped: lock {key!r}" in prefork.log
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key
    assert first.state == "SUCCESS"


def test_a_busy_task_fails_if_that_is_wanted(tasks, key):
    first = tasks.refuse.delay(key)
    published(f"{key}:started")
    with pytest.raises(LockBusy, match=key):
        tasks.refuse.delay(key).get(timeout=LIMIT)
    cue(f"{key}:end")
    first.get(timeout=LIMIT)


def test_a_busy_task_is_queued_again_without_using_up_its_retries(tasks, key, prefork):
    first = tasks.retry.delay(key)
    published(f"{key}:started")
    second = tasks.retry.delay(key)
    prefork.await_log(f"{second.id}] is requeued")
    eventually(lambda: second.state == "RETRY")
    assert second.children == []  # it has not called itself
    cue(f"{key}:end", 2)
    assert first.get(timeout=LIMIT) == second.get(timeout=LIMIT) == key
    assert published(f"{key}:started") | {"pid": 0, "token": 0} == {
        "id": second.id, "retries": 0, "pid": 0, "token": 0,
    }  # fmt: skip


def test_it_is_not_queued_again_for_ever(tasks, key):
    first = tasks.retry_twice.delay(key)
    published(f"{key}:started")
    with pytest.raises(LockTimeout, match="each of 3 times"):
        tasks.retry_twice.delay(key).get(timeout=LIMIT)
    cue(f"{key}:end")
    first.get(timeout=LIMIT)


def test_a_busy_task_waits_in_its_worker(tasks, key):
    first = tasks.wait.delay(key)
    published(f"{key}:started")
    second = tasks.wait.delay(key)
    with pytest.raises(LockTimeout, match=r"0\.2 s"):
        tasks.wait_briefly.delay(key).get(timeout=LIMIT)
    assert silence(f"{key}:started")
    cue(f"{key}:end", 2)
    assert first.get(timeout=LIMIT) == second.get(timeout=LIMIT) == key


def test_a_class_and_defaults(broker, prefork):
    assert report.delay(7).get(timeout=LIMIT) == "report:7:monthly"
    assert report.delay(7, kind="yearly").get(timeout=LIMIT) == "report:7:yearly"
