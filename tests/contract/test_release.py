"""Freeing touches only one's own: a stale handle never reaches the successor's lock."""

import pytest

from distlock import LockLost, LockNotHeld
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually


def lapse(lock):
    """Wait until the local deadline of a lease that nobody renews has passed."""
    eventually(lambda: not lock.held)


def test_a_lock_never_taken_cannot_be_released(first, name):
    with pytest.raises(LockNotHeld) as caught:
        first.lock(name).release()
    assert isinstance(caught.value, RuntimeError)
    assert repr(name) in str(caught.value)


def test_someone_elses_lock_cannot_be_released(first, second, name):
    held = first.take(name)
    with pytest.raises(LockNotHeld):
        second.lock(name).release()
    held.verify()


@pytest.mark.parametrize("member", ["token", "remaining", "check", "verify"])
def test_a_lock_that_is_not_held_answers_nothing_about_a_hold(first, name, member):
    with pytest.raises(LockNotHeld):
        first.lock(name).start(member).result(PATIENCE)


@pytest.mark.parametrize("member", ["token", "remaining", "check", "verify"])
def test_someone_elses_lock_answers_nothing_about_ones_own_hold(first, second, name, member):
    first.take(name)
    with pytest.raises(LockNotHeld):
        second.lock(name).start(member).result(PATIENCE)


def test_leaving_after_the_lease_ended_does_not_touch_the_successor(first, third, short, name):
    stale = first.take(name, lease=short(0.3), renew=False)
    successor = third.take(name)
    with pytest.raises(LockLost):
        stale.release()
    successor.verify()
    assert not first.tries(name)


def test_leaving_after_a_break_does_not_touch_the_successor(first, second, name):
    stale = first.take(name)
    assert second.lock(name).force_release(stale.token)
    successor = second.take(name)
    with pytest.raises(LockLost):
        stale.release()
    successor.verify()
    assert not first.tries(name)


def test_verifying_after_the_lease_ended_finds_the_successor_out(first, third, short, name):
    stale = first.take(name, lease=short(0.3), renew=False)
    third.take(name)
    with pytest.raises(LockLost):
        stale.verify()


def test_a_lease_that_ended_is_lost_even_if_nobody_took_it(first, short, name):
    stale = first.take(name, lease=short(0.3), renew=False)
    lapse(stale)
    with pytest.raises(LockLost):
        stale.check()
    with pytest.raises(LockLost):
        stale.release()


def test_who_lost_the_lock_and_takes_it_again_holds_the_new_one(first, short, name, sent_events):
    """Nobody was to renew the before hold, so nobody need have left it."""
    lock = first.take(name, lease=short(0.3), renew=False)
    before = sent_events.wait_for("acquired", name)[2]
    lapse(lock)
    again = first.take(name)
    assert again.token > before
    again.verify()
    again.release()
    with pytest.raises(LockNotHeld):
        again.release()


def test_a_released_lock_is_free_for_everyone_at_once(first, second, third, at_once, name):
    first.take(name).release()
    assert at_once(lambda: second.tries(name))
    assert at_once(lambda: third.tries(name))


def test_a_lock_can_be_taken_and_released_many_times(first, name):
    lock = first.lock(name)
    tokens = []
    for _ in range(30):
        assert lock.acquire(timeout=PATIENCE)
        tokens.append(lock.token)
        lock.release()
    assert tokens == sorted(set(tokens))
