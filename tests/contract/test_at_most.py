"""``at_most``: this process gives a renewed hold up in time, whatever its thread does."""

import threading

import pytest

from distlock import Lock, LockError, LockLost
from distlock.concurrency.clock import clock
from distlock.signals import lock_lost
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually

#: seconds; far less than a lease
BRIEF = 0.4


def test_it_is_given_up_while_its_thread_hangs(first, second, name):
    """The next one waits for it, and gets it long before the lease would have ended."""
    held = first.take(name, at_most=BRIEF)
    waiting = second.lock(name).start("acquire", timeout=PATIENCE)
    assert waiting.result(PATIENCE) is True
    assert not held.held
    with pytest.raises(LockLost, match="at_most"):
        held.check()
    with pytest.raises(LockLost, match="at_most"):
        held.release()


def test_its_loss_is_told(actor, using, third, name):
    told, seen = Once(), []
    lock = Lock(name, using=using, at_most=BRIEF, on_lost=told)

    def note(sender, **said):
        if said["lease"].name == name:  # an earlier test's may be lost just now
            seen.append(said)

    lock_lost.connect(note)
    try:
        holder = actor("thread")
        assert holder.call(lock.acquire, timeout=PATIENCE).result(PATIENCE)
        told.wait()
        eventually(lambda: seen)
    finally:
        lock_lost.disconnect(note)
    assert third.lock(name).acquire(timeout=PATIENCE)
    with pytest.raises(LockLost):
        holder.call(lock.release).result(PATIENCE)


def test_the_process_knows_before_the_backend_frees_it(actor, using, name):
    """The next one never holds it while the first one still believes that it does."""
    first, holds = actor("thread"), []
    lock = Lock(name, using=using, at_most=BRIEF)
    assert first.call(lock.acquire, timeout=PATIENCE).result(PATIENCE)

    def next_one():
        with Lock(name, using=using, timeout=PATIENCE):
            holds.append(first.call(lambda: lock.held).result(PATIENCE))

    thread = threading.Thread(target=next_one)
    thread.start()
    thread.join(PATIENCE)
    assert holds == [False]


def test_a_block_ends_with_the_loss(first, third, name, using):
    def body(lock):
        eventually(lambda: not lock.held)

    def block():
        with Lock(name, using=using, at_most=BRIEF) as lock:
            body(lock)

    async def ablock():
        async with Lock(name, using=using, at_most=BRIEF) as lock:
            body(lock)

    with pytest.raises(LockLost, match="at_most"):
        first.call(ablock if hasattr(first, "task") else block).result(PATIENCE)
    assert third.lock(name).acquire(timeout=PATIENCE)


def test_who_leaves_in_time_loses_nothing(first, name):
    began, at_most = clock(), 60
    lock = first.take(name, at_most=at_most)
    assert lock.remaining <= at_most
    lock.release()
    assert clock() - began < at_most
    assert first.take(name, at_most=at_most).held


def test_it_is_renewed_until_then(first, third, name):
    lock = first.take(name, at_most=600)
    lock.verify()
    assert third.lock(name).info().renews is not False


def test_entering_again_does_not_end_it_earlier_or_later(first, name):
    lock = first.take(name, at_most=60)
    assert lock.acquire()
    with pytest.raises(LockError, match="at_most=5: .*is held already"):
        first.lock(name, at_most=5).acquire()
    assert first.lock(name, at_most=600).acquire()
    assert first.lock(name).acquire()
    lock.verify()


def test_a_hold_without_a_limit_gets_none_by_entering_again(first, name):
    lock = first.take(name)
    with pytest.raises(LockError, match="at_most=5: .*cannot change"):
        first.lock(name, at_most=5).acquire(blocking=False)
    lock.verify()


@pytest.mark.parametrize("make", ["semaphore", "reader", "writer"])
def test_a_seat_is_given_up_too(first, third, name, make):
    options = {"make": make} | ({"value": 1} if make == "semaphore" else {})
    held = first.take(name, at_most=BRIEF, **options)
    other = options if make == "semaphore" else {"make": "writer"}
    assert third.lock(name, **other).acquire(timeout=PATIENCE)
    with pytest.raises(LockLost, match="at_most"):
        held.release()
