"""The server has done what was asked, but its answer never arrives."""

import pytest

from distlock.backends.database import errors
from distlock.backends.database.connection import Connection
from distlock.types.lease import State
from tests.database.speaking import claim
from tests.databases import SERVERS

pytestmark = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture
def proxy(kind, make, proxied):
    return proxied(kind)


@pytest.fixture
def backend(make, proxy):
    return make()


def to(kind, name, words):
    """Return what only the packet has that makes the server do it."""
    # PostgreSQL gets the words once per session, and then the values.
    return name.encode() if kind == "postgresql" else words


def test_a_lock_that_was_taken_unheard_is_ones_own(backend, kind, proxy, name):
    lost = proxy.lose_reply(to=to(kind, name, b"INSERT INTO database_lock"))
    lease = backend.try_acquire(claim(name))
    assert lost.is_set()
    assert backend.verify(lease)
    assert backend.try_acquire(claim(name)) is None
    assert backend.release(lease)


def test_a_lock_that_was_taken_again_unheard_is_ones_own(backend, proxy, name, sql):
    ahead = 10**12  # of the clock, so that tokens count the grants
    earlier = backend.try_acquire(claim(name))
    backend.release(earlier)
    sql(f"UPDATE database_lock SET token = token + {ahead}")
    lost = proxy.lose_reply(to=name.encode())
    lease = backend.try_acquire(claim(name))
    assert lost.is_set()
    assert lease.token == earlier.token + ahead + 2  # granted twice, to one claim
    assert backend.verify(lease)
    assert backend.try_acquire(claim(name)) is None
    assert backend.release(lease)


def test_a_lock_that_was_taken_unheard_by_another_is_busy(backend, kind, proxy, name):
    held = backend.try_acquire(claim(name))
    lost = proxy.lose_reply(to=to(kind, name, b"INSERT INTO database_lock"))
    assert backend.try_acquire(claim(name)) is None
    assert lost.is_set()
    assert backend.verify(held)


def test_a_lock_that_was_freed_unheard_is_no_loss(backend, proxy, name):
    lease = backend.try_acquire(claim(name))
    lost = proxy.lose_reply(to=name.encode())
    assert backend.release(lease) is True
    assert lost.is_set()
    assert backend.inspect(name).state is State.FREE


def test_a_lock_freed_unheard_and_taken_by_the_next_is_no_loss_either(
    backend, make, proxy, kind, server, name, monkeypatch
):
    """Between the two requests somebody else may have come."""
    rival = make()  # which empties the table
    lease = backend.try_acquire(claim(name))
    other = claim(name)
    taking = []
    opening = backend.pool.open

    def open_late(*args, **more):
        taking.append(rival.try_acquire(other))
        return opening(*args, **more)

    rival.inspect(name)  # has a session of its own
    monkeypatch.setattr(backend.pool, "open", open_late)
    lost = proxy.lose_reply(to=name.encode())
    assert backend.release(lease) is True
    assert lost.is_set()
    assert rival.verify(taking[0])


def test_a_release_that_comes_too_late_is_a_loss_although_the_first_answer_was_lost(
    backend, proxy, name
):
    lease = backend.try_acquire(claim(name, duration=0.2))
    while lease.remaining:
        pass
    backend.sweep()
    proxy.lose_reply(to=name.encode())
    assert backend.release(lease) is False


def test_a_renewal_unheard_is_made_again(backend, proxy, name):
    lease = backend.try_acquire(claim(name))
    before = backend.inspect(name).until
    lost = proxy.lose_reply(to=b"UPDATE database_lock")
    assert backend.renew([lease]) == {lease.nonce: True}
    assert lost.is_set()
    assert backend.inspect(name).until > before


def test_a_hold_broken_unheard_is_told_of(backend, proxy, name):
    lease = backend.try_acquire(claim(name))
    lost = proxy.lose_reply(to=b"UPDATE database_lock")
    assert backend.force_release(name, lease.token).nonce == lease.nonce
    assert lost.is_set()


def test_a_hold_broken_unheard_is_told_of_although_the_next_one_has_the_lock(
    backend, make, proxy, name, monkeypatch
):
    rival = make()  # which empties the table
    lease = backend.try_acquire(claim(name))
    taking = []
    opening = backend.pool.open

    def open_late(*args, **more):
        taking.append(rival.try_acquire(claim(name)))
        return opening(*args, **more)

    rival.inspect(name)  # has a session of its own
    monkeypatch.setattr(backend.pool, "open", open_late)
    lost = proxy.lose_reply(to=b"UPDATE database_lock")
    assert backend.force_release(name, lease.token).nonce == lease.nonce
    assert lost.is_set()
    assert rival.verify(taking[0])


def test_a_hold_that_was_left_after_a_refusal_was_not_broken(backend, name, monkeypatch):
    lease = backend.try_acquire(claim(name))
    asked = Connection.ask
    refused = []

    def ask(session, statement):
        if statement.sql.startswith("UPDATE database_lock") and not refused:
            refused.append(statement)
            assert backend.release(lease)
            raise errors.SerializationFailure("deadlock")
        return asked(session, statement)

    monkeypatch.setattr(Connection, "ask", ask)
    assert backend.force_release(name, lease.token) is None
    assert refused


def test_a_claim_withdrawn_unheard_is_withdrawn(backend, proxy, name):
    wanted = claim(name)
    backend.try_acquire(wanted)
    lost = proxy.lose_reply(to=b"UPDATE database_lock")
    backend.cancel(wanted)
    assert lost.is_set()
    assert backend.inspect(name).state is State.FREE


def test_a_lock_that_was_kept_unheard_is_no_loss(backend, proxy, name):
    lease = backend.try_acquire(claim(name))
    lost = proxy.lose_reply(to=b"UPDATE database_lock")
    assert backend.reserve_for(lease, 30) is True
    assert lost.is_set()
    assert backend.try_acquire(claim(name, lease.owner)) is None
