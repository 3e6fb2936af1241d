"""Workers on a Redis broker, with locks in MariaDB, in ZooKeeper and in etcd."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from distlock import locks
from tests.celery import stage
from tests.celery.app import app
from tests.celery.tasks import BACKENDS, OF
from tests.celery.workers import Worker
from tests.databases import ALIASES
from tests.nodes import ROOT

LEASE = 6.0


@pytest.fixture(scope="package")
def locked(request: pytest.FixtureRequest) -> Iterator[None]:
    """The lock backends that tests and workers use."""
    mariadb = {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "LEASE": LEASE,
        "OPTIONS": {"database": ALIASES["mariadb"], "idle": 60},
    }
    request.getfixturevalue("mariadb")
    zookeeper = {
        "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
        "LOCATION": request.getfixturevalue("zookeeper").hosts,
        "OPTIONS": {"root": ROOT, "session_timeout": 1.5 * LEASE},
    }
    etcd = {
        "BACKEND": "distlock.backends.etcd.EtcdBackend",
        "LOCATION": request.getfixturevalue("etcd").hosts,
        "LEASE": LEASE,
    }
    wanted = {"default": mariadb, "mariadb": mariadb, "zookeeper": zookeeper, "etcd": etcd}
    with override_settings(DISTLOCK=wanted):
        yield
    # A sweep in a later test would count the sessions of workers that were killed, and the names.
    for table in ("session", "record", "directory"):
        request.getfixturevalue("mariadb").execute(f"DELETE FROM database_lock_{table}")


@pytest.fixture(scope="package")
def broker(redis: Any, locked: None) -> dict[str, Any]:
    """The app's settings for a broker and results in Redis."""
    os.environ[stage.URL] = redis.url
    conf = {
        "broker_url": redis.url,
        "result_backend": redis.url.rpartition("/")[0] + "/1",
        "broker_transport_options": {"visibility_timeout": 3600},
        "redis_socket_timeout": 30,
    }
    app.conf.update(conf)
    return conf


@pytest.fixture(scope="package")
def start_worker(broker: dict[str, Any]) -> Iterator[Callable[..., Worker]]:
    """``start_worker(queue, pool, concurrency, *arguments)``: ended after the tests."""
    with ExitStack() as after:

        def start(queue: str, *arguments: Any, **conf: Any) -> Worker:
            worker = Worker(queue, *arguments, conf={**broker, **conf})
            after.callback(worker.close)
            return worker

        yield start


@pytest.fixture(scope="package")
def prefork(start_worker: Callable[..., Worker]) -> Worker:
    """The worker that most tests use."""
    return start_worker("prefork", "prefork", 4, "--task-events").ready()


@pytest.fixture(scope="package")
def threads(start_worker: Callable[..., Worker]) -> Worker:
    return start_worker("threads", "threads", 4).ready()


@pytest.fixture(scope="package")
def gevent(start_worker: Callable[..., Worker]) -> Worker:
    return start_worker("gevent", "gevent", 4).ready()


@pytest.fixture(scope="package")
def solo(start_worker: Callable[..., Worker]) -> Worker:
    return start_worker("solo", "solo", 1).ready()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show with a failure what the workers have logged lately."""
    report: Any = yield
    if report.failed and hasattr(item, "funcargs"):
        workers = [value for value in item.funcargs.values() if isinstance(value, Worker)]
        report.sections.extend((worker.queue, worker.last_words()) for worker in workers)
    return report


@pytest.fixture(params=BACKENDS)
def using(request: pytest.FixtureRequest) -> str:
    """The alias of the lock backend."""
    return str(request.param)


@pytest.fixture
def tasks(using: str, prefork: Worker) -> Any:
    """The tasks with locks in that backend; a worker waits for them."""
    return OF[using]


@pytest.fixture
def key() -> str:
    """A name for locks, cues and words that no other test uses."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def holder(using: str, key: str) -> Callable[[str], Any]:
    """``holder(name)``: what the backend says of a lock."""
    return lambda name=key: locks[using].inspect(name)
