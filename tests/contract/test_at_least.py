"""A lock that is left before its time stays taken for the rest, by nobody who could enter again."""

import pytest

from distlock import Lock, LockLost, LockNotHeld
from distlock.concurrency.clock import clock
from distlock.types.lease import State
from distlock.types.owners import is_reserved
from distlock.types.query import LockQuery
from tests.contract.actors import PATIENCE
from tests.contract.conftest import BRISK
from tests.contract.watch import eventually, passed, steadily, waits

LONG = 600
REST = 0.3
LEASE = 0.5


def test_leaving_early_frees_the_lock_for_nobody(first, second, third, name):
    lock = first.take(name, at_least=LONG)
    lock.release()
    assert not lock.held
    assert lock.locked()
    assert not first.tries(name)
    assert not second.tries(name)
    assert not third.tries(name)


def test_who_left_early_no_longer_holds_the_lock(fourth, name):
    lock = fourth.take(name, at_least=LONG)
    lock.release()
    with pytest.raises(LockNotHeld):
        lock.release()
    with pytest.raises(LockNotHeld):
        lock.start("token").result(PATIENCE)


@pytest.mark.every_day_on(*BRISK)
def test_it_is_free_when_the_time_since_it_was_granted_is_over(first, third, name):
    before = clock()
    lock = first.take(name, at_least=REST)
    lock.release()
    again = third.take(name)
    assert clock() >= before + REST
    again.verify()


@pytest.mark.every_day_on(*BRISK)
def test_who_waits_meanwhile_gets_it_then(first, third, name):
    before = clock()
    lock = first.take(name, at_least=REST)
    wait = third.lock(name).start("acquire", timeout=PATIENCE)
    waits(wait)
    lock.release()
    assert wait.result(PATIENCE)
    assert clock() >= before + REST


def test_leaving_after_that_time_frees_it_at_once(fourth, third, name):
    lock = fourth.take(name, at_least=0.05)
    passed(0.06)
    lock.release()
    assert third.tries(name)


def test_people_still_see_who_it_was(fourth, third, name):
    lock = fourth.take(name, at_least=LONG, description="the nightly report")
    before = lock.info()
    lock.release()
    after = third.lock(name).info()
    assert after.state is State.HELD
    assert str(after.owner) == str(before.owner)
    assert (after.token, after.since, after.description) == (
        before.token,
        before.since,
        "the nightly report",
    )


def test_people_see_that_nobody_holds_it(fourth, backend, name):
    if not backend.capabilities.outlives_process:
        return
    lock = fourth.take(name, at_least=LONG)
    assert not is_reserved(lock.info().owner)
    lock.release()
    assert is_reserved(lock.info().owner)


@pytest.mark.every_day_on(*BRISK)
def test_when_its_time_is_over_it_is_plainly_free(fourth, backend, name):
    fourth.take(name, at_least=0.1).release()
    eventually(lambda: backend.inspect(name).state is State.FREE)
    assert name not in [info.name for info in backend.list()]
    assert name not in [info.name for info in backend.page(LockQuery(search=name)).locks]


@pytest.mark.every_day_on(*BRISK)
def test_the_next_hold_has_a_greater_token(fourth, third, name):
    lock = fourth.take(name, at_least=0.1)
    first = lock.token
    lock.release()
    assert third.take(name).token > first


def test_only_the_last_level_counts(fourth, name):
    outer = fourth.take(name, at_least=LONG)
    inner = fourth.take(name)
    inner.release()
    outer.verify()
    outer.release()
    assert outer.locked()


def test_the_longest_time_that_anyone_entered_with_holds(fourth, third, name):
    outer = fourth.take(name)
    inner = fourth.take(name, at_least=LONG)
    inner.release()
    outer.release()
    assert not third.tries(name)


def test_a_lost_hold_is_not_kept(fourth, third, name):
    lock = fourth.take(name, at_least=LONG)
    assert third.lock(name).force_release(lock.token)
    with pytest.raises(LockLost):
        lock.release()
    assert third.tries(name)


def test_a_lock_that_was_left_early_can_be_broken(fourth, third, name):
    lock = fourth.take(name, at_least=LONG)
    token = lock.token
    lock.release()
    assert third.lock(name).force_release(token)
    assert third.tries(name)


def test_the_signal_tells_that_it_was_left(fourth, sent_events, name):
    fourth.take(name, at_least=LONG).release()
    assert sent_events.words(name) == ["acquired", "released"]


def test_a_named_owner_cannot_enter_again_either(fourth, backend, name):
    if not backend.capabilities.named_owners:
        return
    fourth.take(name, at_least=LONG, owner="me").release()
    assert not fourth.tries(name, owner="me")


@pytest.mark.slow
@pytest.mark.shared
def test_it_outlives_its_process_where_the_backend_says_so(
    kind, backend_settings, settings, actor, backend, third, name
):
    settings.DISTLOCK = backend_settings(kind)  # with sessions that end sooner
    process = actor("new process")
    process.take(name, at_least=LONG).release()
    process.end()
    if backend.capabilities.outlives_process:
        assert not third.tries(name)
    else:
        eventually(lambda: third.tries(name))


def kill_when_renewed(process, held, lease):
    """Kill the holder, and let its lease be over."""
    before = held.info().renewed_at

    def renewed():
        held.check()
        return held.info().renewed_at > before

    eventually(renewed)
    process.end()
    passed(2 * lease)


@pytest.mark.shared
@pytest.mark.essential
def test_it_stays_taken_though_its_process_was_killed(actor, third, short, name):
    process = actor("new process")
    process.take(name, lease=short(LEASE), at_least=LONG)
    process.end()
    passed(2 * short(LEASE))
    assert not third.tries(name)


@pytest.mark.shared
@pytest.mark.every_day_on("postgresql")
def test_it_stays_taken_though_its_process_was_killed_after_a_renewal(actor, third, short, name):
    def attempt(lease):
        process = actor("new process")
        held = process.take(f"{name}:{lease}", lease=lease, at_least=LONG)
        kill_when_renewed(process, held, lease)
        assert not third.tries(f"{name}:{lease}")

    steadily(attempt, *short.each(LEASE, 6))


@pytest.mark.shared
@pytest.mark.every_day_on("postgresql")
def test_so_it_does_if_it_was_entered_again_for_that_time(actor, third, short, name):
    def attempt(lease):
        process = actor("new process")
        held = process.take(f"{name}:{lease}", lease=lease)
        process.take(f"{name}:{lease}", at_least=LONG)
        kill_when_renewed(process, held, lease)
        assert not third.tries(f"{name}:{lease}")

    steadily(attempt, *short.each(LEASE, 6))


@pytest.mark.shared
def test_it_is_free_when_that_time_is_over_though_its_process_was_killed(actor, third, short, name):
    process = actor("new process")
    process.take(f"{name}:started")
    before = clock()
    process.take(name, lease=short(LEASE), at_least=2 * short(LEASE))
    process.end()
    third.take(name)
    assert clock() >= before + 2 * short(LEASE)


def test_a_lease_that_ends_does_not_end_it(fourth, third, short, name):
    lock = fourth.take(name, lease=short(0.2), renew=False, at_least=LONG)
    eventually(lambda: not lock.held)
    passed(short(0.2))
    assert not third.tries(name)


def test_an_error_of_the_body_does_not_free_it_earlier(using, third, name):
    @Lock(name, using=using, at_least=LONG)
    def work():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not third.tries(name)
