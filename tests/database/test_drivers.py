"""Statements that are sent past the drivers' cursors."""

from datetime import timedelta
from itertools import pairwise

import pytest

from distlock.backends.database import errors
from distlock.backends.database.connection import CursorConnection
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import call_after
from tests.database.asleep import CANCEL, DISCONNECT, SLEEP, once_asleep
from tests.database.lending import in_use, next_session, prepared_in
from tests.database.speaking import claim
from tests.databases import SERVERS

TEXTS = [
    "",
    "it's",
    'a "b" `c`',
    "back\\slash\\",
    "\\'; --",
    "100 % %s %(n)s %%",
    "$1 ? :x",
    "🔒 é",
]
ECHO = {
    "mariadb": "SELECT 1; SELECT %(text)s, %(number)s + 1",
    "postgresql": "SELECT 1; SELECT %(text)s::text, %(number)s + 1",
}
#: settings under which a server reads text in another way than usual
ODD = {
    "mariadb": "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "postgresql": "SET standard_conforming_strings = off; SET escape_string_warning = off",
}

pytestmark = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture
def backend(make):
    return make(wait="native")  # behind a pooler, each packet is more than what is said here


@pytest.fixture
def session(backend):
    session = backend.pool.open(blocking=True)
    assert not session.before
    yield session
    session.close()


@pytest.mark.parametrize("odd", [False, True], ids=["usual", "odd"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_arrives_as_it_is(kind, session, text, odd):
    if odd:
        session.run(Statement(ODD[kind]), 5)
    answer = session.run(Statement(ECHO[kind], {"text": text, "number": -42}), 5)
    assert [tuple(map(str, row)) for row in answer.rows] == [(text, "-41")]


@pytest.mark.parametrize("number", [30.0, 0.1, -2.5, 1e-7, 1.7976931348623157e308])
def test_a_number_arrives_as_it_is(kind, session, number):
    cast = {"mariadb": "%(number)s", "postgresql": "%(number)s::float8"}[kind]
    ((same,),) = session.run(Statement(f"SELECT {cast}", {"number": number}), 5).rows
    assert type(same) is float  # a DECIMAL would be another type
    assert same == number


def test_a_cursor_gives_the_same_results(kind, session):
    echo = Statement(ECHO[kind], {"text": "it's", "number": 1})
    through_cursor = CursorConnection(session.wrapper).execute(echo, 5)
    assert [result.rows for result in through_cursor] == [[(1,)], [("it's", 2)]]
    assert session.run(echo, 5).rows == [("it's", 2)]


@pytest.fixture
def shared(backend):
    """A session that waits for no lock in the server. On MariaDB only these prepare statements."""
    session = backend.pool.open()
    yield session
    session.close()


@pytest.mark.parametrize("before", ["", "SELECT %(text)s; "], ids=["alone", "in a packet"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("odd", [False, True], ids=["usual", "odd"])
def test_a_statement_can_be_prepared(kind, shared, text, before, odd):
    if odd:
        shared.run(Statement(ODD[kind]), 5)
    echo = f"{before}SELECT CONCAT(%(text)s, ''), %(number)s + 1, %(half)s * 2.0, NOT %(yes)s, '%%'"
    if kind == "postgresql":
        echo = echo.replace("%(text)s", "%(text)s::text").replace("%(number)s", "%(number)s::int")
        echo = echo.replace("%(half)s", "%(half)s::float").replace("%(yes)s", "%(yes)s::bool")
    for number in (1, 2, 3, 4):
        params = {"yes": True, "half": 0.5, "number": number, "text": text}
        ((same, more, one, no, percent),) = shared.run(Statement(echo, params, True), 5).rows
        assert (same, more, float(one), bool(no), percent) == (text, number + 1, 1.0, False, "%")
    packets = {"mariadb": 0, "postgresql": 2}
    alone = {"mariadb": 2, "postgresql": 1}
    assert prepared_in(shared) == (packets if before else alone)[kind]


def test_a_packet_is_prepared_once_it_is_sent_often(kind, session):
    if kind != "postgresql":
        return
    echo = "SELECT 1; SELECT %(number)s::int; SELECT %(number)s::int + 1"
    for number in range(1, 5):
        assert session.run(Statement(echo, {"number": number}, True), 5).rows == [(number + 1,)]
        assert prepared_in(session) == 2 * (number >= 3)
    assert session.run(Statement(echo, {"number": None}, True), 5).rows == [(None,)]


def test_a_prepared_statement_outlives_errors_and_changes_of_the_table(kind, backend, sql):
    """PostgreSQL refuses a plan whose columns have changed: a fresh session makes another."""
    whole = Statement("SELECT * FROM database_lock WHERE id = %(id)s", {"id": 0}, True)
    missing = Statement("SELECT * FROM no_such_table WHERE id = %(id)s", {"id": 0}, True)
    for _ in range(4):
        assert backend.pool.run(whole).rows == []
        with pytest.raises(errors.NoTable):
            backend.pool.run(missing)
    sql("ALTER TABLE database_lock ADD COLUMN added int")
    try:
        assert backend.pool.run(whole).rows == []
    finally:
        sql("ALTER TABLE database_lock DROP COLUMN added")
    assert backend.pool.run(whole).rows == []


def test_a_prepared_grant_has_the_times_of_its_own_execution(kind, backend, shared, name):
    """Older ones would be the end of a lease that the holder believes in."""
    dialect = backend.pool.dialect_for(shared.wrapper)
    rows = []
    for _ in range(5):
        mine = claim(name)
        assert dialect.acquire(lambda statement: shared.run(statement, 5), mine)
        rows += dialect.rows(shared.run(dialect.one(name), 5))
        assert (
            shared.run(dialect.release_sql(mine.granted(rows[-1].token, clock())), 5).affected == 1
        )
    assert prepared_in(shared) > 0
    for earlier, row in pairwise(rows):
        assert earlier.since < row.since < row.now
        assert earlier.token < row.token
        assert row.until - row.since >= timedelta(seconds=row.lease)


def test_a_prepared_upsert_takes_a_row_that_is_free(kind, backend, shared, name, monkeypatch):
    """As when the row is freed between the two statements of a claim."""
    dialect = backend.pool.dialect_for(shared.wrapper)
    monkeypatch.setattr(dialect, "update_text", "")

    def upsert(one):
        return dialect.acquire(lambda statement: shared.run(statement, 5), one)

    tokens = []
    for _ in range(5):
        mine = claim(name)
        tokens.append(upsert(mine))
        assert upsert(claim(name)) is None
        (row,) = dialect.rows(shared.run(dialect.one(name), 5))
        assert row.token == tokens[-1]
        released = dialect.release_sql(mine.granted(row.token, clock()))
        assert shared.run(released, 5).affected == 1
    assert prepared_in(shared) > 0
    assert tokens == sorted(set(tokens))


def test_a_prepared_claim_sees_who_waits_now(kind, backend, shared, session, name):
    """Whether the native lock is free is found out each time."""
    dialect, locks = backend.pool.dialect_for(shared.wrapper), backend.waits.locks
    key = locks.key(session.namespace, name)
    waiting, values = dialect.in_order(locks.nobody_waits), locks.values(key)

    def takes():
        mine = claim(name)
        token = dialect.acquire(lambda statement: shared.run(statement, 5), mine, waiting, values)
        if token is not None:
            shared.run(dialect.release_sql(mine.granted(token, clock())), 5)
        return token is not None

    assert [takes() for _ in range(4)] == [True] * 4
    session.run(Statement(locks.wait(key, 5)), 5)
    assert [takes() for _ in range(4)] == [False] * 4
    session.run(Statement(locks.leave(key)), 5)
    assert [takes() for _ in range(2)] == [True] * 2
    assert prepared_in(shared) > 0


def test_a_prepared_claim_tells_names_apart(kind, backend, shared, name):
    """The server compares values that it is given later as exactly as those in a text."""
    dialect = backend.pool.dialect_for(shared.wrapper)

    def take(lock):
        return dialect.acquire(lambda statement: shared.run(statement, 5), claim(lock))

    for number in range(4):
        assert take(f"{name}{number}")
    assert take(f"{name}e")
    for other in ("E", "é", "e\u0301", "ⓔ"):
        assert take(name + other), other
        assert take(name + other) is None
    assert take(f"{name}e") is None


def test_behind_a_pooler_nothing_is_prepared(kind, make):
    """ProxySQL would keep a session of the server for it from then on."""
    pool = make(wait="poll").pool
    with in_use(pool) as session:
        for number in range(1, 6):
            text = "SELECT %(number)s + 1"
            assert session.run(Statement(text, {"number": number}, True), 5).rows == [(number + 1,)]
        assert prepared_in(session) == 0


@pytest.mark.parametrize("size", [10, 30_000_000 // 100])
def test_an_answer_of_many_packets_arrives_whole(kind, session, size):
    repeat = Statement("SELECT REPEAT('0123456789', %(times)s)", {"times": size})
    ((found,),) = session.run(repeat, 20).rows
    assert len(found) == 10 * size


def test_a_statement_of_many_packets_arrives_whole(kind, session):
    length = Statement("SELECT LENGTH(%(text)s)", {"text": "x" * 3_000_000})
    assert session.run(length, 20).rows == [(3_000_000,)]


def test_it_tells_how_many_rows_were_changed(backend, session, name):
    update = "UPDATE database_lock SET description = %(text)s WHERE "
    params = {"text": "it's", "lock": name}
    lock = "`lock`" if session.wrapper.vendor == "mysql" else "lock"
    insert = (
        f"INSERT INTO database_lock ({lock}, description, owner, nonce, host, process, thread,"
        " token, acquired_at, expires_at)"
        " VALUES (%(lock)s, '', '', '', '', 0, '', 1, '2026-01-01', '2026-01-01')"
    )
    assert session.run(Statement(insert, params), 5).affected == 1
    assert session.run(Statement(f"{update} {lock} = %(lock)s", params), 5).affected == 1
    assert session.run(Statement(f"{update} {lock} = 'none'", params), 5).affected == 0


def test_a_failure_is_told_like_any_other(kind, session):
    with pytest.raises(errors.NoTable):
        session.run(Statement("SELECT * FROM no_such_table"), 5)


def test_a_cancelled_session_can_go_on(kind, backend, session):
    with once_asleep(kind, backend.pool, session, CANCEL), pytest.raises(errors.StatementCancelled):
        session.run(Statement(SLEEP[kind]), None)
    assert session.usable
    assert session.run(Statement("SELECT 1"), 5).rows


def test_a_time_limit_may_be_as_long_as_one_likes(backend):
    assert next_session(backend.pool).run(Statement("SELECT 1"), 1e9).rows


def test_a_session_that_times_out_is_given_up(kind, session):
    with pytest.raises(errors.StatementTimeout):
        session.run(Statement(SLEEP[kind]), 0.3)
    assert not session.usable


def test_a_session_that_is_hung_up_is_lost(kind, session):
    call_after(0.3, session.hang_up)
    with pytest.raises(errors.ConnectionLost):
        session.run(Statement(SLEEP[kind]), None)
    assert not session.usable


def test_a_session_that_an_administrator_ended_is_lost(kind, backend, session):
    with once_asleep(kind, backend.pool, session, DISCONNECT), pytest.raises(errors.ConnectionLost):
        session.run(Statement(SLEEP[kind]), None)
    assert not session.usable
