"""A lock that is gone is seen to be gone: while the work goes on, and before anyone else has it."""

import pytest

from distlock import Lock, LockLost
from distlock.concurrency.clock import clock
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed, steadily


def expire(lock, other, name):
    """Let the lease run out (it is taken with ``renew=False``)."""
    eventually(lambda: not lock.held)


def break_(lock, other, name):
    """Break the lock, and wait until its holder has noticed by itself, by its next renewal."""
    assert other.lock(name).force_release(lock.token)
    eventually(lambda: not lock.held)


WAYS = [
    pytest.param(False, expire, id="expired"),
    pytest.param(True, break_, id="broken"),
]


@pytest.fixture
def take(first, short, name):
    """``take(renew)``: take the lock; for a short time, where it is not to be renewed."""
    return lambda renew, **options: first.take(
        name, lease=None if renew else short(0.3), renew=renew, **options
    )


@pytest.mark.eager
@pytest.mark.parametrize(("renew", "lose"), WAYS)
def test_a_lost_lock_says_so_everywhere(take, third, name, renew, lose):
    lock = take(renew)
    lose(lock, third, name)
    assert lock.held is False
    for member in ("check", "verify", "token", "remaining", "acquire"):
        if member == "acquire" and not renew:
            continue  # nobody was to renew it, so it may simply be taken again
        with pytest.raises(LockLost) as caught:
            lock.start(member).result(PATIENCE)
        assert repr(name) in str(caught.value)
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.eager
@pytest.mark.parametrize(("renew", "lose"), WAYS)
def test_on_lost_and_the_signal_tell_of_the_loss_once(
    take, third, name, sent_events, using, backend, renew, lose
):
    on_lost = Once()
    lock = take(renew, on_lost=on_lost)
    token = sent_events.wait_for("acquired", name)[2]
    lose(lock, third, name)
    (lease,) = on_lost.wait()
    assert (lease.name, lease.token) == (name, token)
    assert sent_events.wait_for("lost", name) == ("lost", name, token, using, type(backend))
    with pytest.raises(LockLost):
        lock.release()
    assert len(on_lost.calls) == 1
    assert sent_events.words(name).count("lost") == 1
    assert "released" not in sent_events.words(name)


def test_a_loss_is_known_before_anyone_else_can_have_the_lock(first, second, short, name):
    before, lease = clock(), short(0.4)
    lock = first.take(name, lease=lease, renew=False)
    other = second.lock(name)
    assert other.acquire(timeout=PATIENCE)
    assert clock() >= before + lease
    assert lock.held is False
    with pytest.raises(LockLost):
        lock.check()


def test_a_loss_is_found_by_verify_before_the_next_renewal(first, third, name):
    on_lost = Once()
    lock = first.take(name, lease=60, on_lost=on_lost)
    third.lock(name).force_release(lock.token)
    with pytest.raises(LockLost):
        lock.verify()
    assert not lock.held
    on_lost.wait()


def test_a_lock_that_was_released_in_time_is_not_lost(first, short, name, sent_events):
    def attempt(lease):
        on_lost = Once()
        lock = first.take(f"{name}:{lease}", lease=lease, renew=False, on_lost=on_lost)
        lock.release()
        passed(lease + 0.1)
        assert not on_lost.calls
        assert sent_events.words(f"{name}:{lease}") == ["acquired", "released"]

    steadily(attempt, *short.each(0.3, 3, 10))


def test_an_error_in_on_lost_keeps_nobody_from_being_told(first, short, name, sent_events, caplog):
    def complain(lease):
        raise RuntimeError("the callback has a bug")

    first.take(name, lease=short(0.2), renew=False, on_lost=complain)
    sent_events.wait_for("lost", name)
    eventually(lambda: "the callback has a bug" in caplog.text)


def test_a_log_that_fails_keeps_nobody_from_being_told(
    first, short, name, sent_events, failing_log
):
    on_lost = Once()
    first.take(name, lease=short(0.2), renew=False, on_lost=on_lost)
    on_lost.wait()
    sent_events.wait_for("lost", name)


def test_on_lost_that_takes_its_time_delays_no_other_loss(first, short, name):
    import threading

    blocked = threading.Event()
    on_lost = Once()
    try:
        first.take(
            f"{name}:1", lease=short(0.2), renew=False, on_lost=lambda lease: blocked.wait(PATIENCE)
        )
        first.take(f"{name}:2", lease=short(0.3), renew=False, on_lost=on_lost)
        on_lost.wait()
    finally:
        blocked.set()


def test_on_lost_may_use_locks(using, first, short, name):
    seen = Once()

    def cope(lease):
        with Lock(f"{name}:repair", using=using, timeout=PATIENCE) as repair:
            seen(repair.token)

    first.take(name, lease=short(0.2), renew=False, on_lost=cope)
    seen.wait()


def test_every_level_has_a_callback_of_its_own(first, third, name):
    before, second, left = Once(), Once(), Once()
    lock = first.take(name, on_lost=before)
    first.take(name, on_lost=left).release()
    first.take(name, on_lost=second)
    first.take(name, on_lost=second)
    third.lock(name).force_release(lock.token)
    with pytest.raises(LockLost):
        lock.verify()
    assert before.wait() == second.wait()
    assert len(before.calls) == len(second.calls) == 1
    assert not left.calls
