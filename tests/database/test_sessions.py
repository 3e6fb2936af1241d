"""Sessions of our own: how they are set up, shared, kept, and given up."""

import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core import mail
from django.db import connections

from distlock.backends.database import errors
from distlock.backends.database.statements import Statement
from distlock.clock import clock
from distlock.exceptions import LockUnavailable
from tests.database.speaking import claim, eventually
from tests.databases import ALIASES

ONE = Statement("SELECT 1")


def one_of(kind, **texts):
    return texts[kind]


def session_ids(sql, kind):
    """The sessions of the server other than the one that asks."""
    return {
        row[0]
        for row in sql(
            one_of(
                kind,
                mariadb="SELECT id FROM information_schema.processlist"
                " WHERE id <> CONNECTION_ID() AND user <> 'system user'",
                postgresql="SELECT pid FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
            )
        )
    }


# Setting up


@pytest.mark.parametrize("kind", ["mariadb"])
def test_what_a_session_with_mariadb_is_told(backend):
    settings = backend.pool.run(
        Statement(
            "SELECT @@autocommit, @@time_zone, @@innodb_lock_wait_timeout, @@lock_wait_timeout,"
            " @@tx_isolation, @@character_set_client"
        )
    )
    assert settings.rows == [(1, "+00:00", 1, 1, "READ-COMMITTED", "utf8mb4")]


@pytest.mark.parametrize("kind", ["postgresql"])
def test_what_a_session_with_postgresql_is_told(make):
    backend = make(wait="native")
    settings = backend.pool.run(
        Statement(
            "SELECT current_setting('lock_timeout'), current_setting('transaction_isolation'),"
            " current_setting('statement_timeout'), current_setting('application_name')"
        )
    ).rows[0]
    assert settings[:3] == ("1s", "read committed", "0")
    assert settings[3].startswith("distlock ")
    assert settings[3].endswith(f":{os.getpid()}")


@pytest.mark.parametrize("kind", ["postgresql"])
def test_behind_a_pooler_nothing_is_set_that_lasts(make):
    """In transaction mode, the next packet may come from another client."""
    backend = make(wait="poll")
    asking = "SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')"
    with backend.pool.session() as session:
        assert session.run(Statement(asking), 5).rows == [("1s", "read committed")]
        assert session.run_all(Statement(f"{asking}; SELECT 2"), 5)[1].rows == [(2,)]
        session.before = ()
        assert session.run(Statement(asking), 5).rows == [("0", "read committed")]


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_default_of_the_server_does_not_matter(make, database, sql, name):
    name_of_database = connections[database].settings_dict["NAME"]
    sql(f"ALTER DATABASE {name_of_database} SET default_transaction_isolation = 'serializable'")
    try:
        for wait in ("native", "poll"):
            answer = make(wait=wait).pool.run(
                Statement("SELECT current_setting('transaction_isolation')")
            )
            assert answer.rows == [("read committed",)]
    finally:
        sql(f"ALTER DATABASE {name_of_database} RESET default_transaction_isolation")


@pytest.mark.parametrize("kind", ["mariadb"])
@pytest.mark.parametrize(
    "mode",
    [
        "ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES",
        "ANSI",
        "ORACLE",
        "MSSQL",
        "TRADITIONAL",
        "NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH",
        "",
    ],
)
def test_every_sql_mode_will_do(make, database, name, mode, dialect, options):
    options(init_command=f"SET sql_mode = '{mode}'")
    backend = make()
    lease = backend.try_acquire(claim(f"{name}'\"\\`%", description="it's \\ 100 %"))
    assert backend.try_acquire(claim(lease.name)) is None
    assert backend.renew([lease]) == {lease.nonce: True}
    assert backend.inspect(lease.name).description == "it's \\ 100 %"
    assert backend.release(lease)
    assert backend.sweep()


def test_a_process_says_goodbye_at_its_end(kind, name, backend_settings, settings, child):
    """Nothing is left to the garbage collector, which would complain."""
    settings.DISTLOCK = backend_settings(kind)
    holder = child(hold_and_end, name, env={"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"})
    holder.finish()
    assert holder.errors == ""


def hold_and_end(name):
    from distlock import Lock

    Lock(name).acquire()


@pytest.fixture
def options(database):
    """``options(**OPTIONS)``: change the options of the database for a while."""
    settings = connections.settings[database]
    before = settings.get("OPTIONS", {})

    def change(**new):
        connections[database].close()
        settings["OPTIONS"] = {**before, **new}

    yield change
    connections[database].close()
    settings["OPTIONS"] = before


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_clients_flags_do_not_decide_who_has_a_lock(make, name, options):
    """With CLIENT_FOUND_ROWS, a refused take counts as one row; without it, as none."""
    for flag in (0, 2):
        options(client_flag=flag)
        backend = make()
        lease = backend.try_acquire(claim(name))
        assert backend.try_acquire(claim(name)) is None
        assert backend.renew([lease]) == {lease.nonce: True}
        assert backend.release(lease) is True
        assert backend.release(lease) is False


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_pool_of_the_projects_is_left_alone(make, name, options):
    """Its connections belong to requests, and have settings of their own."""
    options(pool={"min_size": 1, "max_size": 1}, isolation_level=3, server_side_binding=True)
    backend = make()
    lease = backend.try_acquire(claim(name))
    assert backend.release(lease)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_health_checks_and_persistence_of_the_project_change_nothing(make, database, name):
    settings = connections.settings[database]
    settings.update(CONN_HEALTH_CHECKS=True, CONN_MAX_AGE=0, ATOMIC_REQUESTS=True)
    try:
        backend = make()
        lease = backend.try_acquire(claim(name))
        assert backend.release(lease)
    finally:
        settings.update(CONN_HEALTH_CHECKS=False, CONN_MAX_AGE=0, ATOMIC_REQUESTS=False)


# Sharing


def test_one_session_serves_call_after_call(backend, name):
    lease = backend.try_acquire(claim(name))
    with backend.pool.session() as first:
        pass
    backend.verify(lease)
    with backend.pool.session() as second:
        assert second is first


def test_threads_that_ask_at_once_have_sessions_of_their_own(backend):
    with backend.pool.session() as first, backend.pool.session() as second:
        assert first is not second


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_many_threads_share_a_few_sessions(make, kind):
    backend = make(sessions=2)
    who = Statement(
        one_of(
            kind,
            mariadb="SELECT CONNECTION_ID(), SLEEP(0.05)",
            postgresql="SELECT pg_backend_pid(), pg_sleep(0.05)::text",
        )
    )
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(backend.pool.run, who) for _ in range(8)]
        assert len({future.result().rows[0][0] for future in asked}) == 2


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_who_finds_no_free_session_in_time_is_told_so(make, kind):
    backend = make(sessions=1)
    asleep = Statement(one_of(kind, mariadb="SELECT SLEEP(1)", postgresql="SELECT pg_sleep(1)"))
    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(backend.pool.run, asleep)
        eventually(lambda: backend.pool.busy == 1)
        with pytest.raises(LockUnavailable, match="session") as caught:
            backend.try_acquire(claim("busy"), clock() + 0.1)
        assert caught.value.sent is False
        busy.result()


def test_a_session_that_was_interrupted_is_given_up(backend):
    with pytest.raises(KeyboardInterrupt), backend.pool.session() as interrupted:
        raise KeyboardInterrupt
    with backend.pool.session() as next_one:
        assert next_one is not interrupted


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_an_interrupt_within_a_statement_stays_an_interrupt(backend, monkeypatch):
    with backend.pool.session() as session:
        creating = session.wrapper.create_cursor

        def create_cursor(*args, **more):
            cursor = creating(*args, **more)

            class Interrupted:
                def execute(self, *args):
                    raise KeyboardInterrupt

                def close(self):
                    raise session.wrapper.Database.ProgrammingError("Commands out of sync")

                def __getattr__(self, name):
                    return getattr(cursor, name)

            return Interrupted()

        session.wrapper.create_cursor = create_cursor
    with pytest.raises(KeyboardInterrupt):
        backend.pool.run(ONE)
    assert not session.usable


def test_a_closed_backend_opens_sessions_again(backend, name):
    lease = backend.try_acquire(claim(name))
    with backend.pool.session() as lent:
        backend.close()
    assert not lent.usable
    assert backend.verify(lease)


def test_an_alias_that_points_elsewhere_is_followed(backend, database, tmp_path, name, request):
    """As when Django's test runner replaces the database by one for tests."""
    backend.inspect(name)
    settings = connections.settings[database]
    before = settings["NAME"]
    settings["NAME"] = str(tmp_path / "other") if settings["ENGINE"].endswith("3") else "elsewhere"
    try:
        with pytest.raises(LockUnavailable):
            backend.inspect(name)
    finally:
        settings["NAME"] = before
    assert backend.inspect(name)


# Keeping


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_session_is_closed_when_it_was_idle_for_long(make, sql, kind):
    before = session_ids(sql, kind)
    backend = make(idle=0.2)
    with backend.pool.session() as session:
        assert session_ids(sql, kind) - before == {session.ident}
    eventually(lambda: not session_ids(sql, kind) - before)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_where_djangos_tests_run_nothing_is_kept(make, sql, kind, monkeypatch):
    """An open session would keep the test database from being dropped."""
    before = session_ids(sql, kind)
    backend = make(idle=None)
    monkeypatch.setattr(mail, "outbox", [], raising=False)
    backend.pool.run(ONE)
    eventually(lambda: not session_ids(sql, kind) - before)
    monkeypatch.delattr(mail, "outbox")
    backend.pool.run(ONE)
    assert len(session_ids(sql, kind) - before) == 1


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_an_overrun_leaves_no_session_behind(backend, sql, kind):
    before = session_ids(sql, kind)
    sleeping = one_of(kind, mariadb="SELECT SLEEP(2)", postgresql="SELECT pg_sleep(2)")
    with pytest.raises(errors.Overran):
        backend.pool.run(Statement(sleeping), clock() + 0.3)
    eventually(lambda: not session_ids(sql, kind) - before)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_connection_that_comes_too_late_is_closed(backend, sql, kind, server):
    before = session_ids(sql, kind)
    server(kind).pause()
    with pytest.raises(errors.NoSession):
        backend.pool.run(ONE, clock() + 0.3)
    server(kind).resume()
    eventually(
        lambda: not any(thread.name == "distlock-connect" for thread in threading.enumerate())
    )
    eventually(lambda: not session_ids(sql, kind) - before)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_another_session_can_call_one_out_of_a_statement(backend, kind):
    session = backend.pool.open(blocking=True)
    result = []

    def sleep():
        sleeping = one_of(kind, mariadb="SELECT SLEEP(60)", postgresql="SELECT pg_sleep(60)")
        try:
            result.append(session.run(Statement(sleeping), None).rows)
        except errors.Cancelled as cancelled:
            result.append(cancelled)

    thread = threading.Thread(target=sleep)
    thread.start()
    calling = one_of(
        kind,
        mariadb=f"KILL QUERY {session.ident}",
        postgresql=f"SELECT pg_cancel_backend({session.ident})",
    )

    def ended():
        backend.pool.run(Statement(calling))
        thread.join(0.1)
        return not thread.is_alive()

    eventually(ended)
    assert isinstance(result[0], errors.Cancelled)
    assert session.run(ONE, 5).rows == [(1,)]
    session.close()


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_one_can_hang_up_on_a_statement(backend, kind):
    session = backend.pool.open(blocking=True)
    timer = threading.Timer(0.3, session.hang_up)
    timer.start()
    sleeping = one_of(kind, mariadb="SELECT SLEEP(60)", postgresql="SELECT pg_sleep(60)")
    with pytest.raises(errors.Gone):
        session.run(Statement(sleeping), None)
    session.close()
    session.hang_up()  # does no harm any more


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_session_whose_server_has_left_is_stale(backend, sql, kind):
    with backend.pool.session() as session:
        assert not session.stale
        ending = one_of(
            kind,
            mariadb=f"KILL {session.ident}",
            postgresql=f"SELECT pg_terminate_backend({session.ident})",
        )
        sql(ending)
        select.select([session.fileno()], [], [], 20)
        assert session.stale


# Surroundings


def work_with(database, name, default_timeout):
    """In a process of its own: take turns from several threads (or greenlets)."""
    import socket

    from tests.children import say
    from tests.database.speaking import speaking

    if default_timeout:
        socket.setdefaulttimeout(0.05)
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    inside = []

    def work():
        for _ in range(5):
            lease = backend.acquire(claim(name), clock() + 60)
            inside.append(1)
            assert len(inside) == 1
            if default_timeout:
                asking = one_of(
                    database, mariadb="SELECT SLEEP(.2)", postgresql="SELECT pg_sleep(.2)"
                )
                backend.pool.run(Statement(asking))
            assert backend.verify(lease)
            inside.pop()
            assert backend.release(lease)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.close()
    say("done")


def test_greenlets_can_use_locks(kind, make, name, child):
    make()
    assert child(work_with, ALIASES[kind], name, False, gevent=True).finish() == ["done"]


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_a_default_time_limit_of_sockets_does_not_reach_the_driver(kind, make, name, child):
    make()
    assert child(work_with, ALIASES[kind], name, True).finish() == ["done"]
