"""A task's queueing lock is held from its publication on, and by nobody when it is free."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError
from django.core.management import CommandError, call_command
from kombu.exceptions import EncodeError

from distlock import locks
from distlock.celery import AlreadyQueued, messages, queueing
from distlock.types.lease import State
from tests.celery.app import app
from tests.celery.conftest import LEASE
from tests.celery.stage import LIMIT, cue, published, silence
from tests.celery.tasks import BACKENDS, ETCD, QUEUEING, echo
from tests.contract.watch import eventually

pytestmark = pytest.mark.once

#: A queue that nobody takes tasks from.
NOWHERE = "nowhere"


@pytest.fixture
def using():
    """Tasks with a queueing lock only, or where the running lock's backend makes no difference."""
    return QUEUEING


@pytest.fixture
def lock(key):
    """What is known of the queueing lock."""
    return lambda: locks[QUEUEING].inspect(f"queueing:{key}")


def test_a_second_call_queues_nothing_and_returns_the_first(tasks, key, lock):
    first = tasks.queued.apply_async((key,), queue=NOWHERE)
    assert lock().state is State.HELD
    assert lock().description == f"Celery task {tasks.queued.name}[{first.id}], queued"
    second = tasks.queued.apply_async((key,), queue="prefork")
    assert second.id == first.id
    assert silence(f"{key}:started")
    with pytest.raises(AlreadyQueued) as caught:
        tasks.queued_or_error.delay(key)
    assert caught.value.task_id == first.id


@pytest.mark.parametrize(("length", "known"), [(160, True), (161, False)])
def test_the_id_of_a_task_may_be_long(tasks, key, length, known):
    long = (key * 20)[:length]
    tasks.queued.apply_async((key,), queue=NOWHERE, task_id=long)
    if known:
        assert tasks.queued.delay(key).id == long
    else:
        with pytest.raises(AlreadyQueued) as caught:
            tasks.queued.delay(key)
        assert caught.value.task_id is None


def test_a_second_call_with_a_callback_returns_the_first_without_it(tasks, key, caplog):
    first = tasks.queued.apply_async((key,), queue=NOWHERE)
    assert tasks.queued.apply_async((key,), link=echo.s()).id == first.id
    assert "callbacks linked to this call will not be called" in caplog.text


def test_it_says_what_it_is_held_for(tasks, key, lock):
    first = tasks.queued_whole.delay(key)
    published(f"{key}:started")
    assert lock().description == f"Celery task {tasks.queued_whole.name}[{first.id}], running"
    cue(f"{key}:end")
    eventually(lambda: lock().state is State.FREE)


def test_it_is_kept_when_a_busy_task_cannot_be_queued_again(tasks, key, lock):
    first = tasks.both_late.delay(key)
    published(f"{key}:started")
    second = tasks.both_late.delay(key)
    cue(f"{key}:break")
    published(f"{key}:broken")  # the broker has the message still, and delivers it again
    assert tasks.both_late.delay(key).id == second.id
    cue(f"{key}:end", 2)
    assert first.get(timeout=LIMIT) == second.get(timeout=LIMIT) == key
    eventually(lambda: lock().state is State.FREE)


def test_it_is_free_when_the_task_has_started(tasks, key, lock):
    first = tasks.queued.delay(key)
    published(f"{key}:started")
    assert lock().state is State.FREE
    second = tasks.queued.delay(key)
    assert second.id != first.id
    cue(f"{key}:end", 2)
    assert first.get(timeout=LIMIT) == second.get(timeout=LIMIT) == key


@pytest.mark.parametrize("how", ["return", "fail", "ignore", "reject"])
def test_it_is_free_when_the_task_has_ended(tasks, key, lock, how):
    first = tasks.queued_whole.delay(key, how)
    published(f"{key}:started")
    assert lock().state is State.HELD
    assert tasks.queued_whole.delay(key).id == first.id
    cue(f"{key}:end")
    eventually(lambda: lock().state is State.FREE)


def test_it_is_kept_for_as_long_as_the_task_runs(tasks, key, lock):
    tasks.queued_whole.delay(key)
    published(f"{key}:started")
    ends = lock().until
    eventually(lambda: lock().until > ends)  # renewed
    assert lock().remaining <= LEASE
    cue(f"{key}:end")
    eventually(lambda: lock().state is State.FREE)


@pytest.mark.parametrize("name", ["queued_whole", "auto"])
def test_it_is_kept_across_the_tasks_own_retries(tasks, key, lock, name):
    task = getattr(tasks, name)
    first = task.delay(key, "retry") if name == "queued_whole" else task.delay(key)
    published(f"{key}:started")
    cue(f"{key}:end")
    assert published(f"{key}:started")["retries"] == 1
    assert task.delay(key).id == first.id
    assert lock().state is State.HELD
    cue(f"{key}:end")
    first.get(timeout=LIMIT, propagate=False)
    eventually(lambda: lock().state is State.FREE)


def test_it_is_kept_for_what_takes_the_tasks_place(tasks, key, lock):
    first = tasks.queued_whole.delay(key, "replace")
    published(f"{key}:started")
    cue(f"{key}:end")
    assert published(f"{key}:started")["id"] == first.id
    assert tasks.queued_whole.delay(key).id == first.id
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key
    eventually(lambda: lock().state is State.FREE)


def test_it_is_kept_when_the_broker_is_to_deliver_again(tasks, key, lock):
    first = tasks.requeued.delay(key)
    published(f"{key}:started")
    cue(f"{key}:end")
    published(f"{key}:started")
    assert tasks.requeued.delay(key).id == first.id
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key
    eventually(lambda: lock().state is State.FREE)


@pytest.mark.parametrize("using", BACKENDS)
def test_it_is_kept_while_a_busy_task_is_queued_again(tasks, key, lock, prefork):
    first = tasks.both.delay(key)
    published(f"{key}:started")
    second = tasks.both.delay(key)
    assert second.id != first.id
    prefork.await_log(f"{second.id}] is requeued")
    assert tasks.both.delay(key).id == second.id
    cue(f"{key}:end", 2)
    assert first.get(timeout=LIMIT) == second.get(timeout=LIMIT) == key
    assert lock().state is State.FREE


@pytest.mark.parametrize("using", [ETCD])
def test_it_is_kept_in_etcd_beside_the_running_lock(tasks, key, using):
    first = tasks.queued_whole.delay(key)
    published(f"{key}:started")
    assert locks[using].inspect(f"queueing:{key}").state is State.HELD
    assert tasks.queued_whole.delay(key).id == first.id
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key
    eventually(lambda: locks[using].inspect(f"queueing:{key}").state is State.FREE)


def test_it_is_freed_when_publishing_fails(tasks, key, lock):
    with pytest.raises(EncodeError):
        tasks.queued.delay(key, what=object())
    assert lock().state is State.FREE


def test_it_is_freed_when_a_task_that_has_started_cannot_be_queued_again(tasks, key, lock):
    tasks.queued_again.delay(key)
    published(f"{key}:started")
    eventually(lambda: lock().state is State.FREE)
    cue(f"{key}:break")
    cue(f"{key}:end")
    published(f"{key}:broken")
    eventually(lambda: lock().state is State.FREE)


def test_it_is_freed_when_the_task_is_revoked(tasks, key, lock, prefork):
    task_id = str(uuid.uuid4())
    # The worker knows of it before the task can have come.
    app.control.revoke(task_id, reply=True, timeout=LIMIT, destination=["prefork@tests"])
    first = tasks.queued.apply_async((key,), task_id=task_id)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=LIMIT)
    eventually(lambda: lock().state is State.FREE)


def test_it_is_free_when_the_result_was_told_to_revoke_the_task(tasks, key, lock):
    first = tasks.queued.apply_async((key,), queue=NOWHERE)
    other = tasks.queued.apply_async((f"{key}-b",), queue=NOWHERE)
    first.revoke()
    tasks.queued.AsyncResult(other.id).revoke()  # which does not know its arguments
    for argument in (key, f"{key}-b"):
        assert locks[QUEUEING].inspect(f"queueing:{argument}").state is State.FREE
        again = tasks.queued.delay(argument)
        assert published(f"{argument}:started")["id"] == again.id
        cue(f"{argument}:end")
        assert again.get(timeout=LIMIT) == argument


def test_it_passes_on_when_a_worker_knows_that_the_task_was_revoked(tasks, key):
    first = tasks.queued.apply_async((key,), countdown=600)
    app.control.revoke(first.id)
    eventually(lambda: first.state == "REVOKED")
    again = tasks.queued.delay(key)
    assert published(f"{key}:started")["id"] == again.id
    cue(f"{key}:end")
    assert again.get(timeout=LIMIT) == key


def test_a_call_is_taken_out_of_the_queue(tasks, key, lock, prefork):
    first = tasks.queued.apply_async((key,), countdown=600)
    assert tasks.queued.unqueue(key) == first.id
    assert lock().state is State.FREE
    with pytest.raises(TaskRevokedError):
        first.get(timeout=LIMIT)
    assert silence(f"{key}:started")
    assert tasks.queued.unqueue(key) is None


def test_a_call_that_has_started_is_not_taken_out_of_the_queue(tasks, key, lock):
    first = tasks.queued_whole.delay(key)
    published(f"{key}:started")
    assert tasks.queued_whole.unqueue(key) is None
    first.revoke()
    assert tasks.queued_whole.delay(key).id == first.id
    cue(f"{key}:end")
    eventually(lambda: lock().state is State.FREE)


@pytest.mark.parametrize("times", [1, 12])
def test_an_operator_finds_it_by_the_id_of_the_task(tasks, key, lock, capsys, times):
    task_id = "-".join([key] * times)
    tasks.queued.apply_async((key,), queue=NOWHERE, task_id=task_id)
    tasks.queued.apply_async((f"{key}-b",), queue=NOWHERE)
    call_command("locks", "release", "--task", task_id, "--yes", f"--using={QUEUEING}")
    assert f"control revoke {task_id}" in capsys.readouterr().out
    assert lock().state is State.FREE
    assert locks[QUEUEING].inspect(f"queueing:{key}-b").state is State.HELD
    with pytest.raises(CommandError, match="no queueing lock is held by a task with the id"):
        call_command("locks", "release", "--task", task_id, "--yes", f"--using={QUEUEING}")


def test_it_is_freed_when_the_task_expires(tasks, key):
    def left_as(name):
        first = tasks.queued.apply_async((name,), countdown=0.5, expires=0.2)
        with pytest.raises(TaskRevokedError):
            first.get(timeout=LIMIT)
        return eventually(
            lambda: (
                (info := locks[QUEUEING].inspect(f"queueing:{name}")).state is not State.HELD
                and info.state
            )
        )

    # It lasts for a second: on a machine that stands still, it may end before it is freed.
    assert any(left_as(f"{key}-{number}") is State.FREE for number in range(5))


def test_it_ends_when_the_message_is_lost(tasks, key, lock):
    first = tasks.queued.apply_async((key,), queue=NOWHERE, expires=1)
    eventually(lambda: lock().state is State.EXPIRED)
    second = tasks.queued.delay(key)
    assert second.id != first.id
    published(f"{key}:started")
    cue(f"{key}:end")
    second.get(timeout=LIMIT)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        (lambda now: {}, 3600),
        (lambda now: {"countdown": 600}, 4200),
        (lambda now: {"eta": now + timedelta(hours=1)}, 7200),
        (lambda now: {"expires": 60}, 60),
        (lambda now: {"expires": now + timedelta(seconds=90)}, 90),
        (lambda now: {"countdown": 600, "expires": 900}, 900),
    ],
)
def test_it_lasts_as_long_as_the_message_may_wait(tasks, key, lock, options, seconds):
    tasks.queued.apply_async((key,), queue=NOWHERE, **options(datetime.now(UTC)))
    assert seconds - 30 < lock().remaining <= seconds


def test_what_was_freed_by_time_is_not_freed_for_its_successor(tasks, key, lock):
    first = tasks.queued.apply_async((key,), queue="later", expires=1)
    eventually(lambda: lock().state is State.EXPIRED)
    second = tasks.queued.apply_async((key,), queue=NOWHERE)
    token = lock().token

    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("later").get(timeout=5)
        message.ack()
    header = messages.LockHeader.read(message.headers, first.id)
    queueing.release(header.queue_lock)
    assert (lock().state, lock().token) == (State.HELD, token)
    assert second.id in lock().description
