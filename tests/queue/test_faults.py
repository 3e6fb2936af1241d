"""Servers and networks that fail while somebody waits: an error in time, or as if nothing was."""

import threading

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.queue.engine import unhurried

#: seconds that the database gets for any one answer
TIMEOUT = 2
#: seconds until a wait has noticed: what an answer may take, and what a loaded machine may
NOTICED = TIMEOUT + 8


#: for tests that do not wait for that: a server that stands still for a moment is no failure
patient = pytest.mark.parametrize("limit", [10], ids=["patient"])


@pytest.fixture
def limit():
    return TIMEOUT


def in_time(future, began):
    with pytest.raises(LockUnavailable):
        future.result(PATIENCE)
    return clock() - began < NOTICED


@pytest.mark.slow
def test_a_server_that_hangs_at_the_head(waiting, server, kind):
    began = clock()
    server(kind).pause()
    assert in_time(waiting, began)


@pytest.mark.slow
def test_a_server_that_hangs_in_the_queue(behind, server, kind):
    began = clock()
    server(kind).pause()
    assert in_time(behind, began)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10])
@pytest.mark.parametrize("place", ["waiting", "behind"])
def test_who_waits_is_told_by_the_time_limit_of_an_answer(place, limit, request, server, kind):
    future = request.getfixturevalue(place)
    passed(1)
    began = clock()
    server(kind).pause()
    with pytest.raises(LockUnavailable):
        future.result(PATIENCE)
    assert clock() - began < limit + 8


@pytest.mark.slow
def test_a_server_that_ends(behind, server, kind):
    began = clock()
    server(kind).kill()
    assert in_time(behind, began)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"timeout": 20}], ids=["patient"])
def test_a_server_that_is_started_again(waiting, holder, server, kind):
    """Whoever waits goes on waiting; the lock is in the table."""
    server(kind).stop()
    server(kind).start()
    passed(0.5)
    assert not waiting.done()
    holder.lock_held.release()
    assert waiting.result(PATIENCE)


@pytest.mark.slow
def test_a_network_that_falls_silent(proxied, kind, child, actor, engine, name):
    outside = actor().take(name, lease=60)
    network = proxied(kind)
    future = actor("thread").lock(name).start("acquire")
    engine.reaches_line(1)
    began = clock()
    network.silence()
    assert in_time(future, began)
    network.heal()
    assert outside.held


@pytest.mark.slow
@patient
@unhurried
def test_a_network_that_is_cut_for_a_moment(proxied, kind, actor, engine, name):
    outside = actor().take(name, lease=60)
    first = actor().lock(name).start("acquire")
    engine.reaches_line(1)
    network = proxied(kind)
    future = actor("thread").lock(name).start("acquire")
    engine.reaches_waiting(1)
    before = engine.idents()
    network.cut()
    eventually(lambda: engine.idents() not in (before, []))
    outside.release()
    assert first.result(PATIENCE)
    assert not future.done()
    engine.reaches_waiting(1)


@pytest.mark.slow
def test_a_connection_that_the_network_forgets(proxied, kind, actor, engine, name):
    """The server has said that the lock is ours, to nobody."""
    outside = actor().take(name, lease=60)
    actor().lock(name).start("acquire")
    engine.reaches_line(1)
    network = proxied(kind)
    network.forget(b"distlock waits")
    future = actor("thread").lock(name).start("acquire")
    engine.reaches_waiting(1)
    (session,) = engine.idents()
    engine.cancel(session)  # as an administrator does; the answer is lost
    eventually(lambda: engine.idents() not in ([session], []))
    assert not future.done()
    outside.verify()


@patient
@pytest.mark.every_day_on("postgresql")
def test_whoever_gives_up_on_a_connection_that_the_network_forgets(
    proxied, kind, actor, engine, using, name
):
    outside = actor().take(name, lease=60)
    network = proxied(kind)
    network.forget(b"distlock waits")
    assert actor("thread").lock(name).acquire(timeout=0.3) is False
    eventually(lambda: not locks[using].waits.waiters)
    engine.reaches_line(0)
    outside.verify()


@patient
def test_a_session_that_an_administrator_ends(behind, holder, engine):
    (session,) = engine.idents()
    engine.disconnect(session)
    eventually(lambda: engine.idents() not in ([session], []))
    assert not behind.done()


@patient
def test_a_wait_that_an_administrator_cancels(behind, holder, engine):
    """It is no answer: neither is the lock free, nor has anybody said that it is held."""
    (session,) = engine.idents()
    engine.cancel(session)
    eventually(lambda: engine.idents() == [session])
    passed(0.5)
    assert not behind.done()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"timeout": 10}], ids=["patient"])
def test_a_deadline_passes_in_time_while_the_server_hangs(
    holder, actor, engine, name, server, kind
):
    future = actor("thread").lock(name).start("acquire", timeout=5)
    engine.reaches_line(1)
    passed(2)  # the server has said by then who has the lock
    began = clock()
    server(kind).pause()
    assert future.result(PATIENCE) is False
    assert clock() - began < 5 + 4
    server(kind).resume()
    engine.reaches_line(0)


@patient
def test_other_threads_go_on_while_one_waits(waiting, using):
    with Lock(f"another of {threading.get_ident()}", timeout=PATIENCE) as lock:
        lock.verify()
    assert not waiting.done()
