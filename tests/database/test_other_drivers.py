"""psycopg2 and PyMySQL. With DISTLOCK_TEST_OTHER_DRIVERS=1 all tests of a run use them."""

import os
import subprocess
import sys
import threading

import pytest
from django.db import connections

from distlock import Lock, LockLost, locks
from distlock.recipes import Queue, Semaphore
from tests.children import write_line
from tests.contract.watch import eventually
from tests.databases import ALIASES, SERVERS
from tests.other_drivers import VARIABLE

pytestmark = pytest.mark.once

DRIVERS = {"mariadb": "pymysql", "postgresql": "psycopg2"}


@pytest.fixture(params=SERVERS)
def kind(request):
    return request.param


def test_locks_and_recipes_work(kind, name, backend_settings, settings, child):
    settings.DISTLOCK = backend_settings(kind)
    other = child(work, ALIASES[kind], name, env={VARIABLE: "1"})
    assert other.finish() == [
        f"driver {DRIVERS[kind]}",
        "waiters 1",
        "waited True",
        "lost True",
        "seats 1",
        "items 0",
    ]


def work(alias, name):
    write_line("driver", connections[alias].Database.__name__)
    lock = Lock(name)
    lock.acquire()
    waited = []

    def wait():
        with Lock(name, timeout=60):
            waited.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: Lock(name).info().waiters)
    write_line("waiters", len(Lock(name).info().waiters))
    lock.release()
    waiter.join()
    write_line("waited", *waited)
    with Lock(name) as lock, lock.atomic():
        pass
    lock.acquire()
    try:
        with lock.atomic():
            locks["default"].force_release(name, lock.token)
    except LockLost:
        write_line("lost", True)
    with Semaphore(f"{name}:seats", 2) as seats:
        write_line("seats", len(seats.info().holders))
    queue = Queue(f"{name}:items")
    queue.put(1)
    with queue.get() as item, item.atomic():
        pass
    write_line("items", queue.qsize())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tests", ["tests/contract", "tests/queue", "tests/stores"])
def test_the_suites_of_the_backends_pass(kind, tests, tmp_path):
    """Those of this kind, in a test run with these drivers."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", kind]
    command += ["--basetemp", str(tmp_path / "inner")]
    run = subprocess.run(
        command, env={**os.environ, VARIABLE: "1"}, capture_output=True, text=True, timeout=1800
    )
    assert run.returncode == 0, run.stdout[-5000:]
