"""What becomes of tasks while a backend cannot be asked for their locks."""

import pytest
from django.test import override_settings

from distlock import Lock, locks
from distlock.lease import State
from tests.celery.conftest import LEASE
from tests.celery.stage import cue, heard
from tests.celery.tasks import FRAGILE, OF
from tests.celery.test_queueing import until
from tests.databases import ALIASES, moved
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.once

LIMIT = 30


@pytest.fixture(scope="module")
def fragile(locked, postgresql):
    """Locks in PostgreSQL: the network of the worker breaks; the test's own does not."""
    from django.conf import settings

    entry = {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "LEASE": LEASE,
        "OPTIONS": {"database": ALIASES["postgresql"], "idle": 60, "timeout": 1},
    }
    with (
        Proxy(postgresql.port) as proxy,
        override_settings(DISTLOCK={**settings.DISTLOCK, FRAGILE: entry}),
    ):
        yield proxy


@pytest.fixture(scope="module")
def worker(start_worker, fragile):
    """A worker that reaches PostgreSQL through the proxy."""
    with moved(ALIASES["postgresql"], fragile.port):
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
        worker.await_log(f"{first.id}] is put off")
        getattr(proxy, fault)()
        worker.await_log(f"queueing lock 'queueing:{key}' ")
        proxy.heal()
        assert task.delay(key).id == first.id
    heard(f"{key}:started")
    until(lambda: locks[FRAGILE].inspect(f"queueing:{key}").state is State.FREE)
    cue(f"{key}:end")
    assert first.get(timeout=LIMIT) == key
