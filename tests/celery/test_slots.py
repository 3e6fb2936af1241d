"""At most so many runs of a task at a time, over all workers; the others come later, or never."""

import os
import signal
import uuid

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, WorkerLostError
from django.core.checks import run_checks

from distlock import LockLost, NotSupported
from distlock.apps import CHECKS_TAG
from distlock.backends.base import BaseBackend
from distlock.backends.local import LocalBackend
from distlock.celery import SKIPPED, locked_task
from distlock.recipes import Semaphore
from locksite.demo.models import Entry
from tests.celery.app import app
from tests.celery.stage import LIMIT, cue, published, silence
from tests.celery.tasks import BACKENDS, ETCD, OF
from tests.contract.watch import eventually

pytestmark = pytest.mark.once

#: Each of these starts a worker of its own, and what they show has little to do with the backend.
BOTH = ["mariadb", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("zookeeper", ETCD))]


@pytest.fixture
def slots(using, key):
    """The slots of the tasks, as the test sees them."""
    return Semaphore(key, 2, using=using)


def until_free(slots, taken=0):
    """Wait until so many slots are taken."""
    eventually(lambda: slots.info().taken == taken)


@pytest.mark.parametrize("using", [*BACKENDS, ETCD])
def test_as_many_run_as_there_are_slots_and_all_come_to_it(tasks, key, slots):
    results = [tasks.slot_wait.delay(key, number) for number in range(4)]  # a process for each
    running = [published(f"{key}:started"), published(f"{key}:started")]
    eventually(lambda: len(slots.info().waiters) == 2)
    for _ in range(2):
        assert silence(f"{key}:started")
        assert slots.info().taken == 2
        cue(f"{key}:end")
        running.append(published(f"{key}:started"))
    cue(f"{key}:end", 2)
    assert [result.get(timeout=LIMIT) for result in results] == [key] * 4
    assert len({run["pid"] for run in running}) > 1
    tokens = [run["token"] for run in running]
    assert (sorted({run["number"] for run in running}), len(set(tokens))) == ([0, 1, 2, 3], 4)
    assert max(tokens[:2]) < tokens[2] < tokens[3]
    until_free(slots)


def test_who_finds_no_free_slot_is_skipped_or_queued_again(tasks, key, slots, prefork):
    with slots, slots:
        skipped, later = tasks.slot_skip.delay(key), tasks.slot_retry.delay(key)
        assert skipped.get(timeout=LIMIT) is None
        full = f"semaphore {key!r} on {slots.using!r} has no free slot (2 of 2); held for longest"
        assert (skipped.state, full in skipped.traceback) == (SKIPPED, True)
        prefork.await_log(f"Task {tasks.slot_skip.name}[{skipped.id}] is skipped: {full}")
        log = prefork.await_log(f"[{later.id}] is requeued")
        assert f"s later: {full}" in log[log.index(f"[{later.id}] is requeued") :]
    token = published(f"{key}:started")["token"]
    prefork.await_log(
        f"Task {tasks.slot_retry.name}[{later.id}] runs under semaphore {key!r} on"
        f" {slots.using!r}, token {token}"
    )
    cue(f"{key}:end")
    assert later.get(timeout=LIMIT) == key


@pytest.mark.parametrize("using", ["mariadb"])
def test_who_says_another_number_during_a_deploy_comes_later(tasks, key, slots, prefork):
    old = tasks.slot_retry.delay(key)
    published(f"{key}:started")
    new = tasks.slot_of_three.delay(key)
    log = prefork.await_log(f"[{new.id}] is requeued")
    said = log[log.index(f"[{new.id}] is requeued") :]
    assert f"value=3: semaphore {key!r} has 2 seats for its present users" in said
    assert silence(f"{key}:started")
    cue(f"{key}:end")
    assert old.get(timeout=LIMIT) == key
    published(f"{key}:started")
    assert slots.info().slots == 3
    cue(f"{key}:end")
    assert new.get(timeout=LIMIT) == key


@pytest.mark.parametrize("using", ["mariadb"])
def test_the_number_can_be_changed_while_all_runs(tasks, key, slots, prefork):
    results = [tasks.slot_agreed.delay(key), tasks.slot_agreed.delay(key)]
    prefork.await_log(f"[{results[0].id}] is requeued")  # nobody has said a number yet
    slots.resize(1)
    published(f"{key}:started")
    eventually(lambda: "no free slot (1 of 1)" in prefork.log)
    assert silence(f"{key}:started")
    slots.resize(2)
    published(f"{key}:started")
    assert slots.info().taken == 2
    cue(f"{key}:end", 2)
    assert [result.get(timeout=LIMIT) for result in results] == [key] * 2


def test_a_task_may_take_another_seat_and_keeps_its_own(tasks, key):
    assert tasks.slot_within_slot.delay(key).get(timeout=LIMIT) == [1, 2, 1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_tasks_many_workers_of_every_kind(prefork, threads, gevent, solo, using):
    trace = uuid.uuid4().hex
    keys = [f"{trace[:8]}{number}" for number in range(3)]
    results = [
        OF[using].log_slots.apply_async((keys[number % 3], trace), queue="many")
        for number in range(120)
    ]
    for result in results:
        result.get(timeout=60)
    entries = Entry.objects.using("mariadb").filter(trace=trace)
    for key in keys:
        stays = entries.filter(client=key).order_by("at", "pk").values_list("what", flat=True)
        inside = [0]
        for what in stays:
            inside.append(inside[-1] + (1 if what == Entry.What.ENTER else -1))
        assert (len(stays), max(inside) <= 3, inside[-1]) == (2 * 40, True, 0)
        assert max(inside) > 1
    entries.delete()


# No seat outlives its worker.


@pytest.mark.parametrize("using", BOTH)
def test_the_seat_of_a_pool_process_that_is_killed_is_free(tasks, key, slots):
    results = [tasks.slot_doomed.delay(key), tasks.slot_doomed.delay(key)]
    killed = published(f"{key}:started")
    other = published(f"{key}:started")
    waiting = tasks.slot_doomed.delay(key)
    eventually(lambda: len(slots.info().waiters) == 1)
    os.kill(killed["pid"], signal.SIGKILL)
    lost = next(result for result in results if result.id == killed["id"])
    with pytest.raises(WorkerLostError):
        lost.get(timeout=LIMIT)
    assert published(f"{key}:started")["id"] == waiting.id
    tokens = {holder.token for holder in slots.info().holders}
    assert (other["token"] in tokens, killed["token"] in tokens, len(tokens)) == (True, False, 2)
    cue(f"{key}:end", 2)
    assert waiting.get(timeout=LIMIT) == key
    until_free(slots)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "error"),
    [({"soft_time_limit": 2}, Exception), ({"time_limit": 2}, TimeLimitExceeded)],
    ids=["soft", "hard"],
)
def test_a_time_limit_is_over(tasks, key, slots, limit, error):
    with pytest.raises(error):
        tasks.slot_doomed.apply_async((key,), **limit).get(timeout=LIMIT)
    until_free(slots)


@pytest.mark.slow
@pytest.mark.parametrize("signame", ["SIGTERM", "SIGKILL"])
def test_a_task_is_terminated_that_runs_or_waits(tasks, key, slots, signame):
    first, second = tasks.slot_doomed.delay(key), tasks.slot_doomed.delay(key)
    ids = {published(f"{key}:started")["id"], published(f"{key}:started")["id"]}
    assert ids == {first.id, second.id}
    waiting = tasks.slot_doomed.delay(key)
    eventually(lambda: len(slots.info().waiters) == 1)
    for result in (waiting, first, second):
        app.control.revoke(result.id, terminate=True, signal=signame)
        with pytest.raises(TaskRevokedError):
            result.get(timeout=LIMIT)
    eventually(lambda: not slots.info().waiters)
    until_free(slots)


@pytest.mark.slow
def test_a_process_that_is_stopped_for_longer_than_its_lease_has_lost_its_seat(tasks, key, slots):
    stopped, other = tasks.slot_checked.delay(key), tasks.slot_checked.delay(key)
    runs = {run["id"]: run for run in (published(f"{key}:started"), published(f"{key}:started"))}
    pid = runs[stopped.id]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = tasks.slot_wait.delay(key, 1)
        third = published(f"{key}:started", LIMIT)
        assert third["id"] == waiting.id
        tokens = {holder.token for holder in slots.info().holders}
        assert tokens == {runs[other.id]["token"], third["token"]}
    finally:
        os.kill(pid, signal.SIGCONT)
    cue(f"{key}:end", 3)
    with pytest.raises(LockLost):
        stopped.get(timeout=LIMIT)
    assert waiting.get(timeout=LIMIT) == key
    other.get(timeout=LIMIT)
    until_free(slots)


@pytest.mark.slow
def test_a_task_whose_seat_is_broken_is_ended(tasks, key, slots):
    result = tasks.slot_watchful.delay(key)
    token = published(f"{key}:started")["token"]
    assert slots.force_release(token)
    with pytest.raises(LockLost, match=rf"semaphore '{key}' \(token {token}\)"):
        result.get(timeout=LIMIT)
    until_free(slots)


@pytest.mark.slow
@pytest.mark.parametrize("using", BOTH)
def test_the_whole_worker_is_killed(start_worker, key, using, slots):
    worker = start_worker("slots-killed", "prefork", 1).ready()
    OF[using].slot_retry.apply_async((key,), queue="slots-killed")
    published(f"{key}:started")
    worker.kill()
    assert slots.info().taken == 1
    until_free(slots)  # when the lease ends


@pytest.mark.slow
@pytest.mark.parametrize("using", BOTH)
@pytest.mark.parametrize(("how", "signum"), [("warm", signal.SIGTERM), ("cold", signal.SIGQUIT)])
def test_the_worker_is_shut_down(start_worker, key, using, slots, how, signum):
    worker = start_worker(f"slots-{how}", "prefork", 1).ready()
    result = OF[using].slot_doomed.apply_async((key,), queue=f"slots-{how}")
    published(f"{key}:started")
    worker.signal(signum)
    if how == "warm":
        worker.await_log("Warm shutdown")
        assert slots.info().taken == 1
        cue(f"{key}:end")
        assert result.get(timeout=LIMIT) == key
    worker.wait()
    until_free(slots)


# Without records


class LocksOnly(LocalBackend):
    """A backend that keeps no records."""

    store = BaseBackend.store


def report():
    """The body of a task."""


def test_a_backend_without_records_is_refused(settings):
    settings.DISTLOCK = {"default": {"BACKEND": f"{__name__}.LocksOnly"}}
    refused = r"task mail\.report: slots=3: DISTLOCK\['default'\]: LocksOnly keeps locks only"
    with pytest.raises(NotSupported, match=refused):
        locked_task(name="mail.report", lock="a", slots=3)(report)


def test_a_check_finds_it_too(settings):
    settings.DISTLOCK = {"default": {"BACKEND": "distlock.backends.local.LocalBackend"}}
    locked_task(name="mail.report", lock="a", slots=3)(report)
    settings.DISTLOCK = {"default": {"BACKEND": f"{__name__}.LocksOnly"}}
    checked = run_checks(tags=[CHECKS_TAG])
    found = {message.obj: message.msg for message in checked if message.id == "distlock.E008"}
    assert "slots=3: DISTLOCK['default']" in found["task mail.report"]
