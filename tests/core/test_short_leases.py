"""A lease that is over before its answer comes is refused, and nothing is left of it."""

import pytest

from distlock import Lock, LockLost, LockUnavailable, State
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually, steadily


@pytest.mark.parametrize("options", [{"on_busy": "raise"}, {"timeout": 1}, {}])
def test_a_lease_that_is_always_over_is_refused(options):
    with pytest.raises(LockUnavailable, match="lease of 1e-09 s"):
        Lock("stock", lease=1e-9, **options).acquire()


async def test_a_lease_that_is_always_over_is_refused_to_tasks():
    with pytest.raises(LockUnavailable, match="lease of 1e-09 s"):
        await Lock("stock", lease=1e-9).aacquire()


def test_what_was_granted_is_taken_back_when_its_renewal_could_not_be_sent(backend, monkeypatch):
    take = backend.try_acquire

    def take_slowly(claim, deadline=None):
        lease = take(claim, deadline)
        return lease and lease.until(clock() + lease.duration / 2)

    def refuse(leases, deadline=None):
        error = LockUnavailable("connection refused")
        error.maybe_applied = False
        raise error

    monkeypatch.setattr(backend, "try_acquire", take_slowly)
    monkeypatch.setattr(backend, "renew", refuse)
    with pytest.raises(LockUnavailable, match="refused"):
        Lock("stock").acquire()
    eventually(lambda: Lock("stock").info().state is State.FREE)


def test_what_was_gone_when_it_was_to_be_renewed_is_forgotten_and_asked_for_again(
    backend, monkeypatch
):
    """Or the claim would wait behind what this process keeps of its own first grant."""
    take, told = backend.try_acquire, []

    def take_slowly(claim, deadline=None):
        lease = take(claim, deadline)
        return lease if told else lease.until(clock() + lease.duration / 2)

    def gone(leases, deadline=None):
        for lease in leases:
            backend.release(lease)
        return {lease.nonce: False for lease in leases}

    def forget(lease):
        assert backend.inspect("stock").state is State.FREE
        told.append(lease.token)

    monkeypatch.setattr(backend, "try_acquire", take_slowly)
    monkeypatch.setattr(backend, "renew", gone)
    monkeypatch.setattr(backend, "discard_local", forget)
    with Lock("stock") as lock:
        assert told == [lock.token - 1]


def test_a_lease_that_ends_while_it_is_freed_was_held_to_the_end(backend, monkeypatch):
    free = backend.release

    def free_slowly(lease, deadline=None):
        freed = free(lease)
        eventually(lambda: clock() > lease.deadline)
        return freed

    def attempt(lease):
        with Lock(f"stock:{lease}", lease=lease):
            pass

    monkeypatch.setattr(backend, "release", free_slowly)
    steadily(attempt, 1, 5)


def test_a_lost_hold_stays_lost_when_its_renewal_is_answered_late(backend, monkeypatch):
    renew = backend.renew

    def renew_slowly(leases, deadline=None):
        answer = renew(leases)
        eventually(lambda: clock() > leases[0].deadline)
        return answer

    monkeypatch.setattr(backend, "renew", renew_slowly)
    lock = Lock("stock", lease=0.3)
    lock.acquire()
    eventually(lambda: not lock.held)
    eventually(lambda: Lock("stock").info().state is not State.HELD)
    with pytest.raises(LockLost):
        lock.release()
