"""Breaking: exactly the hold that is named by its token, and its holder notices."""

import pytest

from distlock import LockLost
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually


def test_a_broken_lock_is_free_at_once(first, second, name):
    held = first.take(name)
    lock = second.lock(name)
    assert lock.force_release(held.token) is True
    assert lock.locked() is False
    assert second.tries(name)


def test_a_waiter_gets_a_broken_lock(first, second, third, name):
    held = first.take(name)
    waiting = second.lock(name).start("acquire")
    third.lock(name).force_release(held.token)
    assert waiting.result(PATIENCE) is True


@pytest.mark.parametrize("off", [-1, 1, 10**6])
def test_another_token_breaks_nothing(first, second, name, off):
    held = first.take(name)
    assert second.lock(name).force_release(held.token + off) is False
    held.verify()
    assert not second.tries(name)


def test_the_token_of_an_earlier_hold_breaks_nothing(first, second, name):
    earlier = first.take(name)
    token = earlier.token
    earlier.release()
    held = first.take(name)
    assert second.lock(name).force_release(token) is False
    held.verify()


def test_a_free_lock_cannot_be_broken(first, name):
    lock = first.take(name)
    token = lock.token
    lock.release()
    assert lock.force_release(token) is False
    assert first.lock(name + ":never").force_release(1) is False


def test_breaking_twice_breaks_once(first, second, name):
    held = first.take(name)
    token = held.token
    assert second.lock(name).force_release(token) is True
    assert second.lock(name).force_release(token) is False


def test_an_ended_lease_can_be_broken_and_then_is_gone(
    first, third, backend, short, name, sent_events
):
    first.take(name, lease=short(0.2), renew=False)
    token = sent_events.wait_for("acquired", name)[2]
    eventually(lambda: not third.lock(name).locked())
    assert third.lock(name).force_release(token) is backend.capabilities.shows_expired
    assert list(backend.list(name)) == []


@pytest.mark.parametrize("token", [0, -1, 2**63 - 1, 2**63, 2**70, -(2**63) - 1])
def test_a_token_that_never_was_breaks_nothing(first, second, name, token):
    held = first.take(name)
    assert second.lock(name).force_release(token) is False
    held.verify()


@pytest.mark.eager
def test_the_holder_notices_by_itself(first, second, name):
    on_lost = Once()
    held = first.take(name, on_lost=on_lost)
    token = held.token
    assert second.lock(name).force_release(token)
    (lease,) = on_lost.wait()
    assert lease.token == token
    assert not held.held
    with pytest.raises(LockLost):
        held.release()


def test_a_holder_of_the_same_name_elsewhere_notices_nothing(first, second, third, name):
    held = first.take(name)
    other = second.take(name + ":other")
    third.lock(name).force_release(held.token)
    other.verify()


def test_a_signal_tells_who_was_broken(first, third, name, sent_events, using, backend):
    held = first.take(name)
    token = held.token
    third.lock(name).force_release(token)
    assert sent_events.wait_for("broken", name) == ("broken", name, token, using, type(backend))


def test_no_signal_is_sent_when_nothing_was_broken(first, third, name, sent_events):
    held = first.take(name)
    third.lock(name).force_release(held.token + 1)
    assert sent_events.words(name) == ["acquired"]


def test_the_holder_may_break_its_own_lock(first, name):
    lock = first.take(name)
    assert lock.force_release(lock.token) is True
    with pytest.raises(LockLost):
        lock.release()
