"""Sessions of our own: how they are shared, kept, and given up."""

import os
import resource
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from django.core import mail
from django.db import connections

from distlock.backends.database import DatabaseBackend, errors
from distlock.backends.database import pool as pool_module
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.exceptions import LockUnavailable
from tests.contract.watch import eventually
from tests.database.asleep import CANCEL, SLEEP, once_asleep
from tests.database.lending import ident_of, in_use, next_session
from tests.database.speaking import claim
from tests.databases import ALIASES, SERVERS
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.once

ONE = Statement("SELECT 1")


def one_of(kind, **texts):
    return texts[kind]


def session_ids(sql, kind):
    """The sessions of the project; an administrator's of a moment ago may not have ended yet."""
    return {
        row[0]
        for row in sql(
            one_of(
                kind,
                mariadb="SELECT id FROM information_schema.processlist WHERE user = 'distlock'",
                postgresql="SELECT pid FROM pg_stat_activity WHERE usename = 'distlock'",
            )
        )
    }


@pytest.fixture
def apart(kind, server):
    """``apart(**OPTIONS)``: a backend, and the network to its database, which nobody else uses.

    What other tests have left behind may open and close sessions of its own meanwhile.
    """
    with ExitStack() as after:

        def make(**options):
            network = after.enter_context(Proxy(server(kind).port))
            connections.settings["apart"] = {
                **connections.settings[ALIASES[kind]],
                "PORT": str(network.port),
            }
            after.callback(connections.settings.pop, "apart")
            backend = DatabaseBackend("apart", {"OPTIONS": {"database": "apart", **options}})
            after.callback(connections.__delitem__, "apart")
            after.callback(backend.close)
            return backend, network

        yield make


# Sharing


def test_one_session_serves_call_after_call(backend, name):
    lease = backend.try_acquire(claim(name))
    first = next_session(backend.pool)
    backend.verify(lease)
    assert next_session(backend.pool) is first


def test_threads_that_ask_at_once_have_sessions_of_their_own(backend):
    with in_use(backend.pool) as first, in_use(backend.pool) as second:
        assert first is not second


@pytest.mark.parametrize("kind", SERVERS)
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
        # One, if it has answered them all before the other was open.
        assert len({future.result().rows[0][0] for future in asked}) <= 2


@pytest.mark.parametrize("kind", SERVERS)
def test_a_thread_that_finds_no_free_session_in_time_gets_an_error(make, kind):
    backend = make(sessions=1)
    with (
        in_use(backend.pool),
        pytest.raises(LockUnavailable, match="session") as caught,
    ):
        backend.try_acquire(claim("busy"), clock() + 0.1)
    assert caught.value.maybe_applied is False


def test_threads_are_served_in_the_order_of_coming(make):
    pool = make(sessions=1, timeout=30).pool
    order = []
    with ThreadPoolExecutor(5) as threads, in_use(pool):
        for number in range(5):
            threads.submit(pool.work, lambda session, number=number: order.append(number))
            eventually(lambda waiting=number + 1: pool.waiting == waiting)
    assert order == [0, 1, 2, 3, 4]
    assert pool.busy == 0


def test_a_wait_in_vain_takes_no_session_away(make):
    pool = make(sessions=1).pool
    with in_use(pool):
        with pytest.raises(errors.NoSession) as kept:
            pool.run(ONE, clock() + 0.1)
        assert pool.waiting == 0
    assert pool.busy == 0
    assert pool.run(ONE).rows == [(1,)]
    assert kept.value  # with its traceback


def test_what_must_not_wait_gets_a_session_at_once(make):
    pool = make(sessions=1).pool
    with in_use(pool) as lent:
        assert pool.work(lambda session: session, at_once=True) is not lent


def test_a_session_that_was_interrupted_is_given_up(backend):
    lent = []

    def interrupt(session):
        lent.append(session)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.pool.work(interrupt)
    assert next_session(backend.pool) is not lent[0]


@pytest.mark.parametrize("kind", SERVERS)
def test_an_interrupt_ends_the_wait_for_an_answer(backend, kind, alarm):
    backend.pool.run(ONE)
    with pytest.raises(KeyboardInterrupt):  # and no timeout, after 5 s
        alarm(0.3)
        backend.pool.run(Statement(SLEEP[kind]))
    assert backend.pool.busy == 0
    assert backend.pool.run(ONE).rows == [(1,)]


@pytest.fixture
def alarm():
    """``alarm(seconds)``: press Ctrl-C then, and until that is seen."""

    def interrupt(*args):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    # Python may miss a signal that comes in the moment in which a system call begins.
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_closed_backend_opens_sessions_again(backend, name):
    lease = backend.try_acquire(claim(name))
    with in_use(backend.pool) as lent:
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


@pytest.mark.parametrize("kind", SERVERS)
def test_a_session_is_closed_when_it_was_idle_for_long(apart):
    backend, network = apart(idle=0.2)
    assert backend.pool.work(lambda session: network.connections) == 1
    eventually(lambda: network.connections == 0)


def test_a_session_that_comes_back_just_when_all_are_closed_is_closed(make, monkeypatch):
    pool = make().pool

    def close_and_look():
        pool.close()
        return clock()

    with in_use(pool) as session:
        monkeypatch.setattr(pool_module, "clock", close_and_look)
    assert not session.usable


@pytest.mark.parametrize("kind", SERVERS)
def test_where_djangos_tests_run_nothing_is_kept(apart, monkeypatch):
    """An open session would keep the test database from being dropped."""
    backend, network = apart(idle=None)
    monkeypatch.setattr(mail, "outbox", [], raising=False)
    backend.pool.run(ONE)
    eventually(lambda: network.connections == 0)
    monkeypatch.delattr(mail, "outbox")
    backend.pool.run(ONE)
    assert network.connections == 1
    monkeypatch.setattr(mail, "outbox", [], raising=False)
    backend.pool.run(ONE)
    eventually(lambda: network.connections == 0)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.every_day_on("mariadb")
def test_a_timeout_leaves_no_session_behind(backend, database, sql, kind):
    which = one_of(kind, mariadb="SELECT CONNECTION_ID()", postgresql="SELECT pg_backend_pid()")
    # Connecting takes its time, too. The next statement is run by the same session.
    ((own,),) = backend.pool.run(Statement(which)).rows
    assert own in session_ids(sql, kind)
    with pytest.raises(errors.StatementTimeout):
        backend.pool.run(Statement(SLEEP[kind]), clock() + 0.3)

    def gone():
        """A server may notice at the end of the statement only that nobody waits for it."""
        with suppress(connections[database].Database.Error):  # it has gone just now
            sql(CANCEL[kind] % {"ident": own})
        return own not in session_ids(sql, kind)

    eventually(gone)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.every_day_on("mariadb")
def test_an_answer_that_stalls_halfway_is_not_waited_for(make, kind):
    pool = make(timeout=1).pool
    eventually(lambda: answers(pool))
    began = clock()
    with pytest.raises((errors.StatementTimeout, errors.ConnectionLost)):
        pool.run(Statement(f"SELECT 1; {SLEEP[kind]}"))
    assert clock() - began < 10
    assert not pool._idle


def answers(pool):
    """Return whether the server has answered in time; if so, there is a session."""
    with suppress(errors.StatementFailed):
        return pool.run(ONE).rows
    return None


@pytest.mark.parametrize("kind", SERVERS)
def test_a_connection_that_comes_too_late_is_closed(apart, kind, server):
    backend, network = apart()
    server(kind).pause()
    with pytest.raises(errors.NoSession):
        backend.pool.run(ONE, clock() + 0.3)
    server(kind).resume()
    eventually(
        lambda: not any(thread.name == "distlock-connect" for thread in threading.enumerate())
    )
    eventually(lambda: network.connections == 0)


@pytest.mark.parametrize("kind", SERVERS)
def test_another_session_can_cancel_a_statement(backend, kind):
    session = backend.pool.open(blocking=True)
    with once_asleep(kind, backend.pool, session, CANCEL), pytest.raises(errors.StatementCancelled):
        session.run(Statement(SLEEP[kind]), None)
    assert session.run(ONE, 5).rows == [(1,)]
    session.close()


@pytest.mark.parametrize("kind", SERVERS)
def test_another_thread_can_hang_up_on_a_statement(backend, kind):
    session = backend.pool.open(blocking=True)
    timer = threading.Timer(0.3, session.hang_up)
    timer.start()
    with pytest.raises(errors.ConnectionLost):
        session.run(Statement(SLEEP[kind]), None)
    session.close()
    session.hang_up()  # does no harm any more


@pytest.mark.parametrize("kind", SERVERS)
def test_a_statement_can_be_hung_up_on_where_no_more_files_can_be_opened(backend, kind):
    session = backend.pool.open(blocking=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def hang_up():
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            session.hang_up()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    timer = threading.Timer(0.3, hang_up)
    timer.start()
    with pytest.raises(errors.ConnectionLost):
        session.run(Statement(SLEEP[kind]), None)
    session.close()


@contextmanager
def room_for_one_more_file():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled, last = [], max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 8, hard))
    try:
        with suppress(OSError):
            while True:
                filled.append(os.dup(0))
        os.close(filled.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filled:
            os.close(fd)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_lock_cannot_be_asked_for_where_no_session_finds_room_for_its_files(make, name):
    """The driver can open its socket, and no more."""
    refused = []
    for number in range(10):
        backend = make()
        with room_for_one_more_file():
            try:
                backend.try_acquire(claim(f"{name}:{number}"))
            except LockUnavailable as error:
                refused.append(error)
        if refused:
            break  # else another thread has closed a file meanwhile
    assert refused
    assert backend.try_acquire(claim(name))


@pytest.mark.parametrize("kind", SERVERS)
def test_a_session_whose_server_has_left_is_stale(backend, sql, kind):
    with in_use(backend.pool) as session:
        ident = ident_of(session)
        assert not session.stale
        ending = one_of(
            kind,
            mariadb=f"KILL {ident}",
            postgresql=f"SELECT pg_terminate_backend({ident})",
        )
        sql(ending)
        select.select([session.fileno()], [], [], 20)
        assert session.stale


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_session_with_a_node_that_is_cut_off_is_left_for_another(backend, sql, name):
    """As a node of a Galera cluster says it, on a connection that stays open."""
    lease = backend.try_acquire(claim(name))
    ident = ident_of(next_session(backend.pool))
    sql(
        "CREATE TRIGGER cut_off BEFORE UPDATE ON database_lock FOR EACH ROW"
        f" IF CONNECTION_ID() = {ident} THEN"
        " SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = 1047; END IF"
    )
    try:
        assert backend.release(lease)
    finally:
        sql("DROP TRIGGER cut_off")
