"""On the first deploy three pods migrate at once, before there is a table for the lock."""

import sys
import uuid

import pytest
from django.core.management import call_command
from django.db import connections

from distlock import Lock, LockUnavailable, locks
from tests.databases import publish
from tests.site.conftest import manage  # noqa: F401 (a fixture)

PODS = 3
MIGRATE = ["locks", "run", "migrate", "--timeout=240", "--", sys.executable, "manage.py", "migrate"]


@pytest.fixture
def kind():
    return "sqlite"


@pytest.fixture
def empty_database(kind, server, tmp_path):
    """The URL of a database without any table."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/new.sqlite3"
        return
    there, name = server(kind), f"new_{uuid.uuid4().hex[:8]}"
    if kind == "mariadb":
        there.execute(f"CREATE DATABASE {name}")
        there.execute(f"GRANT ALL ON {name}.* TO '{there.user}'@'{there.host}'")
    else:
        there.execute(f"CREATE DATABASE {name} OWNER {there.user}")
    yield f"{there.url.rpartition('/')[0]}/{name}"
    there.execute(f"DROP DATABASE {name}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "mariadb", "postgresql"])
def test_three_pods_migrate_one_after_the_other(manage, empty_database):  # noqa: F811
    pods = [manage(*MIGRATE, DATABASE_URL=empty_database) for _ in range(PODS)]
    said = [pod.communicate(timeout=280) for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * PODS, said
    assert [error for _, error in said] == [""] * PODS
    did = [out for out, _ in said if "Applying shop.0001_initial" in out]
    nothing = [out for out, _ in said if "No migrations to apply" in out]
    assert (len(did), len(nothing)) == (1, PODS - 1)
    assert "Applying distlock" not in did[0]  # it was there before the lock was


def test_nothing_but_locks_run_makes_the_table(empty_database, backend_settings, settings):
    settings.DISTLOCK = backend_settings("sqlite")
    before = dict(connections["default"].settings_dict)
    publish("default", {"NAME": empty_database.removeprefix("sqlite:///")})
    locks.close_all()
    try:
        with pytest.raises(LockUnavailable):
            Lock("stock").acquire(blocking=False)
        assert connections["default"].introspection.table_names() == []
        call_command("locks", "run", "stock", "--", "true")
        tables = connections["default"].introspection.table_names()
        assert sorted(tables) == ["database_lock", "django_migrations"]
        assert locks["default"].ensure_schema()  # who comes a moment later finds it made
    finally:
        locks.close_all()
        publish("default", {"NAME": before["NAME"]})
