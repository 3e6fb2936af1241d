"""One owner at a time: threads, tasks and processes exclude one another."""

import pytest

from distlock import Lock
from tests.contract.actors import PATIENCE
from tests.contract.watch import waits
from tests.kinds import ONE_PROCESS


def test_a_free_lock_is_taken(first, name):
    lock = first.lock(name)
    assert lock.acquire() is True
    assert lock.held is True


def test_a_lock_is_free_before_and_after(first, name):
    lock = first.lock(name)
    assert not lock.held
    lock.acquire()
    lock.release()
    assert not lock.held
    assert not lock.locked()


def test_nobody_else_gets_a_held_lock(first, second, name):
    first.take(name)
    assert second.lock(name).acquire(blocking=False) is False


def test_who_did_not_get_it_does_not_hold_it(first, second, name):
    first.take(name)
    lock = second.lock(name)
    lock.acquire(blocking=False)
    assert lock.held is False
    assert lock.locked() is True


def test_the_next_gets_it_once_it_is_free(first, second, at_once, name):
    first.take(name).release()
    lock = second.lock(name)
    assert at_once(lambda: lock.acquire(blocking=False)) is True


def test_a_waiter_gets_it_when_it_is_released(first, second, name):
    held = first.take(name)
    waiting = second.lock(name).start("acquire")
    assert waits(waiting)
    held.release()
    assert waiting.result(PATIENCE) is True


def test_a_released_lock_can_be_taken_back_and_forth(first, second, name):
    hers, his = first.lock(name), second.lock(name)
    for _ in range(5):
        assert hers.acquire(timeout=PATIENCE)
        assert not his.acquire(blocking=False)
        hers.release()
        assert his.acquire(timeout=PATIENCE)
        assert not hers.acquire(blocking=False)
        his.release()


def test_a_failed_try_changes_nothing_for_the_holder(first, second, name):
    held = first.take(name)
    before = held.info()
    second.tries(name)
    held.verify()
    after = held.info()
    assert (after.owner, after.token, after.since) == (before.owner, before.token, before.since)


def test_a_failed_try_leaves_nothing_that_takes_the_lock_later(first, second, third, at_once, name):
    held = first.take(name)
    assert not second.tries(name)
    held.release()
    assert at_once(lambda: not second.lock(name).locked())
    assert third.tries(name)


def test_locks_of_different_names_have_nothing_to_do_with_each_other(first, second, name):
    first.take(name)
    assert second.tries(name + ":other")


def test_one_owner_may_hold_many_locks(first, name):
    held = [first.take(f"{name}:{number}") for number in range(20)]
    assert all(lock.held for lock in held)
    for lock in reversed(held):
        lock.release()


@pytest.fixture
def two_aliases(kind, using, backend_settings, settings, lasting):
    """Two aliases, ``default`` and ``other``, of one place."""
    default = backend_settings(kind, **lasting)
    settings.DISTLOCK = {**default, **backend_settings(kind, alias="other", **lasting)}


def test_two_aliases_of_one_place_are_one_lock(kind, two_aliases, actor, name):
    """The alias is a way to the lock; where it lives decides."""
    actor("thread", "default").take(name)
    assert actor("thread", "other").tries(name) is (kind in ONE_PROCESS)


@pytest.mark.shared
def test_who_holds_a_lock_by_one_alias_cannot_take_it_by_another(two_aliases, actor, name):
    """It would be taken from the first hold, which nobody would tell."""
    first = actor("thread", "default")
    lock = first.take(name)
    assert not first.tries(name, using="other")
    lock.verify()


@pytest.mark.parametrize("other", ["sqlite"])
def test_the_same_name_in_two_places_is_two_locks(
    kind, other, backend_settings, settings, lasting, name
):
    other = "local" if kind == other else other
    first = backend_settings(kind, **lasting)
    settings.DISTLOCK = {**first, **backend_settings(other, alias="other")}
    with Lock(name, using="default") as one, Lock(name, using="other", on_busy="raise") as two:
        assert one.held
        assert two.held
    assert not one.held
    assert not two.held
