"""``reentrant=False``: an owner that is inside does not get the lock again, whoever says so."""

import pytest

from distlock import Lock, LockBusy, LockDeadlock, LockLost
from distlock.activity import activity
from tests.contract.actors import PATIENCE


@pytest.fixture(params=["the first", "the second", "both"])
def two(request, first, name):
    """Return the lock that the first actor holds, and another one of that name."""
    held = first.take(name, reentrant=request.param == "the second")
    return held, first.lock(name, reentrant=request.param == "the first")


def test_who_would_wait_is_told_of_a_deadlock_at_once(two):
    held, other = two
    for timeout in (None, PATIENCE):
        with pytest.raises(LockDeadlock, match="reentrant=False, and this thread or task holds it"):
            other.acquire(timeout=timeout)
    held.verify()


def test_who_tries_once_does_not_get_it(two):
    held, other = two
    assert other.acquire(blocking=False) is False
    assert other.acquire(timeout=0) is False
    held.release()
    assert not other.held


def test_it_is_free_after_one_release(two, second, at_once):
    held, other = two
    assert other.acquire(blocking=False) is False
    held.release()
    assert at_once(lambda: second.tries(held.do("name")))


def test_the_same_object_is_refused_too(first, name):
    lock = first.take(name, reentrant=False)
    with pytest.raises(LockDeadlock, match=repr(name)):
        lock.acquire()
    assert lock.acquire(blocking=False) is False


def test_it_can_be_taken_again_once_it_was_left(first, name):
    lock = first.take(name, reentrant=False)
    lock.release()
    assert lock.acquire(timeout=PATIENCE)


def test_others_wait_for_it_as_ever(first, second, name):
    held = first.take(name, reentrant=False)
    waiting = second.lock(name, reentrant=False).start("acquire", timeout=PATIENCE)
    held.release()
    assert waiting.result(PATIENCE)


def test_a_block_and_a_call_are_refused(using, name):
    @Lock(name, using=using, on_busy="skip", reentrant=False)
    def nested():
        raise AssertionError("it ran")

    with Lock(name, using=using, reentrant=False) as lock:
        with pytest.raises(LockBusy), Lock(name, using=using, on_busy="raise"):
            raise AssertionError("it was entered")
        with pytest.raises(LockDeadlock), Lock(name, using=using):
            raise AssertionError("it was entered")
        with lock.attempt() as acquired:
            assert not acquired
        assert nested() is None
        lock.check()


def test_a_piece_of_work_inside_another_one_is_refused(using, name):
    with Lock(name, using=using, reentrant=False), activity("inner"):
        assert not Lock(name, using=using).acquire(blocking=False)


def test_a_job_that_a_task_awaits_is_refused(actor, using, name):
    import asyncio

    def job():
        with Lock(name, using=using):
            raise AssertionError("it was entered")

    async def work():
        async with Lock(name, using=using, reentrant=False):
            await asyncio.to_thread(job)

    with pytest.raises(LockDeadlock):
        actor("task").call(work).result(PATIENCE)


def test_a_lost_one_is_told_as_lost(first, third, name):
    lock = first.take(name, reentrant=False)
    third.lock(name).force_release(lock.token)
    with pytest.raises(LockLost):
        lock.verify()
    with pytest.raises(LockLost):
        lock.acquire(blocking=False)
