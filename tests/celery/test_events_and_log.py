"""Events and log lines name the lock and its token; the sweep is a task like others."""

import threading

import pytest

from distlock import Lock, locks
from distlock.celery import SKIPPED
from distlock.recipes import Semaphore
from distlock.types.lease import State
from tests.celery.app import app
from tests.celery.stage import LIMIT, cue, published
from tests.contract.actors import answered
from tests.contract.watch import eventually


@pytest.fixture
def events(prefork):
    """``events(task_id, kind)``: wait for an event about a task."""
    seen, changed = [], threading.Condition()

    def note(event):
        with changed:
            seen.append(event)
            changed.notify_all()

    def find(task_id, kind):
        return next((e for e in seen if e.get("uuid") == task_id and e["type"] == kind), None)

    def wait(task_id, kind):
        with changed:
            assert changed.wait_for(lambda: find(task_id, kind), LIMIT), seen
            return find(task_id, kind)

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": note})
        thread = threading.Thread(target=receiver.capture)  # it asks for a sign of life first
        thread.start()
        with changed:
            assert changed.wait_for(lambda: seen, LIMIT)
        yield wait
        receiver.should_stop = True
        thread.join(LIMIT)


@pytest.mark.slow
def test_events_name_the_lock_and_its_token(tasks, key, using, events):
    first = tasks.skip.delay(key)
    token = published(f"{key}:started")["token"]
    event = events(first.id, "task-locked")
    assert (event["lock"], event["using"], event["token"]) == (key, using, token)
    skipped = tasks.skip.delay(key)
    assert f"(token {token})" in events(skipped.id, "task-skipped")["reason"]
    busy = tasks.retry.delay(key)
    assert key in events(busy.id, "task-busy")["reason"]
    assert events(busy.id, "task-retried")
    cue(f"{key}:end", 2)
    assert busy.get(timeout=LIMIT) == key


def test_the_log_names_the_lock_and_its_token(tasks, key, using, prefork):
    result = tasks.skip.delay(key)
    token = published(f"{key}:started")["token"]
    prefork.await_log(
        f"Task {tasks.skip.name}[{result.id}] runs under lock {key!r} on {using!r}, token {token}"
    )
    cue(f"{key}:end")
    result.get(timeout=LIMIT)


def test_a_short_run_keeps_its_lock_for_a_while(tasks, key, using):
    first = tasks.minute.delay(key)
    assert first.get(timeout=LIMIT) == "done"
    assert locks[using].inspect(key).state is State.HELD
    again = tasks.minute.delay(key)
    again.get(timeout=LIMIT)
    assert again.state == SKIPPED


def test_the_sweep_is_a_task(key, prefork):
    answered(Lock(key, using="mariadb", lease=0.5, renew=False).acquire)
    with Semaphore(key, 3, using="mariadb"):
        pass
    eventually(lambda: locks["mariadb"].inspect(key).state is not State.HELD)
    app.send_task("distlock.sweep", kwargs={"using": ["mariadb", "zookeeper"]})
    eventually(lambda: locks["mariadb"].inspect(key).state is State.FREE)
    eventually(lambda: f"semaphore:{key}" not in locks["mariadb"].store.directories())
