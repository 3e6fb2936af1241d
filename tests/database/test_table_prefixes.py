"""A project that gives all tables other names than their models say."""

import json

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.recipes import Queue, Semaphore
from tests.children import Child, write_line
from tests.databases import DATABASES
from tests.prefixed import settings as project

pytestmark = pytest.mark.once

DATABASE = "test_distlock"
REST = [kind for kind in DATABASES if kind != "postgresql"]


@pytest.fixture(
    params=["postgresql", *(pytest.param(kind, marks=pytest.mark.slow) for kind in REST)]
)
def entry(request, tmp_path):
    """A database without tables."""
    if request.param == "sqlite":
        yield {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "locks.sqlite3")}
        return
    server = request.getfixturevalue(request.param)
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    owner = "OWNER distlock" if request.param == "postgresql" else ""
    server.execute(f"CREATE DATABASE {DATABASE} {owner}")
    yield {**server.django(), "NAME": DATABASE}
    server.execute(f"DROP DATABASE {DATABASE}")


def test_locks_and_records_are_kept_under_these_names(entry):
    child = Child(
        work,
        env={"DJANGO_SETTINGS_MODULE": project.__name__, project.ENTRY: json.dumps(entry)},
    )
    try:
        seen = json.loads(child.finish()[-1])
    finally:
        child.close()
    assert seen == {
        "before": "LockUnavailable: Shop-database_lock",
        "tables": [
            "shop-database_lock",
            "shop-database_lock_audit",
            "shop-database_lock_directory",
            "shop-database_lock_record",
            "shop-database_lock_session",
        ],
        "busy": False,
        "listed": ["a"],
        "seats": 1,
        "left": 0,
        "checks": [],
    }


def work():
    from django.core.checks import run_checks
    from django.core.management import call_command
    from django.db import connection

    seen = {}
    try:
        Lock("a").acquire()
    except LockUnavailable as error:
        seen["before"] = f"{type(error).__name__}: {str(error).split('(')[1].split(')')[0]}"
    call_command("migrate", verbosity=0)
    tables = connection.introspection.table_names()
    seen["tables"] = sorted(name.lower() for name in tables if "database_lock" in name)
    with Lock("a") as lock, lock.atomic():
        other = Lock("a", owner="another", lease=60, renew=False)
        seen["busy"] = other.acquire(blocking=False) if connection.vendor != "sqlite" else False
    with Lock("a"):
        seen["listed"] = [info.name for info in locks["default"].list()]
    with Semaphore("seats", 2) as seats:
        seen["seats"] = len(seats.info().holders)
    queue = Queue("items")
    queue.put(1)
    with queue.get() as item, item.atomic():
        pass
    seen["left"] = queue.qsize()
    locks["default"].sweep()
    messages = run_checks(databases=["default"])
    seen["checks"] = [one.id for one in messages if one.id != "distlock.W002"]
    locks.close_all()
    connection.close()
    write_line(json.dumps(seen))
