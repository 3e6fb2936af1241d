"""The table: its columns, its absence, and two of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import call_command
from django.db import connections, transaction

from distlock import Lock, locks
from distlock.exceptions import LockUnavailable
from distlock.models import DatabaseLock
from tests.database.speaking import claim
from tests.databases import ALIASES, migrate


@pytest.mark.parametrize("kind", ["mariadb"])
def test_the_columns_on_mariadb(database, sql):
    ((_, created),) = sql("SHOW CREATE TABLE database_lock")
    lines = [line.strip().rstrip(",") for line in created.splitlines()]
    assert "`id` bigint(20) NOT NULL AUTO_INCREMENT" in lines
    binary = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
    assert f"`lock` varchar(564) {binary}" in [
        line.replace("varchar(564) COLLATE", "varchar(564) CHARACTER SET utf8mb4 COLLATE")
        for line in lines
    ]
    assert any(
        line.startswith("`description` varchar(1024)") and line.endswith("DEFAULT ''")
        for line in lines
    )
    assert "PRIMARY KEY (`id`)" in lines
    assert "UNIQUE KEY `uiq_idx_lock` (`lock`)" in lines


def test_the_unique_key_has_its_name_everywhere(database):
    connection = connections[database]
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, "database_lock")
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SELECT sql FROM sqlite_master WHERE name = 'database_lock'")
            assert 'CONSTRAINT "uiq_idx_lock" UNIQUE ("lock")' in cursor.fetchone()[0]
    else:
        assert constraints["uiq_idx_lock"]["unique"]
    unique = [one["columns"] for one in constraints.values() if one["unique"]]
    assert ["lock"] in unique


def test_the_migration_is_up_to_date():
    call_command("makemigrations", "distlock", check=True, dry_run=True, verbosity=0)


def test_the_orm_reads_what_the_backend_writes(backend, database, name):
    lease = backend.try_acquire(claim(name, description="seen by the admin"))
    row = DatabaseLock.objects.using(database).get(lock=name)
    info = backend.inspect(name)
    assert (row.acquired_at, row.expires_at) == (info.since, info.until)
    assert (row.token, row.nonce, row.description) == (
        lease.token,
        lease.nonce,
        "seen by the admin",
    )
    assert str(row) == name


def test_without_the_table_it_is_said_how_to_make_it(backend, database, name):
    lease = backend.try_acquire(claim(name))
    call_command("migrate", "distlock", "zero", database=database, verbosity=0)
    try:
        for ask in (
            lambda: backend.try_acquire(claim(name)),
            lambda: backend.release(lease),
            lambda: backend.renew([lease]),
            lambda: list(backend.list()),
            backend.sweep,
        ):
            with pytest.raises(LockUnavailable, match=f"migrate distlock --database={database}`"):
                ask()
    finally:
        migrate(database)
    assert backend.try_acquire(claim(name))


def test_two_databases_do_not_know_of_each_other(backend_settings, settings, name, kind):
    """The same name, once in each: two locks, held by the same thread."""
    others = [other for other in ("sqlite", "mariadb", "postgresql") if other != kind]
    settings.DISTLOCK = {
        **backend_settings(kind),
        **backend_settings(others[0], alias="first"),
        **backend_settings(others[1], alias="second"),
    }
    try:
        held = [Lock(name, using=using) for using in ("default", "first", "second")]
        for lock in held:
            assert lock.acquire(blocking=False)
        for lock in held:
            assert lock.held
            lock.verify()
        held[1].release()
        assert [lock.locked() for lock in held] == [True, False, True]
        with Lock(name, using="second").atomic():
            pass
        for lock in (held[0], held[2]):
            lock.release()
    finally:
        locks.close_all()
    assert ALIASES[kind]


class Elsewhere:
    """A router that keeps the ORM's models in another database."""

    def db_for_read(self, model, **hints):
        return "memory"

    def db_for_write(self, model, **hints):
        return "memory"


def test_a_database_router_has_no_say(backend, name, settings, sql):
    settings.DATABASE_ROUTERS = ["tests.database.test_table.Elsewhere"]
    lease = backend.try_acquire(claim(name))
    assert [info.name for info in backend.list()] == [name]
    assert sql("SELECT count(*) FROM database_lock")[0][0] == 1
    assert backend.release(lease)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_to_look_for_it_changes_no_later_transaction_of_the_caller(backend, database, name):
    connections[database].ensure_connection()
    assert backend.ensure_schema()
    with transaction.atomic(database), ThreadPoolExecutor(1) as thread:
        assert thread.submit(backend.try_acquire, claim(name)).result()
