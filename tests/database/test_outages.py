"""A database that is down, comes back, or does not answer."""

import threading
import time
from contextlib import suppress

import pytest

from distlock.backends.database import errors, pool
from distlock.backends.database.pool import SHORTEST_LIMIT
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock
from distlock.exceptions import LockUnavailable
from distlock.types.lease import State
from distlock.types.query import LockQuery
from tests.contract.actors import answered
from tests.contract.watch import eventually
from tests.database.lending import ident_of, in_use, next_session
from tests.database.speaking import claim
from tests.databases import SERVERS

pytestmark = [pytest.mark.once, pytest.mark.parametrize("kind", SERVERS)]

#: Seconds beyond a time limit that a loaded machine may take.
GRACE = 5.0
#: Seconds of a lease that outlasts a restart of the server.
LONG = 600.0


@pytest.fixture
def asking(backend, name):
    """Every question to the backend, by name."""
    lease = backend.try_acquire(claim(name))
    return {
        "take": lambda **limit: backend.try_acquire(claim(name), **limit),
        "renew": lambda **limit: backend.renew([lease], **limit),
        "release": lambda **limit: backend.release(lease, **limit),
        "cancel": lambda **limit: backend.cancel(lease.claim, **limit),
        "verify": lambda **limit: backend.verify(lease, **limit),
        "inspect": lambda **limit: backend.inspect(name, **limit),
        "list": lambda **limit: list(backend.list(**limit)),
        "break": lambda **limit: backend.force_release(name, lease.token, **limit),
    }


def test_a_server_that_is_down_is_told_at_once(backend, asking, kind, server):
    server(kind).stop()
    for ask in asking.values():
        with pytest.raises(LockUnavailable, match=f"database '{kind}'") as raised:
            ask()
        assert raised.value.__cause__ is not None
    with pytest.raises(LockUnavailable):
        backend.sweep()


def test_what_never_reached_the_server_was_not_sent(backend, asking, kind, server):
    server(kind).stop()
    backend.close()
    with pytest.raises(LockUnavailable) as raised:
        asking["take"]()
    assert raised.value.maybe_applied is False


def test_after_a_restart_everything_goes_on(backend, kind, server, name):
    lease = backend.try_acquire(claim(name, duration=LONG))
    server(kind).stop()
    with pytest.raises(LockUnavailable):
        backend.verify(lease)
    server(kind).start()
    assert backend.verify(lease)
    assert backend.renew([lease]) == {lease.nonce: True}
    assert backend.release(lease)


def test_a_crash_loses_nothing_that_was_granted(backend, kind, server, name):
    lease = backend.try_acquire(claim(name, duration=LONG))
    server(kind).kill()
    server(kind).start()
    assert backend.verify(lease)
    assert backend.try_acquire(claim(name)) is None


def test_a_restart_while_idle_is_not_even_noticed(backend, kind, server, name):
    lease = backend.try_acquire(claim(name, duration=LONG))
    server(kind).stop()
    server(kind).start()
    assert backend.release(lease) is True


def test_sessions_that_the_server_ended_are_replaced(backend, kind, sql, name):
    lease = backend.try_acquire(claim(name))
    ident = ident_of(next_session(backend.pool))
    sql(f"KILL {ident}" if kind == "mariadb" else f"SELECT pg_terminate_backend({ident})")
    assert backend.verify(lease)
    assert backend.release(lease) is True


@pytest.mark.slow
@pytest.mark.parametrize("question", ["take", "renew", "release", "verify", "inspect", "list"])
def test_a_server_that_hangs_costs_no_more_than_the_limit(
    make, kind, server, name, asking, question
):
    server(kind).pause()
    began = clock()
    with pytest.raises(LockUnavailable, match="no answer within|cannot connect within"):
        asking[question](deadline=clock() + 0.5)
    assert 0.4 <= clock() - began < 0.5 + GRACE


#: No rows, after three seconds.
SLOW = {
    "mariadb": "SELECT '', 1.0 FROM DUAL HAVING SLEEP(3) > 3",
    "postgresql": "SELECT '', 1.0 FROM pg_sleep(3) OFFSET 1",
}


@pytest.mark.parametrize("look", ["inspect", "list", "page"])
def test_a_look_at_who_waits_gets_no_more_than_the_limit(make, kind, name, monkeypatch, look):
    backend = make(wait="auto")
    looks = {
        "inspect": lambda due: [backend.inspect(name, due)],
        "list": lambda due: backend.list(name, due),
        "page": lambda due: backend.page(LockQuery(search=name), due).locks,
    }
    assert backend.try_acquire(claim(name))
    locks = type(backend.waits.locks)
    monkeypatch.setattr(locks, "comments", lambda self: Statement(SLOW[kind]))
    waiters = None
    with suppress(LockUnavailable):  # nothing was left for the rows
        (waiters,) = [info.waiters for info in looks[look](clock() + 1)]
    assert waiters is None  # and not (), which comes later


def test_a_server_that_hangs_while_one_connects(backend, kind, server, name):
    server(kind).pause()
    with pytest.raises(LockUnavailable, match="cannot connect") as raised:
        backend.try_acquire(claim(name), clock() + 0.5)
    assert raised.value.maybe_applied is False


@pytest.mark.every_day_on("mariadb")
def test_without_a_deadline_the_option_limits_the_wait(make, kind, server, name):
    backend, wanted = make(timeout=2), claim(name)
    lease = answered(lambda: backend.try_acquire(wanted))
    server(kind).pause()
    began = clock()
    with pytest.raises(LockUnavailable):
        backend.verify(lease)
    assert clock() - began < 2 + GRACE


def test_the_last_look_gets_a_moment_although_the_time_is_up(backend, name, monkeypatch):
    monkeypatch.setattr(pool, "SHORTEST_LIMIT", 5)  # connecting has to fit in
    assert backend.try_acquire(claim(name), clock() - 1)


def test_after_it_hung_the_server_is_asked_anew(backend, kind, server, name):
    lease = backend.try_acquire(claim(name))
    server(kind).pause()
    with pytest.raises(LockUnavailable):
        backend.verify(lease, clock() + SHORTEST_LIMIT)
    server(kind).resume()
    assert eventually(lambda: _answers(backend, lease))


def _answers(backend, lease):
    try:
        return backend.verify(lease)
    except LockUnavailable:
        return False


@pytest.mark.every_day_on("postgresql")
def test_a_take_that_a_hanging_server_carries_out_later_can_be_withdrawn(
    backend, kind, server, name, monkeypatch
):
    monkeypatch.setattr(errors, "BRIEF", 0)  # with less time it looks first, and asks for no more
    backend.release(backend.try_acquire(claim(name)))  # a new lock may take two statements
    wanted = claim(name)
    server(kind).pause()
    with pytest.raises(LockUnavailable) as raised:
        backend.try_acquire(wanted, clock() + 0.5)
    assert raised.value.maybe_applied is True
    server(kind).resume()
    eventually(lambda: backend.inspect(name).state is State.HELD)
    backend.cancel(wanted)
    assert eventually(lambda: backend.try_acquire(claim(name)))


def test_a_network_that_goes_silent(make, kind, proxied, name):
    proxy = proxied(kind)
    backend = make()
    lease = backend.try_acquire(claim(name))
    proxy.silence()
    with pytest.raises(LockUnavailable):
        backend.verify(lease, clock() + 0.3)
    proxy.heal()
    assert backend.verify(lease)


@pytest.mark.every_day_on("postgresql")
def test_one_slow_answer_does_not_hold_up_others(backend, kind, sql, name):
    """Each thread has a session of its own."""
    lease = backend.try_acquire(claim(name))
    with in_use(backend.pool), in_use(backend.pool):
        pass  # none has to be opened in the time of the slow answer
    sleeping = "SELECT SLEEP(30)" if kind == "mariadb" else "SELECT pg_sleep(30)"
    from distlock.backends.database.statements import Statement

    def sleep():
        with pytest.raises(Exception, match="no answer"):
            backend.pool.run(Statement(sleeping), clock() + 2)

    thread = threading.Thread(target=sleep)
    thread.start()
    began = time.monotonic()
    while thread.is_alive():
        assert backend.verify(lease)
    assert time.monotonic() - began < 2 + GRACE
    thread.join()
