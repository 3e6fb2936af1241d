"""PostgreSQL: whoever waits is in nobody's way."""

import threading

import pytest

from distlock import Lock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually

#: Who may be in the way of a statement: all that have a transaction.
BUSY = (
    "SELECT pid, state, now() - query_start, wait_event, backend_xmin, query FROM pg_stat_activity"
    " WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL"
)


@pytest.fixture(params=["postgresql"], scope="module")
def kind(request):
    return request.param


@pytest.fixture
def two_waiting(actor, engine, name):
    """Two processes that wait for a lock that the test holds."""
    with Lock(name):
        line = [actor().lock(name).start("acquire") for _ in range(2)]
        engine.reaches_line(2)
        yield line
    for future in line[:1]:
        eventually(lambda: any(future.done() for future in line))


def run(server, sql):
    """Run a statement on a thread of its own, and fail if it hangs."""
    errors = []

    def execute():
        try:
            server.execute(sql)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=execute, daemon=True)
    thread.start()
    thread.join(2.5 * PATIENCE)  # an ANALYZE of the server's own may be in the way, too
    assert not thread.is_alive(), f"{sql} hangs: {server.execute(BUSY)}"
    assert not errors


@pytest.mark.slow
def test_create_index_concurrently(two_waiting, server, kind):
    """It waits for every snapshot that is older than it, and that of a wait is."""
    database = server(kind)
    run(database, "CREATE TABLE IF NOT EXISTS ware (number integer)")
    run(database, "CREATE INDEX CONCURRENTLY ware_number ON ware (number)")
    run(database, "DROP INDEX CONCURRENTLY ware_number")
    assert not any(future.done() for future in two_waiting)


@pytest.mark.slow
def test_create_index_concurrently_on_the_table_of_the_locks(two_waiting, server, kind):
    database = server(kind)
    run(database, "CREATE INDEX CONCURRENTLY lock_thread ON database_lock (thread)")
    run(database, "DROP INDEX CONCURRENTLY lock_thread")
    assert not any(future.done() for future in two_waiting)


def test_alter_table_of_the_locks(two_waiting, server, kind):
    """No lock on any table is held while waiting for a native one."""
    database = server(kind)
    run(database, "ALTER TABLE database_lock ADD COLUMN more integer")
    run(database, "ALTER TABLE database_lock DROP COLUMN more")
    assert not any(future.done() for future in two_waiting)


def test_a_table_that_was_made_anew(actor, engine, server, kind, name):
    """Sessions that waited have planned their statements for the old one."""
    other = actor().lock(name)
    for _ in range(2):
        with Lock(name):
            future = other.start("acquire")
            engine.reaches_line(1)
        assert future.result(PATIENCE)
        assert not Lock(name).acquire(blocking=False)
        other.start("release").result(PATIENCE)
        server(kind).execute(
            "ALTER TABLE database_lock RENAME TO old;"
            " CREATE TABLE database_lock (LIKE old INCLUDING ALL);"
            f" ALTER TABLE database_lock OWNER TO {server(kind).user};"
            " DROP TABLE old;"
            " ALTER TABLE database_lock RENAME CONSTRAINT database_lock_lock_key TO uiq_idx_lock"
        )
