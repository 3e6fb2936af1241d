"""Who holds a lock, since when, until when, and who waits: as anyone may ask the backend."""

import os
import socket
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from distlock.types.lease import State
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, steadily


def test_a_lock_never_taken_is_free(first, using, name):
    info = first.lock(name).info()
    assert (info.name, info.using, info.state) == (name, using, State.FREE)
    assert (info.owner, info.token, info.since, info.until) == (None, None, None, None)
    assert (info.held_for, info.remaining) == (None, None)


def test_a_held_lock_names_its_holder(first, name):
    lock = first.take(name, description="nightly run")
    info = lock.info()
    assert info.state is State.HELD
    assert (info.owner.host, info.owner.pid) == (socket.gethostname(), os.getpid())
    assert info.owner.thread
    assert info.token == lock.token
    assert info.description == "nightly run"


def test_the_holder_is_named_by_its_thread_or_task(actor, name):
    thread, task = actor("thread"), actor("task")
    thread.take(f"{name}:thread")
    task.take(f"{name}:task")
    assert thread.lock(f"{name}:thread").info().owner.thread == thread.thread.name
    assert task.lock(f"{name}:task").info().owner.thread == task.task.get_name()


def test_anyone_may_ask(first, second, name):
    held = first.take(name)
    info = second.lock(name).info()
    assert (info.state, info.token) == (State.HELD, held.token)


def test_since_and_until_are_aware_and_enclose_now_by_the_backends_clock(first, backend, name):
    infos = [first.take(f"{name}:{number}", lease=20).info() for number in range(3)]
    for info in infos:
        assert info.since.tzinfo is not None
        assert info.since + timedelta(seconds=info.held_for) <= info.until
        assert info.held_for >= 0
    # A server may stand still between two looks at its clock, but not each time.
    near = partial(pytest.approx, abs=0.01)
    assert any((info.until - info.since).total_seconds() == near(20) for info in infos)
    assert any(info.held_for + info.remaining == near(20) for info in infos)


def test_the_backends_clock_is_about_right_here(first, name):
    """All servers of the tests run on this machine."""
    since = first.take(name).info().since
    assert abs(datetime.now(UTC) - since) < timedelta(seconds=PATIENCE)


def test_what_remains_grows_less(first, backend, name):
    lock = first.take(name, renew=False)
    before = lock.info()
    if (
        not backend.capabilities.lease_lengths
    ):  # it ends with a session, whose end nobody knows in advance
        assert (before.remaining, before.until) == (None, None)
        return
    later = eventually(lambda: (info := lock.info()).remaining < before.remaining and info)
    assert later.held_for > before.held_for
    assert later.until == before.until


def test_a_released_lock_is_free_and_may_remember_its_last_token(first, name):
    lock = first.take(name)
    token = lock.token
    lock.release()
    info = lock.info()
    assert info.state is State.FREE
    assert (info.owner, info.since, info.until) == (None, None, None)
    assert (info.held_for, info.remaining) == (None, None)
    assert info.token in (None, token)


def test_an_ended_lease_is_seen_as_expired_and_not_as_locked(first, backend, short, name):
    lock = first.take(name, lease=short(0.2), renew=False)
    info = eventually(lambda: (info := lock.info()).state is not State.HELD and info)
    assert lock.locked() is False
    if backend.capabilities.shows_expired:
        assert info.state is State.EXPIRED
        assert info.owner.pid == os.getpid()
        assert info.remaining <= 0
    else:
        assert info.state is State.FREE


def test_locked_tells_whether_anyone_holds_it(first, second, at_once, name):
    lock = second.lock(name)
    assert lock.locked() is False
    held = first.take(name)
    assert lock.locked() is True
    held.release()
    assert at_once(lambda: not lock.locked())


@pytest.mark.shared
def test_who_waits_is_known_in_order_or_not_claimed_to_be_known(actor, backend, name):
    """Of a process the backend knows the one that contends for all its threads and tasks."""
    held = actor("thread").take(name)
    assert held.info().waiters == (() if backend.capabilities.waiters else None)
    waiting = actor("process").lock(name).start("acquire")
    if backend.capabilities.waiters:
        waiters = eventually(lambda: held.info().waiters)
        assert len(waiters) == 1
    else:
        assert held.info().waiters is None
    held.release()
    assert waiting.result(PATIENCE)


def test_who_waits_in_the_holders_own_process_is_known_there(actor, backend, name):
    holder, first, second = actor("thread"), actor("task"), actor("thread")
    held = holder.take(name)
    if not backend.capabilities.waiters:
        assert held.info().waiters is None
        return
    waiting = []
    for number, person in enumerate((first, second), 1):
        waiting.append(person.lock(name).start("acquire"))
        waiters = eventually(lambda n=number: (w := held.info().waiters) and len(w) == n and w)
    assert [waiter.thread for waiter in waiters] == [first.task.get_name(), second.thread.name]
    assert {waiter.pid for waiter in waiters} == {os.getpid()}
    assert waiters[0].waited >= waiters[1].waited >= 0
    held.release()
    assert waiting[0].result(PATIENCE)
    assert [waiter.thread for waiter in holder.lock(name).info().waiters] == [second.thread.name]
    first.leave().result(PATIENCE)
    assert waiting[1].result(PATIENCE)
    assert holder.lock(name).info().waiters == ()


@pytest.mark.shared
def test_they_come_after_those_who_wait_in_other_processes(actor, backend, name):
    held = actor("thread").take(name)
    if not backend.capabilities.waiters:
        return
    process, here = actor("process"), actor("thread")
    waiting = [process.lock(name).start("acquire")]
    eventually(lambda: held.info().waiters)
    waiting.append(here.lock(name).start("acquire"))
    pids = eventually(
        lambda: len(pids := [waiter.pid for waiter in held.info().waiters]) == 2 and pids
    )
    assert pids == [process.pid, os.getpid()]
    held.release()
    assert waiting[0].result(PATIENCE)
    process.leave().result(PATIENCE)
    assert waiting[1].result(PATIENCE)


# Lists


def test_the_list_has_what_is_held_by_name(first, backend, name):
    for number in (2, 1, 3):
        first.take(f"{name}:{number}")
    listed = list(backend.list(name))
    assert [info.name for info in listed] == [f"{name}:{number}" for number in (1, 2, 3)]
    assert {info.state for info in listed} == {State.HELD}
    assert {info.using for info in listed} == {"default"}


def test_the_list_says_of_each_lock_what_info_says(first, backend, name):
    lock = first.take(name, description="why")
    (listed,) = backend.list(name)
    asked = lock.info()
    assert (listed.owner, listed.token, listed.since, listed.until, listed.description) == (
        asked.owner,
        asked.token,
        asked.since,
        asked.until,
        asked.description,
    )
    assert (listed.owner.host, listed.owner.pid) == (asked.owner.host, asked.owner.pid)


def test_the_list_has_no_free_locks(first, backend, name):
    first.take(f"{name}:freed").release()
    first.lock(f"{name}:never").locked()
    assert list(backend.list(name)) == []


def test_the_list_has_ended_leases_that_nobody_has_cleared(first, backend, short, name):
    lock = first.take(name, lease=short(0.2), renew=False)
    eventually(lambda: not lock.locked())
    shown = [State.EXPIRED] if backend.capabilities.shows_expired else []
    assert [info.state for info in backend.list(name)] == shown


def test_without_a_prefix_everything_is_listed(first, backend, name):
    first.take(name)
    assert name in [info.name for info in backend.list()]


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("a", "ab", "ba"),
        ("a", "ab", "Ab"),
        ("a", "ab", "äb"),
        ("50%", "50% off", "50 off"),
        ("a_", "a_b", "axb"),
        ("a\\", "a\\b", "ab"),
        ("a\\_", "a\\_b", "a_b"),
        ("a*", "a*b", "ab"),
        ("a?", "a?b", "axb"),
        ("[ab]", "[ab]c", "ac"),
        ("a'", "a'b", "ab"),
        ("🔒", "🔒1", "🔓1"),
        ("é", "éa", "ea"),
        ("x/", "x/y", "x"),
        ("same", "same", "sam"),
    ],
)
def test_a_prefix_is_compared_exactly(first, backend, prefix, inside, outside):
    first.take(inside)
    first.take(outside)
    assert [info.name for info in backend.list(prefix)] == [inside]


def test_names_are_listed_in_the_order_of_their_characters(first, backend):
    names = ["B", "a", "b", "~", "é", "z1", "z10", "z2", "ｂ", "🔒"]
    for each in names:
        first.take(each)
    assert [info.name for info in backend.list()] == sorted(names)


# The lease


def test_a_hold_tells_its_lease_and_whether_it_is_renewed(first, backend, name):
    apart = []
    for number, renew in enumerate([True, False, True]):
        info = first.take(f"{name}:{number}", lease=20, renew=renew).info()
        assert info.renews is renew
        if backend.capabilities.lease_lengths:
            assert info.lease == 20
            apart.append(abs(info.renewed_at - info.since))
        else:
            assert info.lease >= backend.settings.lease
            assert info.renewed_at is None
    assert not apart or min(apart) < timedelta(seconds=0.01)


def test_a_renewal_is_told_with_its_time(first, backend, short, name):
    if not backend.capabilities.lease_lengths:
        return

    def attempt(lease):
        lock = first.take(f"{name}:{lease}", lease=lease)
        before = lock.info()

        def renewed():
            lock.check()
            return (info := lock.info()).renewed_at > before.renewed_at and info

        later = eventually(renewed)
        assert later.renewed_at >= before.renewed_at + timedelta(seconds=lease / 6)
        length = later.until - later.renewed_at
        assert abs(length - timedelta(seconds=lease)) < timedelta(seconds=0.01)
        assert (later.since, later.lease, later.renews) == (before.since, lease, True)

    steadily(attempt, *short.each(1.5, 9))


def test_a_lock_that_was_left_and_stays_taken_has_no_renewals(first, backend, name):
    if not backend.capabilities.outlives_process:
        return
    lock = first.take(name, at_least=600)
    since = lock.info().since
    lock.release()
    info = lock.info()
    assert info.renews is False
    assert info.lease == pytest.approx(600, abs=PATIENCE)
    assert since <= info.renewed_at <= since + timedelta(seconds=PATIENCE)


def test_a_free_lock_has_no_lease(first, name):
    lock = first.take(name)
    lock.release()
    info = lock.info()
    assert (info.lease, info.renews, info.renewed_at) == (None, None, None)


def test_the_next_holder_has_its_own_lease(first, second, backend, name):
    first.take(name, renew=False).release()
    assert second.take(name, renew=True).info().renews is True
