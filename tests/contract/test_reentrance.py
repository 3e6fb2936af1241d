"""The same owner may enter again, by any Lock of the name, and leaves as often as it entered."""

import pytest

from distlock import LockError, LockLost, LockNotHeld
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.conftest import EAGER
from tests.contract.watch import eventually, passed, waits


def test_the_owner_enters_again_without_waiting(first, name):
    lock = first.take(name)
    assert lock.acquire(blocking=False) is True


def test_two_lock_objects_of_one_name_are_one_lock(first, name):
    first.take(name)
    other = first.lock(name)
    assert other.held is True
    assert other.acquire(blocking=False) is True


def test_the_lock_stays_until_it_was_left_as_often_as_entered(first, second, at_once, name):
    lock = first.take(name)
    lock.acquire()
    lock.acquire()
    for _ in range(2):
        lock.release()
        assert lock.held
        assert not second.tries(name)
    lock.release()
    assert not lock.held
    assert at_once(lambda: second.tries(name))


def test_it_does_not_matter_by_which_object_it_is_left(first, second, at_once, name):
    one, two = first.take(name), first.take(name)
    one.release()
    one.release()
    assert not two.held
    assert at_once(lambda: second.tries(name))


def test_leaving_once_more_than_entered_is_an_error(first, name):
    lock = first.take(name)
    lock.acquire()
    lock.release()
    lock.release()
    with pytest.raises(LockNotHeld):
        lock.release()


def test_entering_again_is_the_same_hold(first, name):
    lock = first.take(name)
    token, since = lock.token, lock.info().since
    again = first.take(name)
    assert again.token == lock.token == token
    assert lock.info().since == since


def test_entering_again_does_not_change_the_lease(first, short, name):
    lock = first.take(name, lease=30)
    first.take(name, lease=short(1), renew=False)
    assert lock.remaining > short(1)


def test_entering_again_for_a_longer_lease_is_refused_by_name(first, second, name):
    lock = first.take(name, lease=30)
    with pytest.raises(LockError, match=r"lease=60: .*30 s"):
        first.lock(name, lease=60).acquire()
    lock.release()
    assert second.tries(name)


def test_entering_again_without_renewal_lets_the_lease_run_anew(first, name):
    lock = first.take(name, lease=600, renew=False)
    # Not compared as remaining seconds: on a busy machine the second take lasts for longer than
    # what it gains. The sums err on the side of a late first and an early second look.
    ends, until = clock() + lock.remaining, lock.info().until
    passed(0.05)
    first.take(name, lease=600, renew=False)
    assert lock.remaining + clock() > ends
    assert lock.info().until > until


@pytest.mark.eager
def test_a_hold_is_renewed_while_anyone_is_in_it_who_wants_that(first, name):
    outer = first.take(name, lease=600, renew=False)
    inner = first.take(name)

    def until():
        return outer.info().until

    before = until()
    eventually(lambda: until() > before)
    inner.release()

    def stays():
        last = until()
        passed(3 * EAGER)
        return until() == last

    eventually(stays)
    assert outer.held


def test_a_hold_keeps_the_description_that_it_was_taken_with(first, name):
    lock = first.take(name, description="outer")
    first.take(name, description="inner")
    assert lock.info().description == "outer"


def test_entering_after_leaving_is_a_new_hold(first, name):
    lock = first.take(name)
    token = lock.token
    lock.release()
    lock.acquire()
    assert lock.token > token


def test_the_owner_enters_again_past_those_who_wait(first, second, name):
    lock = first.take(name)
    waiting = second.lock(name).start("acquire")
    assert waits(waiting)
    assert lock.acquire(timeout=PATIENCE) is True
    lock.release()
    assert waits(waiting, 0.05)
    lock.release()
    assert waiting.result(PATIENCE) is True


def test_an_object_shared_by_two_owners_is_held_by_one(using, loop, name):
    """What a Lock says depends on who asks."""
    from distlock import Lock
    from tests.contract.actors import ThreadActor

    shared = Lock(name, using=using)
    other = ThreadActor(using)
    with shared:
        assert other.call(lambda: shared.held).result(PATIENCE) is False
        assert other.call(shared.acquire, blocking=False).result(PATIENCE) is False
        with pytest.raises(LockNotHeld):
            other.call(shared.release).result(PATIENCE)
        assert shared.held
    other.leave()


def test_a_task_does_not_inherit_what_its_parent_holds(using, loop, actor, name):
    import asyncio

    from distlock import Lock

    async def parent():
        async with Lock(name, using=using):
            return await asyncio.create_task(child())

    async def child():
        lock = Lock(name, using=using)
        return lock.held, await lock.aacquire(blocking=False)

    assert actor("task").call(parent).result(PATIENCE) == (False, False)


def test_a_thread_and_the_task_that_it_runs_are_two_owners(using, name):
    import asyncio

    from distlock import Lock

    async def attempt():
        return await Lock(name, using=using).aacquire(blocking=False)

    with Lock(name, using=using):
        assert asyncio.run(attempt()) is False


def test_entering_a_lost_hold_again_raises_lock_lost(first, third, name):
    lock = first.take(name)
    assert third.lock(name).force_release(lock.token)
    with pytest.raises(LockLost):
        lock.verify()
    with pytest.raises(LockLost):
        lock.acquire()


def test_a_lost_lock_can_be_taken_again_once_it_was_left(first, third, name):
    lock = first.take(name)
    token = lock.token
    third.lock(name).force_release(token)
    with pytest.raises(LockLost):
        lock.release()
    assert lock.acquire(timeout=PATIENCE)
    assert lock.token > token
    lock.check()


def test_each_level_of_a_lost_lock_is_told_of_the_loss(first, third, name):
    lock = first.take(name)
    lock.acquire()
    third.lock(name).force_release(lock.token)
    with pytest.raises(LockLost):
        lock.verify()
    for _ in range(2):
        with pytest.raises(LockLost):
            lock.release()
    with pytest.raises(LockNotHeld):
        lock.release()
