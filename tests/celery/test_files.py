"""The same with messages that are files, as the demo has them, published by other processes."""

import json
import os
import signal

import pytest

from distlock import locks
from distlock.types.lease import State
from tests.celery.app import HANDED
from tests.celery.stage import LIMIT, cue, published, silence
from tests.celery.tasks import OF, QUEUEING, queueing_of
from tests.children import write_line
from tests.contract.watch import eventually

pytestmark = pytest.mark.once


def submit(using, name, *keys):
    """In a publisher's process: call a task for each key, and say what came of them."""
    task = getattr(OF[using], name)
    results = [task.apply_async((key,), queue="files") for key in keys]
    write_line(json.dumps([result.id for result in results]))
    write_line(json.dumps([result.get(timeout=LIMIT, interval=0.05) for result in results]))


@pytest.fixture(scope="module")
def conf(tmp_path_factory):
    """An app's settings for messages and results in a folder."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("messages", "done", "results"):
        (folder / name).mkdir()
    return {
        "broker_url": "files://",
        "broker_transport_options": {
            "data_folder_in": f"{folder}/messages",
            "data_folder_out": f"{folder}/messages",
            "control_folder": f"{folder}/control",
            "processed_folder": f"{folder}/done",
            "store_processed": True,
            "polling_interval": 0.05,
        },
        "result_backend": f"file://{folder}/results",
        # Without an event loop, as with files, billiard waits for so long (ten seconds by default)
        # before it gives up a process that was killed.
        "worker_lost_wait": 1,
    }


@pytest.fixture(scope="module")
def worker(start_worker, conf):
    """A worker that takes its messages from files."""
    return start_worker("files", "prefork", 2, **conf).ready()


@pytest.fixture
def publisher(child, worker, conf):
    """``publisher(using, name, *keys)``: a process that submits tasks."""
    return lambda *arguments: child(submit, *arguments, env={HANDED: json.dumps(conf)})


def ids(publisher):
    return json.loads(publisher.line(LIMIT))


@pytest.mark.slow
def test_tasks_of_one_key_take_turns(publisher, using, key):
    one = publisher(using, "retry", key, key, key)
    token = published(f"{key}:started")["token"]
    assert locks[using].inspect(key).token == token
    assert silence(f"{key}:started")
    cue(f"{key}:end", 3)
    assert len(set(ids(one))) == 3
    assert json.loads(one.line(LIMIT)) == [key] * 3


@pytest.mark.slow
def test_two_processes_queue_a_task_once(publisher, using, key):
    one, other = (publisher(using, "queued_whole", key, key) for _ in range(2))
    assert len({*ids(one), *ids(other)}) == 1
    published(f"{key}:started")
    cue(f"{key}:end")
    assert json.loads(one.line(LIMIT)) == json.loads(other.line(LIMIT)) == [key] * 2
    assert silence(f"{key}:started")
    assert locks[QUEUEING].inspect(f"queueing:{key}").state is State.FREE


@pytest.mark.parametrize(
    "using",
    [*(pytest.param(using, marks=pytest.mark.slow) for using in ("mariadb", "zookeeper")), "etcd"],
)
def test_what_a_killed_process_held_is_free(publisher, using, key):
    publisher(using, "doomed", key)
    os.kill(published(f"{key}:started")["pid"], signal.SIGKILL)
    for backend, name in ((using, key), (queueing_of(using), f"queueing:{key}")):
        eventually(lambda: locks[backend].inspect(name).state is not State.HELD)  # noqa: B023
