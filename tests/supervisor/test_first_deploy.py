"""On the first deploy three pods migrate at once, before there is a table for the lock."""

import re
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from distlock import Lock, LockUnavailable, locks
from tests.databases import ALIASES, DATABASES, publish
from tests.site.conftest import manage  # noqa: F401 (a fixture)

PODS = 3
CROWD = 8
ROUNDS = 2
KINDS = pytest.mark.parametrize("kind", DATABASES)
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
    # Renewals may still be under way when a test ends.
    there.execute(f"DROP DATABASE {name}" + (" WITH (FORCE)" if kind == "postgresql" else ""))


#: the tables of the package
TABLES = [
    "database_lock",
    "database_lock_audit",
    "database_lock_directory",
    "database_lock_record",
    "database_lock_session",
]


def makes_table_of_locks(sql):
    return re.match('CREATE TABLE ["`]database_lock["`]', sql) is not None


@pytest.fixture
def new(kind, backend_settings, settings, empty_database):
    """The connection to that database, where the locks of this process are now."""
    settings.DISTLOCK = backend_settings(kind)
    alias = ALIASES[kind]
    before = connections[alias].settings_dict["NAME"]
    scheme = "sqlite:///" if kind == "sqlite" else f"{empty_database.rpartition('/')[0]}/"
    publish(alias, {"NAME": empty_database.removeprefix(scheme)})
    locks.close_all()
    yield connections[alias]
    locks.close_all()
    publish(alias, {"NAME": before})


@pytest.mark.slow
@pytest.mark.timeout(300)
@KINDS
def test_three_pods_migrate_one_after_the_other(manage, empty_database):  # noqa: F811
    pods = [manage(*MIGRATE, DATABASE_URL=empty_database) for _ in range(PODS)]
    said = [pod.communicate(timeout=280) for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * PODS, said
    assert [error for _, error in said] == [""] * PODS
    did = [out for out, _ in said if "Applying shop.0001_initial" in out]
    nothing = [out for out, _ in said if "No migrations to apply" in out]
    assert (len(did), len(nothing)) == (1, PODS - 1)


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
        assert sorted(tables) == [*TABLES, "django_migrations"]
        assert locks["default"].ensure_schema()  # who comes a moment later finds it made
    finally:
        locks.close_all()
        publish("default", {"NAME": before["NAME"]})


@KINDS
def test_one_of_many_gets_the_lock_while_the_table_is_made(new, name):
    granted = []

    def take(pod):
        try:
            return Lock(name, owner=f"pod {pod}").acquire(blocking=False)
        except LockUnavailable:  # it is not made yet
            return False

    def many_come(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if makes_table_of_locks(sql):
            granted.extend(threads.map(take, range(CROWD)))
            assert sum(granted) <= 1
        return result

    with ThreadPoolExecutor(CROWD) as threads, new.execute_wrapper(many_come):
        assert locks["default"].ensure_schema()
        assert len(granted) == CROWD
        granted.extend(threads.map(take, range(CROWD, 2 * CROWD)))
    assert sum(granted) == 1


@KINDS
def test_before_an_upgrade_has_made_the_other_tables_locks_are_listed_and_swept(new, capsys):
    locks["default"].ensure_schema()
    with new.cursor() as cursor:
        for table in TABLES[1:]:
            cursor.execute(f"DROP TABLE {table}")
    with Lock("stock"):
        call_command("locks", "list")
        assert "stock" in capsys.readouterr().out
    call_command("locks", "sweep")
    with pytest.raises(CommandError, match=r"run `manage\.py migrate distlock"):
        call_command("locks", "resize", "stock", "3")
    with pytest.raises(CommandError, match=r"run `manage\.py migrate distlock"):
        call_command("locks", "queue", "list")


@KINDS
@pytest.mark.every_day_on("postgresql")
def test_many_make_the_table_at_once(new, name):
    def make(barrier):
        with closing(connections[new.alias]):
            barrier.wait(30)
            return locks["default"].ensure_schema()

    with ThreadPoolExecutor(CROWD) as threads:
        for turn in range(ROUNDS):
            barrier = threading.Barrier(CROWD)
            assert all(threads.map(make, [barrier] * CROWD))
            assert Lock(f"{name}:{turn}").acquire(blocking=False)
            locks.close_all()
            with new.cursor() as cursor:
                for table in [*TABLES, "django_migrations"]:
                    cursor.execute(f"DROP TABLE {table}")


@KINDS
def test_the_table_is_never_without_its_unique_key(new):
    seen = []

    def look(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if "SAVEPOINT" in sql:  # Django's introspection makes one here, on SQLite
            return result
        with closing(new.copy()) as other, other.cursor() as cursor:
            if "database_lock" in other.introspection.table_names(cursor):
                keys = other.introspection.get_constraints(cursor, "database_lock").values()
                seen.append(any(key["unique"] and key["columns"] == ["lock"] for key in keys))
        return result

    with new.execute_wrapper(look):
        assert locks["default"].ensure_schema()
    assert seen
    assert all(seen)


@KINDS
def test_who_was_ended_while_making_the_table_is_followed_by_another(new, name):
    class Ended(BaseException):
        pass

    def end(execute, sql, params, many, context):
        if "INSERT INTO" in sql and "django_migrations" in sql:
            raise Ended
        return execute(sql, params, many, context)

    with new.execute_wrapper(end), pytest.raises(Ended):
        locks["default"].ensure_schema()
    call_command("migrate", "distlock", database=new.alias, verbosity=0)
    assert Lock(name).acquire(blocking=False)


@pytest.mark.parametrize(
    ("kind", "before", "app"),
    [
        ("sqlite", "BEGIN IMMEDIATE", "distlock"),  # nobody else can write after that
        ("sqlite", "BEGIN IMMEDIATE", "contenttypes"),
        ("mariadb", "django_migrations", "distlock"),
        ("mariadb", "django_migrations", "contenttypes"),
        ("mariadb", "database_lock", "distlock"),
        ("postgresql", "django_migrations", "distlock"),
        ("postgresql", "django_migrations", "contenttypes"),
        ("postgresql", "database_lock", "distlock"),
    ],
)
def test_somebody_else_migrates_without_a_lock_meanwhile(new, before, app, name):
    others = []

    def migrate():
        with closing(connections[new.alias]):
            call_command("migrate", app, database=new.alias, verbosity=0)

    def let_others_go_first(execute, sql, params, many, context):
        if sql.startswith(("CREATE TABLE", "BEGIN")) and before in sql and not others:
            others.append(threading.Thread(target=migrate))
            others[0].start()
            others[0].join(30)
        return execute(sql, params, many, context)

    with new.execute_wrapper(let_others_go_first):
        assert locks["default"].ensure_schema()
    assert others
    assert Lock(name).acquire(blocking=False)
