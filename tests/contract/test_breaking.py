"""Breaking: exactly the hold that is named by its token, and its holder notices."""

import pytest

from distlock import LockLost
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually


def test_a_broken_lock_is_free_at_once(anna, ben, name):
    held = anna.take(name)
    lock = ben.lock(name)
    assert lock.force_release(held.token) is True
    assert lock.locked() is False
    assert ben.tries(name)


def test_a_waiter_gets_a_broken_lock(anna, ben, carl, name):
    held = anna.take(name)
    waiting = ben.lock(name).start("acquire")
    carl.lock(name).force_release(held.token)
    assert waiting.result(PATIENCE) is True


@pytest.mark.parametrize("off", [-1, 1, 10**6])
def test_another_token_breaks_nothing(anna, ben, name, off):
    held = anna.take(name)
    assert ben.lock(name).force_release(held.token + off) is False
    held.verify()
    assert not ben.tries(name)


def test_the_token_of_an_earlier_hold_breaks_nothing(anna, ben, name):
    earlier = anna.take(name)
    token = earlier.token
    earlier.release()
    held = anna.take(name)
    assert ben.lock(name).force_release(token) is False
    held.verify()


def test_a_free_lock_cannot_be_broken(anna, name):
    lock = anna.take(name)
    token = lock.token
    lock.release()
    assert lock.force_release(token) is False
    assert anna.lock(name + ":never").force_release(1) is False


def test_breaking_twice_breaks_once(anna, ben, name):
    held = anna.take(name)
    token = held.token
    assert ben.lock(name).force_release(token) is True
    assert ben.lock(name).force_release(token) is False


def test_an_ended_lease_can_be_broken_and_then_is_gone(anna, carl, backend, name):
    held = anna.take(name, lease=0.2, renew=False)
    token = held.info().token
    eventually(lambda: not carl.lock(name).locked())
    assert carl.lock(name).force_release(token) is True
    assert list(backend.list(name)) == []


@pytest.mark.parametrize("token", [0, -1, 2**63 - 1, 2**63, 2**70, -(2**63) - 1])
def test_a_token_that_never_was_breaks_nothing(anna, ben, name, token):
    held = anna.take(name)
    assert ben.lock(name).force_release(token) is False
    held.verify()


@pytest.mark.eager
def test_the_holder_notices_by_itself(anna, ben, name):
    on_lost = Once()
    held = anna.take(name, on_lost=on_lost)
    token = held.token
    assert ben.lock(name).force_release(token)
    (lease,) = on_lost.wait()
    assert lease.token == token
    assert not held.held
    with pytest.raises(LockLost):
        held.release()


def test_a_holder_of_the_same_name_elsewhere_notices_nothing(anna, ben, carl, name):
    held = anna.take(name)
    other = ben.take(name + ":other")
    carl.lock(name).force_release(held.token)
    other.verify()


def test_a_signal_tells_who_was_broken(anna, carl, name, told, using, backend):
    held = anna.take(name)
    token = held.token
    carl.lock(name).force_release(token)
    assert told.wait_for("broken", name) == ("broken", name, token, using, type(backend))


def test_no_signal_is_sent_when_nothing_was_broken(anna, carl, name, told):
    held = anna.take(name)
    carl.lock(name).force_release(held.token + 1)
    assert told.words(name) == ["acquired"]


def test_the_holder_may_break_its_own_lock(anna, name):
    lock = anna.take(name)
    assert lock.force_release(lock.token) is True
    with pytest.raises(LockLost):
        lock.release()
