"""A hold that was extended does not end earlier through what was asked before and comes late."""

import pytest

from distlock import Lock, LockUnavailable
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually
from tests.database.speaking import claim
from tests.databases import SERVERS

pytestmark = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture
def proxy(kind, make, proxied):
    return proxied(kind)


@pytest.fixture
def backend(make, proxy):
    return make()


def test_a_renewal_that_comes_late_does_not_end_it_earlier(backend, proxy, name):
    """The same statement renews another lease, which shows that it was carried out."""
    held, other = (backend.try_acquire(claim(f"{name}:{one}")) for one in ("held", "other"))
    late = proxy.delay(b"UPDATE database_lock SET expires_at")
    backend.renew([held.lasting(40), other.lasting(40)], clock() + 1)  # in another session, too
    assert late.kept_back.is_set()
    assert backend.renew([held.lasting(600)]) == {held.nonce: True}
    before = backend.inspect(other.name).until
    late.end()
    eventually(lambda: backend.inspect(other.name).until > before)
    info = backend.inspect(held.name)
    assert info.remaining > 500
    assert info.lease == 600


def test_a_usual_renewal_after_its_end_counts_again(backend, name, sql):
    held = backend.try_acquire(claim(name))
    assert backend.renew([held.lasting(600)])[held.nonce]
    sql("UPDATE database_lock SET lease = lease - 590, expires_at = expires_at")
    assert backend.renew([held.lasting(40)])[held.nonce]
    assert backend.inspect(name).lease == 40


def test_a_hold_that_was_asked_for_twice_is_not_extended(
    kind, proxy, backend_settings, settings, name
):
    """The first request may still be carried out, and would give it a lease of its own length."""
    settings.DISTLOCK = backend_settings(kind, OPTIONS={"wait": "poll"})
    with Lock(name):
        pass  # what follows is one statement
    lost = proxy.lose_reply(to=name.encode())
    lock = Lock(name, renew=False)
    assert lock.acquire()
    assert lost.is_set()
    with pytest.raises(LockUnavailable, match="an earlier request for lock .* lost"):
        lock.extend(600)
    lock.verify()
    lock.release()
    assert lock.acquire()
    lock.extend(600)
    assert lock.info().remaining > 500
    lock.release()
