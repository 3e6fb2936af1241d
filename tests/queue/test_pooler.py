"""PostgreSQL behind PgBouncer: nobody is stranded, whatever ``wait`` says."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.checks import run_checks
from django.db import connections

from distlock import Lock, locks
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.databases import ALIASES, moved
from tests.servers.pgbouncer import PgBouncer

ALIAS = ALIASES["postgresql"]
MODES = ("transaction", "session")


@pytest.fixture(scope="module")
def kind():
    return "postgresql"


@pytest.fixture(scope="module")
def poolers(postgresql):
    """One PgBouncer for each mode, by mode."""
    with (
        PgBouncer(postgresql, mode="transaction", size=2) as transaction,
        PgBouncer(postgresql, mode="session", size=30) as session,
    ):
        yield {"transaction": transaction, "session": session}


@pytest.fixture
def mode():
    return "transaction"


@pytest.fixture
def behind(poolers, mode, using):
    """The alias of the backend, whose database is reached through a pooler."""
    locks.close_all()
    with moved(ALIAS, poolers[mode].port):
        yield using
        locks.close_all()


def contend(name, turns):
    """Take so many turns; tell every token."""
    read_line()
    lock = Lock(name)
    for _ in range(turns):
        assert lock.acquire(timeout=PATIENCE)
        write_line(lock.token)
        lock.release()


def warnings_of(caplog):
    """What was said of a pooler, but for backends of earlier tests that still renew or withdraw."""
    return [
        message
        for record in caplog.records
        if record.levelno >= logging.WARNING
        if record.threadName not in ("distlock-cleanup", "distlock-renewal")
        if "pooler" in (message := record.getMessage())
    ]


@pytest.mark.slow
def test_processes_that_contend_are_all_served(behind, engine, child, name):
    turns = 10
    processes = [child(contend, name, turns) for _ in range(4)]
    for process in processes:
        process.tell()
    tokens = [int(line) for process in processes for line in process.finish(2 * PATIENCE)]
    assert len(tokens) == len(set(tokens)) == len(processes) * turns
    engine.reaches_line(0)
    assert Lock(name).acquire(blocking=False)
    Lock(name).release()


def use_and_wait(name):
    """Have the threads of one process share its sessions; tell who is seen to wait."""

    def take_and_leave():
        with Lock(name, timeout=PATIENCE):
            return True

    held = Lock(name)
    held.acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(take_and_leave)
        assert threads.submit(lambda: Lock(name).acquire(timeout=0.3)).result(PATIENCE) is False
        write_line(held.info().waiters)
        held.release()
        assert waiting.result(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_first_use_tells_once_that_waiting_is_not_in_order(behind, child, name):
    process = child(use_and_wait, name)
    process.finish(2 * PATIENCE)
    assert process.errors.count("connection pooler") == 1
    assert f"the database {ALIAS!r} is reached through" in process.errors
    assert "'wait'" in process.errors


def test_nothing_of_a_session_is_left_to_other_clients(behind, actor, engine, name):
    """Neither settings nor locks: the next packet may come from anybody."""
    held = actor("thread").take(name)
    waiting = actor("thread").lock(name).start("acquire")
    assert actor("thread").lock(name).acquire(timeout=0.3) is False
    held.release()
    assert waiting.result(PATIENCE)
    with connections[ALIAS].cursor() as cursor:
        for setting in ("lock_timeout", "synchronous_commit", "client_min_messages"):
            cursor.execute("SELECT setting = reset_val FROM pg_settings WHERE name = %s", [setting])
            assert cursor.fetchone() == (True,), setting
    engine.reaches_line(0)
    connections[ALIAS].close()


def test_an_advisory_lock_that_someone_left_behind_keeps_nobody_out(
    postgresql, engine, using, name
):
    # With a pooler of its own: the lock stays in one of the sessions, to the end of these.
    with PgBouncer(postgresql, size=2) as pooler, moved(ALIAS, pooler.port):
        with engine.taken_by_hand(ALIAS, name):
            for _ in range(3):
                assert Lock(name).acquire(timeout=PATIENCE)
                Lock(name).release()
        locks.close_all()


@pytest.mark.parametrize("mode", ["session"])
@pytest.mark.parametrize("options", [{"wait": "native"}], ids=["native"])
def test_a_pooler_that_keeps_sessions_can_be_said_to(behind, actor, engine, name, caplog):
    held = actor().take(name)
    waiting = actor("thread").lock(name).start("acquire")
    engine.reaches_line(1)
    held.release()
    assert waiting.result(PATIENCE)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("options", [{"wait": "poll"}], ids=["poll"])
def test_nothing_is_to_be_told_of_what_was_set(behind, name, caplog):
    with Lock(name):
        pass
    assert warnings_of(caplog) == []
    assert found() == []


def found():
    connections[ALIAS].close()
    try:
        return [
            (one.id, one.msg, one.hint) for one in run_checks(tags=["distlock"], databases=[ALIAS])
        ]
    finally:
        connections[ALIAS].close()


@pytest.mark.parametrize("mode", MODES)
def test_a_check_finds_the_pooler(behind):
    ((check, message, hint),) = found()
    assert check == "distlock.W003"
    assert "not served first come, first served" in message
    assert '"poll"' in hint


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"wait": "native"}], ids=["native"])
def test_a_check_tells_whether_a_pooler_keeps_sessions(behind, mode):
    messages = found()
    if mode == "session":
        assert messages == []
    else:
        ((check, message, hint),) = messages
        assert check == "distlock.W003"
        assert "strands" in message
        assert '"poll"' in hint


def test_a_check_of_a_server_reached_directly_finds_no_pooler(using):
    assert found() == []
