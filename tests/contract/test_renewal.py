"""A lease renews itself for as long as its owner lives, and then no longer."""

import time

import pytest

from distlock.clock import clock
from distlock.lease import State
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed

LEASE = 0.6  # seconds
#: of a lease that is to last; a server that is busy may answer nothing for half a second
LONGER = 1.5


def test_a_short_lease_outlasts_itself_several_times(actor, name):
    """As threads' and as tasks' locks, and as a task's whose event loop is busy."""
    ben = actor("thread")
    held = {}
    for what in ("thread", "task"):
        held[what] = actor(what).take(f"{name}:{what}", lease=LONGER)
    busy_actor = actor("task")
    busy = busy_actor.take(f"{name}:busy", lease=LONGER)
    end = clock() + 2.2 * LONGER

    async def block_the_loop():
        time.sleep(1.2 * LONGER)  # not asyncio's: nothing else runs on this loop meanwhile

    blocked = busy_actor.call(block_the_loop)
    while clock() < end:
        assert not any(ben.tries(f"{name}:{what}") for what in ("thread", "task", "busy"))
    blocked.result(PATIENCE)
    for lock in (*held.values(), busy):
        lock.verify()
        lock.release()


def test_what_remains_is_at_most_the_lease(anna, name):
    lock = anna.take(name, lease=20)
    assert 0 < lock.remaining <= 20


def test_without_a_lease_of_its_own_a_lock_has_the_backends(anna, backend, name):
    assert 0 < anna.take(name).remaining <= backend.settings.lease


def test_renew_false_lets_the_lease_run_out(carl, dora, name):
    lock = carl.take(name, lease=0.4, renew=False)
    eventually(lambda: lock.info().state is State.EXPIRED)
    assert not lock.held
    assert dora.tries(name)


def test_a_released_lock_is_not_renewed(anna, backend, name):
    lock = anna.take(name, lease=LEASE)
    lock.release()
    passed(LEASE / 2)
    assert backend.inspect(name).state is State.FREE


def test_a_lock_entered_twice_is_renewed_until_the_last_exit(carl, dora, name):
    lock = carl.take(name, lease=LONGER)
    lock.acquire()
    lock.release()
    passed(1.2 * LONGER)
    assert not dora.tries(name)
    lock.verify()


def test_a_thread_that_ends_does_not_keep_its_lock_for_ever(actor, using, name):
    on_lost = Once()
    gone = actor("thread")
    gone.take(name, lease=LEASE, on_lost=on_lost)
    gone.end()
    lock = actor("thread").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    on_lost.wait()


def test_a_task_that_finishes_does_not_keep_its_lock_for_ever(actor, using, name):
    on_lost = Once()
    gone = actor("task")
    gone.take(name, lease=LEASE, on_lost=on_lost)
    gone.end()
    lock = actor("task").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    on_lost.wait()


def test_a_loop_that_is_closed_does_not_keep_its_locks_for_ever(actor, using, name):
    import asyncio

    from distlock import Lock

    asyncio.run(Lock(name, using=using, lease=LEASE).aacquire())
    assert actor("thread").lock(name).acquire(timeout=PATIENCE)


@pytest.mark.shared
def test_a_process_that_is_killed_does_not_keep_its_lock_for_ever(actor, name):
    killed = actor("process")
    token = killed.take(name, lease=LEASE).token
    killed.end()
    lock = actor("thread").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    assert lock.token > token


def test_leases_of_different_lengths_live_side_by_side(carl, name):
    held = [carl.take(f"{name}:{lease}", lease=lease) for lease in (30, LONGER, 6)]
    passed(1.2 * LONGER)
    for lock in held:
        lock.verify()
    assert held[1].remaining <= LONGER
    assert held[0].remaining > 6


def test_a_renewal_moves_the_end_and_not_the_beginning(carl, name):
    lock = carl.take(name, lease=LEASE)
    first = lock.info()
    later = eventually(lambda: (info := lock.info()).until != first.until and info)
    assert later.until > first.until
    assert later.since == first.since
    assert later.held_for > first.held_for


def test_receivers_that_fail_do_not_stop_renewal(carl, name):
    from distlock.signals import lock_acquired

    def fail(**kwargs):
        raise RuntimeError("a receiver has a bug")

    lock_acquired.connect(fail)
    try:
        lock = carl.take(name, lease=LONGER)
    finally:
        lock_acquired.disconnect(fail)
    passed(1.2 * LONGER)
    lock.verify()
