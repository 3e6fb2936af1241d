"""What a session has prepared: what becomes of it when the session, or the server, changes."""

import pytest

from distlock.backends.database.drivers import PsycopgConnection
from distlock.backends.database.statements import Statement
from distlock.backends.store import Delete, Exists, Peek, Put, Unchanged
from tests.contract.watch import eventually
from tests.database.lending import in_use, next_session, prepared_in
from tests.database.speaking import claim

pytestmark = pytest.mark.once


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_pooler_that_mixes_up_sessions_mixes_up_no_prepared_statements(make):
    backend = make(wait="native")
    ask = [Statement(f"SELECT %(number)s + {number}", {"number": 1}, True) for number in (1, 2)]
    with in_use(backend.pool) as session:
        for statements in (ask, ask[::-1]):
            client = PsycopgConnection(session.wrapper.connection)
            for statement in statements:
                (result,) = client.execute(statement, 5)
                assert result.rows == [(1 + int(statement.sql[-1]),)]
    whole = Statement("SELECT * FROM database_lock WHERE id = %(id)s", {"id": 0}, True)
    backend.pool.run(whole)
    next_session(backend.pool).run(Statement("DEALLOCATE ALL"), 5)
    assert backend.pool.run(whole).rows == []


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_session_that_has_forgotten_what_it_had_prepared_is_left_for_another(make, name):
    """As behind a proxy: what had been set in the session is forgotten, too."""
    backend = make(wait="native")
    for number in range(1, 8):
        lease = backend.try_acquire(claim(name))
        assert backend.release(lease)
        if number == 4:
            session = next_session(backend.pool)
            assert prepared_in(session) > 0
            entry = session.wrapper.settings_dict
            session.wrapper.connection.change_user(entry["USER"], entry["PASSWORD"], entry["NAME"])
    assert not session.usable
    assert next_session(backend.pool) is not session


@pytest.mark.parametrize("kind", ["mariadb"])
def test_what_the_server_cannot_prepare_is_sent_as_text(make):
    with in_use(make(wait="native").pool) as session:
        for _ in range(7):
            nested = Statement("EXECUTE IMMEDIATE 'SELECT 1'", {}, True)
            assert session.run(nested, 5).rows == [(1,)]
        assert session.usable


@pytest.mark.parametrize("kind", ["mariadb"])
def test_nothing_is_prepared_where_little_time_is_left(make):
    with in_use(make(wait="native").pool) as session:
        for number in range(1, 8):
            echo = Statement("SELECT %(number)s + 1", {"number": number}, True)
            assert session.run(echo, 0.9).rows == [(number + 1,)]
        assert prepared_in(session) == 0


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_server_that_can_keep_no_more_is_sent_the_text(make, sql):
    ((_, most),) = sql("SHOW VARIABLES LIKE 'max_prepared_stmt_count'")
    sql("SET GLOBAL max_prepared_stmt_count = 0")
    try:
        with in_use(make(wait="native").pool) as session:
            for number in range(1, 6):
                echo = Statement("SELECT %(number)s + 1", {"number": number}, True)
                assert session.run(echo, 5).rows == [(number + 1,)]
            assert prepared_in(session) == 0
            assert session.usable
    finally:
        sql(f"SET GLOBAL max_prepared_stmt_count = {most}")


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_change_is_made_once_though_its_session_forgets_what_it_had_prepared(make):
    backend = make(wait="native")
    store = backend.store
    revision = store.read("directory").revision
    for number in range(5):
        revision = store.apply("directory", [Put("key", number)], [Unchanged(revision)])
    next_session(backend.pool).run(Statement("DEALLOCATE ALL"), 5)
    revision = store.apply("directory", [Put("key", 7)], [Unchanged(revision)])
    assert store.read("directory").revision == revision


@pytest.mark.parametrize("kind", ["postgresql"])
def test_what_was_planned_for_empty_tables_looks_at_few_rows_of_full_ones(make, sql):
    backend = make(wait="native", timeout=30)
    store, number = backend.store, 500

    def use():
        for value in range(10):
            store.apply("directory", [Put("key", value), Delete("other")], [Exists("key")])
            store.peek("directory", Peek({"k": 1}, ["o"]))

    def scans():
        return sql(
            "SELECT idx_scan, seq_tup_read FROM pg_stat_user_tables"
            " WHERE relname = 'database_lock_record'"
        )[0]

    store.apply("directory", [Put("key", 0)])
    sql("ANALYZE database_lock_record")
    use()
    store.apply("full", [Put(f"{key:04}", key) for key in range(number)])
    before = scans()
    use()
    backend.pool.close()  # its sessions tell what they did when they end
    eventually(lambda: scans()[0] > before[0])
    assert scans()[1] - before[1] < number
