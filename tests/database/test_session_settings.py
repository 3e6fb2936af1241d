"""How sessions of our own are set up, and what of their surroundings does not matter."""

import os
import threading

import pytest
from django.db import connections

from distlock.backends.database import pool
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import run
from tests.database.lending import next_session
from tests.database.speaking import claim
from tests.databases import ALIASES, SERVERS

pytestmark = pytest.mark.once

NAPS = {"mariadb": "SELECT SLEEP(.2)", "postgresql": "SELECT pg_sleep(.2)"}


@pytest.mark.parametrize("kind", ["mariadb"])
def test_what_a_session_with_mariadb_is_told(backend):
    settings = backend.pool.run(
        Statement(
            "SELECT @@autocommit, @@time_zone, @@innodb_lock_wait_timeout, @@lock_wait_timeout,"
            " @@tx_isolation, @@character_set_client, @@sql_mode"
        )
    )
    assert settings.rows == [
        (1, "+00:00", 1, 1, "READ-COMMITTED", "utf8mb4", "STRICT_TRANS_TABLES")
    ]


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
    session = next_session(backend.pool)
    assert session.run(Statement(asking), 5).rows == [("1s", "read committed")]
    assert session.run(Statement(f"{asking}; SELECT 2"), 5).rows == [(2,)]
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
        "SIMULTANEOUS_ASSIGNMENT",
        "EMPTY_STRING_IS_NULL",
        "MSSQL",
        "TRADITIONAL",
        "NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH",
        "",
    ],
)
def test_every_sql_mode_will_do(make, database, name, mode, dialect, options, monkeypatch):
    monkeypatch.setattr(pool, "SHORTEST_LIMIT", 5)  # for the last look of a short wait
    options(init_command=f"SET sql_mode = '{mode}'")
    backend = make()
    lease = backend.try_acquire(claim(f"{name}'\"\\`%", description="it's \\ 100 %"))
    assert backend.try_acquire(claim(lease.name)) is None
    assert backend.renew([lease]) == {lease.nonce: True}
    assert backend.inspect(lease.name).description == "it's \\ 100 %"
    assert backend.release(lease)
    # The row is there, and free.
    again = run(backend.enqueue(claim(lease.name), None))
    assert again.token > lease.token
    assert backend.try_acquire(claim(lease.name)) is None
    assert run(backend.enqueue(claim(lease.name), clock() + 0.3)) is None
    assert backend.verify(again)
    assert backend.release(again)
    assert backend.sweep()


@pytest.mark.every_day_on("postgresql")
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


@pytest.mark.parametrize("kind", SERVERS)
def test_health_checks_and_persistence_of_the_project_change_nothing(make, database, name):
    settings = connections.settings[database]
    settings.update(CONN_HEALTH_CHECKS=True, CONN_MAX_AGE=0, ATOMIC_REQUESTS=True)
    try:
        backend = make()
        lease = backend.try_acquire(claim(name))
        assert backend.release(lease)
    finally:
        settings.update(CONN_HEALTH_CHECKS=False, CONN_MAX_AGE=0, ATOMIC_REQUESTS=False)


def work_with(database, name, default_timeout):
    """In a process of its own: take turns from several threads (or greenlets)."""
    import socket

    from tests.children import write_line
    from tests.database.speaking import speaking

    if default_timeout:
        socket.setdefaulttimeout(0.05)
    backend = speaking(None)("default", {"OPTIONS": {"database": database, "wait": "poll"}})
    inside, turns = [], []

    def work():
        for _ in range(5):
            lease = run(backend.enqueue(claim(name), clock() + 60))
            inside.append(1)
            assert len(inside) == 1
            if default_timeout:
                backend.pool.run(Statement(NAPS[database]))
            assert backend.verify(lease)
            inside.pop()
            assert backend.release(lease)
            turns.append(lease.token)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend.close()
    write_line("turns", len(turns))


@pytest.mark.every_day_on("postgresql")
def test_greenlets_can_use_locks(kind, make, name, child):
    make()
    assert child(work_with, ALIASES[kind], name, False, gevent=True).finish() == ["turns 15"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_a_default_time_limit_of_sockets_does_not_reach_the_driver(kind, make, name, child):
    make()
    assert child(work_with, ALIASES[kind], name, True).finish() == ["turns 15"]
