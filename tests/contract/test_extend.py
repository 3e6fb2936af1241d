"""``extend()``: a hold that is not renewed ends later than its lease was to, and never earlier."""

import pytest

from distlock import Lock, LockError, LockLost, LockNotHeld, NotSupported
from tests.contract.actors import PATIENCE
from tests.kinds import ONE_LEASE

#: in seconds
LEASE, LONG = 20, 600
#: which a test does not take
MARGIN = 15


def take(actor, name, **options):
    """Return a lock that is held, and not renewed; the lease is refused where a session holds."""
    return actor.take(name, lease=LEASE, renew=False, **options)


def test_it_lasts_for_as_long_as_was_said(first, third, name):
    held = take(first, name)
    held.do("extend", LONG)
    assert LONG - MARGIN < held.remaining <= LONG
    info = third.lock(name).info()
    assert LONG - MARGIN < info.remaining <= LONG + 1
    assert info.token == held.token


def test_it_never_ends_earlier(first, third, name):
    held = take(first, name)
    held.do("extend", LONG)
    held.do("extend", 1)
    assert held.remaining > LONG - MARGIN
    assert third.lock(name).info().remaining > LONG - MARGIN


def test_it_may_be_extended_again_and_again(first, third, name):
    held = take(first, name)
    for seconds in (LEASE + 5, LONG, 2 * LONG):
        held.do("extend", seconds)
        assert third.lock(name).info().remaining > seconds - MARGIN
    held.verify()
    held.release()
    assert third.lock(name).acquire(timeout=PATIENCE)


def test_what_is_renewed_inside_does_not_end_it_earlier(first, third, name):
    held = take(first, name)
    held.do("extend", LONG)
    inner = first.take(name)
    assert inner.remaining > LONG - MARGIN
    inner.release()
    assert held.remaining > LONG - MARGIN
    assert third.lock(name).info().remaining > LONG - MARGIN


def test_a_broken_one_is_told_as_lost(first, third, name):
    held = take(first, name)
    third.lock(name).force_release(held.token)
    after = third.take(name)
    with pytest.raises(LockLost, match=name):
        held.do("extend", LONG)
    assert not held.held
    assert after.info().remaining < LONG - MARGIN


def test_one_that_was_left_is_not_held(first, name):
    held = take(first, name)
    held.release()
    with pytest.raises(LockNotHeld):
        held.do("extend", LONG)


def test_a_renewed_one_is_refused(kind, first, name):
    lock = first.take(name)
    words = "DISTLOCK" if kind in ONE_LEASE else "is renewed anyway"
    with pytest.raises(LockError, match=words):
        lock.do("extend", LONG)
    lock.verify()


@pytest.mark.parametrize(
    ("seconds", "error"), [(0, ValueError), (-1, ValueError), ("5", TypeError), (None, TypeError)]
)
def test_seconds_have_to_be_some(first, name, seconds, error):
    held = take(first, name)
    with pytest.raises(error, match="seconds must be") as caught:
        held.do("extend", seconds)
    assert repr(seconds) in str(caught.value)


def test_a_hold_of_a_session_is_refused(kind, first, name):
    lock = first.take(name, renew=False)
    if kind in ONE_LEASE:
        with pytest.raises(NotSupported, match=r"extend\(600\): .*DISTLOCK\['default'\]"):
            lock.do("extend", LONG)
    else:
        lock.do("extend", LONG)
    lock.verify()


def test_its_owner_may_have_a_name(using, name, first, third):
    held = take(first, name, owner="order-42")
    held.do("extend", LONG)
    adopted = Lock(name, using=using, lease=LEASE, renew=False, owner="order-42")
    assert adopted.acquire(timeout=PATIENCE)
    assert third.lock(name).info().owner == held.info().owner
    adopted.release()
