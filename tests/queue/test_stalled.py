"""The row decides: whoever has the native lock, a free lock finds its next holder."""

import signal
from types import SimpleNamespace

import pytest

from distlock import Lock, locks
from distlock.backends.database.stall_monitor import StallMonitor
from distlock.backends.database.waiter import HolderEvidence, Waiter
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim, Owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.queue.engine import GRACE, unhurried


def test_a_stranger_has_the_native_lock(engine, using, name):
    stranger = engine.taken_by_hand(locks[using].database, name)
    with stranger, Lock(name, timeout=PATIENCE) as lock:
        lock.verify()
    engine.reaches_line(0)


@pytest.mark.slow
def test_a_stranger_has_it_while_the_lock_changes_hands(actor, engine, using, name):
    held = actor().take(name)
    with engine.taken_by_hand(locks[using].database, name):
        line = [actor().lock(name) for _ in range(2)]
        for number, lock in enumerate(line, 1):
            lock.waiting = lock.start("acquire")
            engine.reaches_waiting(number)
        held.release()
        eventually(lambda: any(lock.waiting.done() for lock in line))
        first = next(lock for lock in line if lock.waiting.done())
        first.release()
        for lock in line:
            assert lock.waiting.result(PATIENCE)
            if lock is not first:
                lock.release()


def test_the_head_of_the_line_is_stopped(actor, engine, name):
    held = actor("thread").take(name)
    head, second = actor(), actor()
    stopped = head.lock(name).start("acquire")
    engine.reaches_line(1)
    waiting = second.lock(name)
    got = waiting.start("acquire")
    engine.reaches_line(2)
    head.child.signal(signal.SIGSTOP)
    held.release()
    assert got.result(PATIENCE)
    assert not stopped.done()
    waiting.release()
    head.child.signal(signal.SIGCONT)
    assert stopped.result(PATIENCE)


@pytest.mark.slow
def test_a_holder_that_had_to_wait_is_stopped(actor, engine, using, name):
    """Its session keeps the native lock; the end of its lease is what counts."""
    first, stopped = actor("thread").take(name), actor()
    lock = stopped.lock(name, lease=4)
    got = lock.start("acquire")
    engine.reaches_line(1)
    first.release()
    assert got.result(PATIENCE)
    assert engine.holding() == 1
    behind = actor("thread").lock(name)
    waiting = behind.start("acquire")
    engine.reaches_waiting(1)
    stopped.child.signal(signal.SIGSTOP)
    assert waiting.result(PATIENCE)
    stopped.child.signal(signal.SIGCONT)
    eventually(lambda: lock.held is False)
    behind.verify()
    behind.release()
    engine.reaches_line(0)


@pytest.mark.slow
def test_a_holder_that_had_to_wait_is_killed(actor, engine, name):
    first, killed = actor("thread").take(name), actor()
    lock = killed.lock(name, lease=4)
    got = lock.start("acquire")
    engine.reaches_line(1)
    first.release()
    assert got.result(PATIENCE)
    waiting = actor("thread").lock(name).start("acquire")
    engine.reaches_line(2)
    killed.end()
    assert waiting.result(PATIENCE)


def test_a_waiter_that_is_killed_just_before_its_turn(actor, engine, name):
    """The server may not have noticed, and call it: the next one does not wait out its lease."""
    first, holder, killed = actor("thread").take(name), actor(), actor()
    lock = holder.lock(name)
    got = lock.start("acquire")
    engine.reaches_line(1)
    first.release()
    assert got.result(PATIENCE)
    killed.lock(name, lease=3600).start("acquire")
    engine.reaches_waiting(1)
    behind = actor("thread").lock(name)
    waiting = behind.start("acquire")
    engine.reaches_waiting(2)
    killed.child.signal(signal.SIGKILL)
    lock.release()
    killed.end()
    assert waiting.result(PATIENCE)
    behind.verify()


def test_a_hold_that_is_broken(actor, engine, using, name):
    """The one who holds the lock was waited for natively, and does not know yet."""
    first, second = actor("thread").take(name), actor().lock(name, lease=60)
    got = second.start("acquire")
    engine.reaches_line(1)
    first.release()
    assert got.result(PATIENCE)
    waiting = actor("thread").lock(name).start("acquire")
    engine.reaches_waiting(1)
    assert Lock(name).force_release(second.token)
    assert waiting.result(PATIENCE)


def had_to_wait(actor, engine, name, **options):
    """Return a lock whose holder, a process, was waited for natively."""
    first, lock = actor("thread").take(name), actor().lock(name, lease=600, renew=False, **options)
    got = lock.start("acquire")
    engine.reaches_line(1)
    first.release()
    assert got.result(PATIENCE)
    return lock


@pytest.mark.every_day_on("postgresql")
def test_a_broken_lock_is_free_to_those_who_wait_for_a_short_time(actor, engine, using, name):
    """Its holder, who does not know, has the native lock, and will have it for long."""
    lock, other = had_to_wait(actor, engine, name), actor("thread").lock(name)
    assert Lock(name).force_release(lock.token)
    for _ in range(2):
        passed(GRACE + 0.1)  # on another clock than the server's
        assert other.acquire(timeout=0.3)
        other.release()


def test_a_lock_that_is_left_elsewhere_is_free_at_once(actor, engine, name):
    """By another process under the owner's name; the one that had waited does not know."""
    had_to_wait(actor, engine, name, owner="order-42")
    actor().take(name, owner="order-42").release()
    engine.reaches_line(0)
    other = actor("thread").lock(name)
    assert other.acquire(timeout=0.3)


def test_a_row_that_is_deleted_by_hand(actor, engine, server, kind, name):
    actor().take(name, lease=60)
    line = [actor().lock(name).start("acquire") for _ in range(2)]
    engine.reaches_line(2)
    server(kind).execute("DELETE FROM database_lock")
    eventually(lambda: any(future.done() for future in line))


@unhurried
def test_a_named_owner_is_let_in_past_the_native_lock(actor, engine, name):
    """Another process that says its name takes the lock over, past the queue."""
    held = actor().take(name)
    others = [actor().lock(name) for _ in range(2)]
    others[0].start("acquire")
    engine.reaches_line(1)
    waiting = actor("thread").lock(name, owner="order-42")
    got = waiting.start("acquire")
    engine.reaches_line(2)
    held.release()
    engine.reaches_waiting(1)
    others[0].release()
    assert got.result(PATIENCE)
    adopted = actor().lock(name, owner="order-42")
    token = waiting.token  # before a renewal can tell of the loss
    assert adopted.acquire(timeout=PATIENCE)
    assert adopted.token > token


@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0])
def test_a_session_of_which_the_server_knows_nothing_is_given_up_after_a_moment(
    using, name, seconds
):
    """What was sent a moment ago may be on its way; and the head of a queue rests now and then."""
    hung_up = []
    sent_at = clock()
    session = SimpleNamespace(
        ident=0,
        waits_since=lambda waiter, moment: sent_at - seconds <= moment,
        hang_up=lambda: hung_up.append(True),
    )
    waits, claim = locks[using].waits, Claim(name, Owner("key", "host", 1, "thread"), 6.0)
    waiter = Waiter(waits, claim, HolderEvidence(waits.rows, claim))
    waiter.session = session
    StallMonitor(waits.rows, lambda: waits.waiters).consider(waiter, None, {}, sent_at)
    assert bool(hung_up) is (seconds > 1)
