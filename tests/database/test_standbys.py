"""PostgreSQL with a standby that takes over: no grant is told that it does not know."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from django.db import connections

from distlock import Lock, LockError, LockUnavailable, locks
from distlock.concurrency.clock import clock
from distlock.recipes import Config, Topic
from distlock.types.lease import State
from tests.children import read_line, write_line
from tests.contract.watch import eventually, passed
from tests.databases import ALIASES, migrate, publish
from tests.servers.postgresql import PostgreSQL
from tests.servers.proxy import Proxy
from tests.servers.standby import Standby

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: seconds in which a watcher of our own looks at every wait at least twice
LOOKS = 5.0
WAITS_FOR_STANDBY = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(params=["auto", "poll"])
def wait(request):
    """How locks are waited for."""
    return request.param


@pytest.fixture
def primary():
    """A server of its own, in place of the one of other tests; reached through ``front``."""
    alias = ALIASES["postgresql"]
    usual = dict(connections.settings[alias])
    with PostgreSQL() as server:
        publish(alias, server.django())
        migrate(alias)
        yield server
        locks.close_all()
    publish(alias, usual)


@pytest.fixture
def front(primary):
    """What leads clients to the server that is the primary now."""
    with Proxy(primary.port) as proxy:
        publish(ALIASES["postgresql"], {"PORT": str(proxy.port)})
        yield proxy


@pytest.fixture
def standby(primary):
    with Standby(primary) as server:
        yield server


@pytest.fixture
def using(primary, front, wait, settings):
    options = {"database": ALIASES["postgresql"], "wait": wait, "timeout": 20, "idle": 60}
    backend = "distlock.backends.database.DatabaseBackend"
    settings.DISTLOCK = {"default": {"BACKEND": backend, "LEASE": 60, "OPTIONS": options}}
    locks.close_all()
    yield "default"
    locks.close_all()


def fail_over(primary, standby, front):
    """Let the standby take over with what it has."""
    standby.network.refuse()
    primary.kill()
    standby.resume()
    standby.promote()
    front.lead_to(standby.port)


def hold(name, lease=60):
    """Take a lock, tell its token, and tell when it is lost, or freed at a word."""
    lock = Lock(name, lease=lease, on_lost=lambda lease: write_line("lost"))
    write_line("asks")
    while not lock.held:
        with suppress(LockUnavailable):  # there is no primary for a moment
            lock.acquire()
    write_line(lock.token)
    read_line()
    lock.release()
    write_line("released")
    read_line()


def says_nothing(process, seconds):
    """Return whether a child is silent for so long."""
    with pytest.raises(AssertionError, match="said nothing"):
        process.line(seconds)
    return True


def contend(name):
    """Take turns until a word; tell the token of each, and from when to when it was held."""
    lock = Lock(name, lease=3)
    word = threading.Thread(target=read_line, daemon=True)
    word.start()
    while word.is_alive():
        try:
            if lock.acquire(timeout=5):
                believed = []
                for _ in range(5):
                    time.sleep(0.002)
                    moment = clock()  # before the check, after which the process may stand still
                    lock.check()
                    believed.append(moment)
                write_line(lock.token, believed[0], believed[-1])
                lock.release()
        except LockError:
            time.sleep(0.05)
    write_line("end")


def turns_of(process):
    while (line := process.line()) != "end":
        token, since, until = line.split()
        yield float(since), float(until), int(token)


def test_a_waiter_is_not_granted_what_the_standby_does_not_know(
    primary, standby, front, using, wait, name, child
):
    """Its commit waits for the standby, and nobody may end that wait, for however long."""
    standby.wait_for_it()
    with Lock(name) as held:
        holder = child(hold, name)
        assert holder.line() == "asks"
        if wait == "auto":
            eventually(lambda: held.info().waiters)
    token = int(holder.line())  # it has waited in the server's queue, as the next one does
    if wait == "auto":
        waiter = child(hold, name)
        eventually(lambda: locks[using].inspect(name).waiters)
    standby.pause()
    holder.tell()
    assert holder.line() == "released"
    if wait == "poll":
        # Not before: each try locks the row until its commit is known to the standby.
        waiter = child(hold, name)
    assert waiter.line() == "asks"
    eventually(lambda: primary.execute(WAITS_FOR_STANDBY))
    assert says_nothing(waiter, LOOKS)
    standby.resume()
    assert int(waiter.line()) > token
    waiter.tell()
    assert waiter.line() == "released"


@pytest.mark.parametrize("mute", ["warning", "error"])
def test_a_grant_whose_wait_for_the_standby_was_cancelled_is_not_believed(
    primary, standby, front, using, name, child, mute
):
    """PostgreSQL then tells of a success, with a warning, which the role may not want to hear."""
    primary.execute(f"ALTER ROLE {primary.user} SET client_min_messages = '{mute}'")
    standby.wait_for_it()
    standby.pause()
    taker = child(hold, name)
    assert taker.line() == "asks"
    for _ in range(3):
        eventually(lambda: primary.execute(WAITS_FOR_STANDBY))
        primary.execute(f"SELECT pg_cancel_backend(pid) FROM ({WAITS_FOR_STANDBY}) waiting")
    assert says_nothing(taker, 1)
    fail_over(primary, standby, front)
    token = int(taker.line())
    assert locks[using].inspect(name).token == token
    taker.tell()
    assert taker.line() == "released"


@pytest.mark.parametrize("wait", ["poll"])
def test_a_renewal_whose_wait_for_the_standby_was_cancelled_is_not_believed(
    primary, standby, front, using, name, child
):
    """After a failover the lease would end before its holder knows."""
    standby.wait_for_it()
    holder = child(hold, name, 6)
    assert holder.line() == "asks"
    assert int(holder.line())
    standby.pause()
    end = clock() + 12
    while clock() < end:
        primary.execute(f"SELECT pg_cancel_backend(pid) FROM ({WAITS_FOR_STANDBY}) waiting")
        passed(0.1)
    standby.resume()
    assert holder.line() == "lost"


@pytest.mark.parametrize("wait", ["auto"])
def test_a_grant_that_the_standby_had_outlives_the_primary(
    primary, standby, front, using, name, child
):
    standby.wait_for_it()
    holder = child(hold, name)
    assert holder.line() == "asks"
    token = int(holder.line())
    fail_over(primary, standby, front)
    info = locks[using].inspect(name)
    assert (info.state, info.token) == (State.HELD, token)
    assert Lock(name).acquire(blocking=False) is False
    holder.tell()
    assert holder.line() == "released"
    with Lock(name) as after:
        assert after.token > token


def test_processes_that_contend_while_a_synchronous_standby_takes_over(
    primary, standby, front, using, name, child
):
    """No token twice, and never two who believed in their lock at once."""
    standby.wait_for_it()
    crowd = [child(contend, name) for _ in range(4)]
    turns = [next(turns_of(process)) for process in crowd]
    for moment in range(3):  # a standby that is slow now and then
        passed(1)
        standby.pause()
        passed(0.2 + moment)
        if moment < 2:
            standby.resume()
    fail_over(primary, standby, front)
    failed_over_at = clock()
    for process in crowd:  # each of them gets the lock again
        for turn in turns_of(process):
            turns.append(turn)
            if turn[0] > failed_over_at:
                break
    for process in crowd:
        process.tell()
    turns = sorted(turns + [turn for process in crowd for turn in turns_of(process)])
    tokens = [token for *_, token in turns]
    assert tokens == sorted(set(tokens))
    assert [
        (one, other) for one, other in zip(turns, turns[1:], strict=False) if other[0] < one[1]
    ] == []


@pytest.mark.parametrize("wait", ["auto"])
def test_tokens_do_not_repeat_after_a_failover_that_lost_grants(
    primary, standby, front, using, name
):
    """The asynchronous standby has missed some; the protected rows have not."""
    with Lock(name) as lock:
        tokens = [lock.token]
    standby.catch_up()
    standby.network.refuse()
    for _ in range(3):
        with Lock(name) as lock:
            tokens.append(lock.token)
    fail_over(primary, standby, front)
    assert locks[using].inspect(name).token == tokens[0]
    for _ in range(3):
        with Lock(name) as lock:
            tokens.append(lock.token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("wait", ["auto"])
def test_those_who_follow_agree_again_after_a_failover_that_lost_what_they_saw(
    primary, standby, front, using, settings, name
):
    """The value that was lost is taken back; a message that was given its number anew is told."""
    settings.DISTLOCK = {"default": {**settings.DISTLOCK["default"], "LEASE": 2}}
    config, topic, seen = Config(name), Topic(name), []
    config.set("kept")
    topic.publish("kept")
    standby.catch_up()
    standby.network.refuse()
    messages = topic.subscribe(0, timeout=120)
    with config.watch(lambda found: seen.append(found.value)):
        config.set("lost")
        topic.publish("lost")
        topic.publish("lost, too")
        eventually(lambda: seen[-1:] == ["lost"])
        assert [next(messages).message for _ in range(3)] == ["kept", "lost", "lost, too"]
        fail_over(primary, standby, front)
        eventually(lambda: seen[-1] == "kept")
        assert config.set("next") == 3
        assert topic.publish("other") == 2
        assert next(messages).message == "other"
        eventually(lambda: seen[-1] == "next")
    assert [one.version for one in config.history()] == [3, 1]
