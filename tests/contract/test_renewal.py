"""A lease renews itself for as long as its owner lives, and then no longer."""

import threading

import pytest

from distlock.concurrency.clock import clock
from distlock.types.lease import State
from tests.contract.actors import PATIENCE, answered
from tests.contract.conftest import EAGER
from tests.contract.watch import Once, eventually, passed, steadily

LEASE = 0.6  # seconds
#: of leases that are to last, on a machine that is busy, and on one that stands still for a moment
LASTING = 1.5, 6


@pytest.mark.slow
def test_a_short_lease_outlasts_itself_several_times(actor, short, name):
    """As threads' and as tasks' locks, and as a task's whose event loop is busy."""
    second = actor("thread")
    people = {"thread": actor("thread"), "task": actor("task"), "busy": actor("task")}

    def attempt(lease):
        names = {who: f"{name}:{who}:{lease}" for who in people}
        held = [people[who].take(names[who], lease=lease) for who in people]
        end = clock() + 2.2 * lease

        over = threading.Event()

        async def block_the_loop():
            over.wait(PATIENCE)  # not asyncio's: nothing else runs on this loop meanwhile

        blocked = people["busy"].call(block_the_loop)
        try:
            got = False
            while clock() < end and not got:
                got = any(second.tries(each) for each in names.values())
        finally:
            over.set()
        blocked.result(PATIENCE)
        for lock in held:
            lock.check()
        assert not got
        for lock in held:
            lock.verify()
            lock.release()

    steadily(attempt, *short.each(*LASTING))


def test_what_remains_is_at_most_the_lease(first, name):
    lock = first.take(name, lease=20)
    assert 0 < lock.remaining <= 20


def test_without_a_lease_of_its_own_a_lock_has_the_backends(first, backend, name):
    assert 0 < first.take(name).remaining <= backend.settings.lease


def test_renew_false_lets_the_lease_run_out(third, fourth, short, name):
    lock = third.take(name, lease=short(0.4), renew=False)
    eventually(lambda: lock.info().state is not State.HELD)
    assert not lock.held
    eventually(lambda: fourth.tries(name))  # its place in line is given up a moment later


@pytest.mark.slow
@pytest.mark.eager
def test_a_released_lock_is_not_renewed(first, backend, name):
    lock = first.take(name)
    lock.release()
    passed(2 * EAGER)
    assert backend.inspect(name).state is State.FREE


@pytest.mark.slow
def test_a_lock_entered_twice_is_renewed_until_the_last_exit(third, fourth, short, name):
    def attempt(lease):
        lock = third.take(f"{name}:{lease}", lease=lease)
        lock.acquire()
        lock.release()
        passed(1.2 * lease)
        got = fourth.tries(f"{name}:{lease}")
        lock.check()
        assert not got
        lock.verify()

    steadily(attempt, *short.each(*LASTING))


@pytest.mark.every_day_on("local", "postgresql")
def test_a_thread_that_ends_does_not_keep_its_lock_for_ever(actor, using, short, name):
    on_lost = Once()
    gone = actor("thread")
    gone.take(name, lease=short(LEASE), on_lost=on_lost)
    gone.end()
    lock = actor("thread").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    on_lost.wait()


@pytest.mark.every_day_on("local", "postgresql")
def test_a_task_that_finishes_does_not_keep_its_lock_for_ever(actor, using, short, name):
    on_lost = Once()
    gone = actor("task")
    gone.take(name, lease=short(LEASE), on_lost=on_lost)
    gone.end()
    lock = actor("task").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    on_lost.wait()


@pytest.mark.every_day_on("local", "postgresql")
def test_a_loop_that_is_closed_does_not_keep_its_locks_for_ever(actor, using, short, name):
    import asyncio

    from distlock import Lock

    assert answered(lambda: asyncio.run(Lock(name, using=using, lease=short(LEASE)).aacquire()))
    assert actor("thread").lock(name).acquire(timeout=PATIENCE)


@pytest.mark.shared
@pytest.mark.essential
def test_a_process_that_is_killed_does_not_keep_its_lock_for_ever(actor, third, short, name):
    def attempt(lease):
        killed = actor("process")
        token = killed.take(f"{name}:{lease}", lease=lease).token
        killed.end()
        lock = third.lock(f"{name}:{lease}")
        assert lock.acquire(timeout=PATIENCE)
        assert lock.token > token

    steadily(attempt, *short.each(LEASE, 6))


@pytest.mark.slow
def test_leases_of_different_lengths_live_side_by_side(third, short, name):
    def attempt(lease):
        lengths = (20 * lease, lease, 4 * lease)
        held = [third.take(f"{name}:{lease}:{length}", lease=length) for length in lengths]
        passed(1.2 * lease)
        for lock in held:
            lock.verify()
        assert held[1].remaining <= lease
        assert held[0].remaining > 4 * lease

    steadily(attempt, *short.each(*LASTING))


@pytest.mark.eager
def test_a_renewal_moves_the_end_and_not_the_beginning(third, name):
    lock = third.take(name, lease=30)
    first = lock.info()
    later = eventually(lambda: (info := lock.info()).until != first.until and info)
    assert later.until > first.until
    assert later.since == first.since
    assert later.held_for > first.held_for


@pytest.mark.slow
def test_receivers_that_fail_do_not_stop_renewal(third, short, name):
    from distlock.signals import lock_acquired

    def fail(**kwargs):
        raise RuntimeError("a receiver has a bug")

    def attempt(lease):
        lock_acquired.connect(fail)
        try:
            lock = third.take(f"{name}:{lease}", lease=lease)
        finally:
            lock_acquired.disconnect(fail)
        passed(1.2 * lease)
        lock.verify()

    steadily(attempt, *short.each(*LASTING))


@pytest.mark.eager
def test_a_holder_stops_believing_before_two_clocks_may_have_drifted_apart(first, name):
    """Each may run fast or slow by 500 parts in a million, as far as NTP can correct it."""
    long = 10_000_000
    lock = first.take(name, lease=long)

    def difference():
        believed = lock.remaining
        return lock.info().remaining - believed

    before = lock.info().renewed_at
    assert difference() > long * 0.0009
    eventually(lambda: lock.info().renewed_at > before)
    assert difference() > long * 0.0009
