"""Packets that are sent past the drivers' cursors."""

import pytest

from distlock.backends.database import errors
from distlock.backends.database.statements import Statement
from distlock.watchdog import watchdog
from tests.database.asleep import CALL_OUT, DISCONNECT, SLEEP, once_asleep
from tests.database.conftest import SERVERS

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
    assert session._wire is not None
    assert not session.before
    yield session
    session.close()


@pytest.mark.parametrize("odd", [False, True], ids=["usual", "odd"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_arrives_as_it_is(kind, session, text, odd):
    if odd:
        session.run(Statement(ODD[kind]), 5)
    answer = session.exchange(Statement(ECHO[kind], {"text": text, "number": -42}), 5)[-1]
    assert [tuple(map(str, row)) for row in answer.rows] == [(text, "-41")]


def test_a_driver_without_a_wire_says_the_same(kind, session):
    session._wire = None
    answer = session.exchange(Statement(ECHO[kind], {"text": "it's", "number": 1}), 5)[-1]
    assert answer.rows == [("it's", 2)]


def test_it_tells_how_many_rows_were_changed(backend, session, name):
    update = "UPDATE database_lock SET description = %(text)s WHERE "
    params = {"text": "it's", "lock": name}
    lock = "`lock`" if session.wrapper.vendor == "mysql" else "lock"
    insert = (
        f"INSERT INTO database_lock ({lock}, description, owner, nonce, host, process, thread,"
        " token, acquired_at, expires_at)"
        " VALUES (%(lock)s, '', '', '', '', 0, '', 1, '2026-01-01', '2026-01-01')"
    )
    assert session.exchange(Statement(insert, params), 5)[-1].affected == 1
    assert session.exchange(Statement(f"{update} {lock} = %(lock)s", params), 5)[-1].affected == 1
    assert session.exchange(Statement(f"{update} {lock} = 'none'", params), 5)[-1].affected == 0


def test_a_failure_is_told_like_any_other(kind, session):
    with pytest.raises(errors.NoTable):
        session.exchange(Statement("SELECT * FROM no_such_table"), 5)


def test_who_is_called_out_can_go_on(kind, backend, session):
    with once_asleep(kind, backend.pool, session, CALL_OUT), pytest.raises(errors.Cancelled):
        session.exchange(Statement(SLEEP[kind]), None)
    assert session.usable
    assert session.exchange(Statement("SELECT 1"), 5)[-1].rows


def test_who_overruns_is_given_up(kind, session):
    with pytest.raises(errors.StatementTimeout):
        session.exchange(Statement(SLEEP[kind]), 0.3)
    assert not session.usable


def test_who_is_hung_up_is_gone(kind, session):
    watchdog.add(0.3, session.hang_up)
    with pytest.raises(errors.ConnectionLost):
        session.exchange(Statement(SLEEP[kind]), None)
    assert not session.usable


def test_whose_session_an_administrator_ended_is_gone(kind, backend, session):
    with once_asleep(kind, backend.pool, session, DISCONNECT), pytest.raises(errors.ConnectionLost):
        session.exchange(Statement(SLEEP[kind]), None)
    assert not session.usable
