"""Fencing tokens: whole numbers that only grow, for each lock, whatever happens in between."""

import pytest

from distlock import LockLost
from distlock.types.lease import State
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed


def test_a_token_is_a_positive_whole_number_that_a_bigint_column_can_hold(first, name):
    token = first.take(name).token
    assert type(token) is int
    assert 0 < token < 2**63


@pytest.mark.eager
def test_a_token_stays_the_same_for_as_long_as_the_lock_is_held(first, backend, name):
    lock = first.take(name, lease=30)
    token = lock.token
    since = lock.info()
    eventually(lambda: lock.info().remaining != since.remaining)
    eventually(lambda: lock.info().until != since.until)  # it has been renewed
    assert lock.token == lock.info().token == token


def test_every_owner_gets_a_greater_token(first, second, name):
    hers, his = first.lock(name), second.lock(name)
    tokens = []
    for _ in range(4):
        for lock in (hers, his):
            assert lock.acquire(timeout=PATIENCE)
            tokens.append(lock.token)
            lock.release()
    assert tokens == sorted(set(tokens))


def test_a_waiter_gets_a_greater_token_than_the_holder_before_it(first, second, name):
    held = first.take(name)
    token = held.token
    lock = second.lock(name)
    waiting = lock.start("acquire")
    held.release()
    waiting.result(PATIENCE)
    assert lock.token > token


def test_a_failed_try_uses_no_token_of_the_holder(first, second, name):
    held = first.take(name)
    second.tries(name)
    assert held.info().token == held.token


def test_a_successor_after_the_lease_ended_has_a_greater_token(
    first, third, short, name, sent_events
):
    first.take(name, lease=short(0.3), renew=False)
    token = sent_events.wait_for("acquired", name)[2]
    assert third.take(name).token > token


def test_a_successor_after_a_break_has_a_greater_token(first, second, name):
    old = first.take(name)
    token = old.token
    second.lock(name).force_release(token)
    assert second.take(name).token > token
    with pytest.raises(LockLost):
        old.release()


def test_tokens_grow_over_a_sweep_of_ended_leases(first, third, backend, short, name, sent_events):
    old = first.take(name, lease=short(0.2), renew=False)
    token = sent_events.wait_for("acquired", name)[2]
    eventually(lambda: old.info().state is not State.HELD)
    backend.sweep()
    assert third.take(name).token > token


def test_tokens_grow_over_a_sweep_that_removes_every_trace(
    kind, backend_settings, lasting, settings, actor, name
):
    from distlock import locks

    settings.DISTLOCK = backend_settings(kind, **lasting)
    if "keep" in type(locks["default"]).default_options:
        settings.DISTLOCK = backend_settings(kind, OPTIONS={"keep": 0.001})
    person = actor("thread")
    tokens = []
    for _ in range(3):
        lock = person.take(name)
        tokens.append(lock.token)
        lock.release()
        passed(0.01)
        locks["default"].sweep()
    assert tokens == sorted(set(tokens))


def test_tokens_grow_over_a_restart_of_the_backend(first, backend, name):
    lock = first.lock(name)
    tokens = []
    for _ in range(3):
        lock.acquire()
        tokens.append(lock.token)
        lock.release()
        backend.close()
    assert tokens == sorted(set(tokens))


@pytest.mark.shared
def test_tokens_grow_from_process_to_process(actor, name):
    people = [actor("process"), actor("thread"), actor("process"), actor("task")]
    tokens = []
    for person in people * 2:
        lock = person.take(name)
        tokens.append(lock.token)
        lock.release()
    assert tokens == sorted(set(tokens))
