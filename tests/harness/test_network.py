"""The proxy breaks connections in the ways that networks do."""

import MySQLdb
import psycopg
import pytest

from tests.servers.proxy import Proxy

ERRORS = {"mariadb": MySQLdb.OperationalError, "postgresql": psycopg.OperationalError}


@pytest.fixture(params=sorted(ERRORS))
def kind(request):
    return request.param


@pytest.fixture
def connect(server, kind):
    """Open a session through a port; it waits ``limit`` seconds for an answer."""
    sessions = []

    def connected(port, limit=10):
        it = server(kind)
        if kind == "mariadb":
            session = MySQLdb.connect(
                host=it.host,
                port=port,
                user=it.user,
                password=it.password,
                database=it.database,
                autocommit=True,
                connect_timeout=limit,
                read_timeout=limit,
            )
        else:
            session = psycopg.connect(
                host=it.host,
                port=port,
                user=it.user,
                password=it.password,
                dbname=it.database,
                autocommit=True,
                connect_timeout=limit,
                tcp_user_timeout=limit * 1000,
            )
        sessions.append(session)
        return session

    yield connected
    for session in sessions:
        session.close()


def run(session, sql):
    cursor = session.cursor()
    cursor.execute(sql)
    return cursor.fetchall() if cursor.description else None


def test_an_unbroken_network_forwards(server, kind, connect):
    with Proxy(server(kind).port) as proxy:
        assert list(run(connect(proxy.port), "SELECT 1")) == [(1,)]
        assert proxy.connections == 1


def test_a_cut_ends_sessions_and_lets_new_ones_in(proxied, kind, connect):
    proxy = proxied(kind)
    session = connect(proxy.port)
    proxy.cut()
    with pytest.raises(ERRORS[kind]):
        run(session, "SELECT 1")
    assert list(run(connect(proxy.port), "SELECT 1")) == [(1,)]


def test_a_refusal_lasts_until_it_is_healed(proxied, kind, connect):
    proxy = proxied(kind)
    session = connect(proxy.port)
    proxy.refuse()
    with pytest.raises(ERRORS[kind]):
        run(session, "SELECT 1")
    with pytest.raises(ERRORS[kind]):
        connect(proxy.port)
    proxy.heal()
    assert list(run(connect(proxy.port), "SELECT 1")) == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["silence", "drop_replies", "drop_requests"])
def test_a_silent_network_lets_nobody_in_until_it_is_healed(proxied, kind, connect, way):
    proxy = proxied(kind)
    getattr(proxy, way)()
    with pytest.raises(ERRORS[kind]):
        connect(proxy.port, limit=2)
    proxy.heal()
    assert list(run(connect(proxy.port), "SELECT 1")) == [(1,)]


def test_a_lost_reply_is_to_a_request_that_was_carried_out(proxied, server, kind, connect):
    proxy = proxied(kind)
    session = connect(proxy.port)
    lost = proxy.lose_reply(to=b"CREATE TABLE")
    try:
        assert list(run(session, "SELECT 1")) == [(1,)]
        with pytest.raises(ERRORS[kind]):
            run(session, "CREATE TABLE unanswered (number int)")
        assert lost.is_set()
        assert server(kind).execute("SELECT COUNT(*) FROM unanswered") == [(0,)]
    finally:
        server(kind).execute("DROP TABLE IF EXISTS unanswered")
