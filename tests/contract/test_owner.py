"""A named owner: everyone who says the name is one owner, also in another process."""

import pytest

from distlock import LockLost, LockNotHeld, NotSupported
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, waits

ORDER = "order-42"


@pytest.fixture
def refused(backend, first, name):
    """Whether the backend, having no named owners, refused one with the way out."""
    if backend.capabilities.named_owners:
        return False
    with pytest.raises(NotSupported, match="owner"):
        first.lock(name, owner=ORDER).acquire()
    assert not first.lock(name).locked()
    return True


def test_a_named_owner_takes_a_lock_like_any_other(refused, first, second, name):
    if refused:
        return
    lock = first.take(name, owner=ORDER)
    assert lock.held
    assert not second.tries(name)
    assert not second.tries(name, owner="order-43")
    lock.release()
    assert second.tries(name)


def test_the_same_name_is_the_same_owner_in_another_thread_or_task(refused, actor, third, name):
    if refused:
        return
    one, two = actor("thread"), actor("task")
    hers = one.take(name, owner=ORDER)
    his = two.lock(name, owner=ORDER)
    assert his.held
    assert his.acquire(blocking=False) is True
    assert his.token == hers.token
    his.release()
    assert not third.tries(name)
    hers.release()
    assert third.tries(name)


def test_a_hold_may_be_left_by_another_thread_under_its_name(refused, actor, third, name):
    if refused:
        return
    one, two = actor("thread"), actor("task")
    one.take(name, owner=ORDER)
    two.lock(name, owner=ORDER).release()
    assert third.tries(name)
    with pytest.raises(LockNotHeld):
        one.lock(name, owner=ORDER).release()


def test_an_owner_without_the_name_is_another(refused, first, name):
    if refused:
        return
    first.take(name, owner=ORDER)
    assert first.lock(name).held is False
    assert first.lock(name).acquire(blocking=False) is False


def test_all_who_wait_under_one_name_get_in_together(refused, actor, third, name):
    if refused:
        return
    held = third.take(name)
    locks = [actor(what).lock(name, owner=ORDER) for what in ("thread", "task", "thread")]
    waiting = [lock.start("acquire") for lock in locks]
    assert all(waits(each, 0.02) for each in waiting)
    held.release()
    assert [each.result(PATIENCE) for each in waiting] == [True, True, True]
    for lock in locks:
        assert not third.tries(name)
        lock.release()
    assert third.tries(name)


def test_a_named_owner_is_kept_though_the_thread_that_took_it_ended(refused, actor, third, name):
    """It may be somewhere else by now; with renew=False nothing watches over it."""
    if refused:
        return
    gone = actor("thread")
    token = gone.take(name, owner=ORDER, renew=False).token
    gone.end()
    assert not third.tries(name)
    lock = actor("thread").lock(name, owner=ORDER)
    assert lock.token == token
    lock.release()
    assert third.tries(name)


@pytest.mark.shared
def test_a_named_owner_from_another_process_adopts_the_hold(refused, actor, third, name):
    if refused:
        return
    process, thread = actor("process"), actor("thread")
    taken = thread.take(name, owner=ORDER)
    token = taken.token
    adopted = process.lock(name, owner=ORDER)
    assert adopted.acquire(blocking=False) is True
    assert adopted.token > token
    with pytest.raises(LockLost):
        taken.verify()
    with pytest.raises(LockLost):
        taken.release()
    adopted.verify()
    assert not third.tries(name)
    adopted.release()
    assert third.tries(name)


@pytest.mark.shared
def test_the_earlier_handle_notices_that_it_was_adopted(refused, actor, short, name):
    if refused:
        return
    process, thread = actor("process"), actor("thread")
    taken = thread.take(name, owner=ORDER, lease=short(0.9))
    adopted = process.take(name, owner=ORDER)
    eventually(lambda: not taken.held)
    adopted.verify()


@pytest.mark.shared
def test_a_hold_is_taken_in_one_process_and_left_in_another(refused, actor, third, name):
    """As in a view that starts a task: the task enters under the name, and leaves."""
    if refused:
        return
    view, task = actor("process"), actor("process")
    view.take(name, owner=ORDER, renew=False)
    assert not third.tries(name)
    entered = task.take(name, owner=ORDER)
    view.end()
    entered.verify()
    entered.release()
    assert third.tries(name)
