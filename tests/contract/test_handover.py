"""A named owner's hold is carried to another process: what the process that had it knows then."""

import logging

import pytest

from distlock import LockLost, LockUnavailable
from distlock.types.lease import State
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, steadily, waits

ORDER = "order-42"
REFUND = "refund-42"
LONG = 600

pytestmark = pytest.mark.shared


@pytest.fixture
def refused(backend):
    """Whether the backend has no named owners."""
    return not backend.capabilities.named_owners


@pytest.fixture
def view(actor, refused, name):
    """``view()``: a thread of this process that has taken the lock as the README's view does."""

    def take(**options):
        person = actor("thread")
        return person.take(name, **{"owner": ORDER, "lease": LONG, "renew": False, **options})

    return take


@pytest.fixture
def task(actor):
    """The other process."""
    return actor("process")


@pytest.fixture
def losses(sent_events, third, name):
    """``losses(name)``: the losses of a lock that were told here, of all that were noticed."""

    def told_of(lock):
        # What was noticed before the loss of this one has been told before it, or at the same time.
        other = third.take(f"{lock}:sentinel")
        third.lock(f"{lock}:sentinel").force_release(other.token)
        sent_events.wait_for("lost", f"{lock}:sentinel")
        return [word for word in sent_events.words(lock) if word == "lost"]

    return told_of


@pytest.fixture
def quiet(losses, caplog, name):
    """``quiet()``: fail if a loss of this lock was told here."""
    caplog.set_level(logging.INFO, logger="distlock")

    def check():
        assert not losses(name)
        assert not [
            record
            for record in caplog.records
            if record.levelno >= logging.ERROR and f"{name}'" in record.getMessage()
        ]

    return check


def carry(task, name, **options):
    """Adopt the hold elsewhere, and leave it there."""
    task.take(name, owner=ORDER, **options).release()


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_hold_that_was_freed_elsewhere_is_not_entered_again(
    who, refused, view, task, actor, name, quiet
):
    if refused:
        return
    taken = view()
    carry(task, name)
    other = actor("process").take(name, owner=REFUND)
    again = actor(who).lock(name, owner=ORDER)
    assert again.acquire(blocking=False) is False
    assert not again.held
    assert not taken.held
    other.verify()
    quiet()
    other.release()
    assert again.acquire(blocking=False) is True
    again.verify()


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_lock_that_is_free_by_now_is_taken_anew(who, refused, view, task, actor, name, quiet):
    if refused:
        return
    taken = view()
    token = taken.token
    carry(task, name)
    again = actor(who).take(name, owner=ORDER)
    assert again.token > token
    again.verify()
    quiet()


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_hold_that_is_in_use_elsewhere_is_adopted_back(who, refused, view, task, actor, name):
    if refused:
        return
    view()
    there = task.take(name, owner=ORDER, lease=LONG, renew=False)
    again = actor(who).lock(name, owner=ORDER)
    assert again.acquire(blocking=False) is True
    assert again.token > there.token
    again.verify()
    with pytest.raises(LockLost):
        there.verify()
    again.release()
    assert again.info().state is State.FREE


def test_threads_and_tasks_that_enter_at_once_are_told_the_same(
    refused, view, task, actor, name, quiet
):
    if refused:
        return
    view()
    carry(task, name)
    other = task.take(name, owner=REFUND)
    people = [actor(who) for who in ("thread", "task") * 3]
    locks = [person.lock(name, owner=ORDER) for person in people]
    tries = [lock.start("acquire", blocking=False) for lock in locks]
    assert [each.result(PATIENCE) for each in tries] == [False] * len(people)
    entering = [lock.start("acquire") for lock in locks]
    assert all(waits(each, 0.01) for each in entering)
    other.release()
    assert [each.result(PATIENCE) for each in entering] == [True] * len(people)
    assert len({lock.token for lock in locks}) == 1
    locks[0].verify()
    for lock in locks:
        assert not task.tries(name)
        lock.release()
    assert task.tries(name)
    quiet()


def test_who_was_in_before_the_hold_was_carried_away_does_not_leave_its_successor(
    refused, view, task, actor, name
):
    if refused:
        return
    stale = view()
    carry(task, name)
    again = actor("thread").take(name, owner=ORDER)
    assert not stale.held
    with pytest.raises(LockLost):
        stale.start("token").result(PATIENCE)
    with pytest.raises(LockLost):
        stale.release()
    again.verify()
    assert not task.tries(name)
    again.release()
    assert task.tries(name)


def test_another_owner_here_is_not_kept_out_by_what_was_carried_away(
    refused, view, task, third, fourth, name
):
    if refused:
        return
    taken = view()
    waiting = fourth.lock(name).start("acquire", timeout=PATIENCE)
    assert waits(waiting)
    carry(task, name)
    assert waiting.result(PATIENCE) is True
    fourth.leave().result(PATIENCE)
    assert third.tries(name)
    assert not taken.start("acquire", blocking=False).result(PATIENCE) or taken.held


def test_another_owner_who_waits_here_does_not_keep_the_named_one_out(
    refused, task, actor, third, name
):
    if refused:
        return
    there = task.take(name, owner=ORDER, lease=LONG, renew=False)
    waiting = third.lock(name).start("acquire")
    assert waits(waiting)
    adopted = actor("thread").lock(name, owner=ORDER)
    assert adopted.acquire(timeout=0) is True
    with pytest.raises(LockLost):
        there.verify()
    adopted.release()
    assert waiting.result(PATIENCE) is True


@pytest.mark.eager
def test_a_renewal_that_finds_the_hold_elsewhere_is_no_loss(refused, view, task, name, quiet):
    if refused:
        return
    lost = Once()
    taken = view(renew=True, on_lost=lost)
    there = task.take(name, owner=ORDER)
    eventually(lambda: not taken.held)
    with pytest.raises(LockLost):
        taken.check()
    there.verify()
    quiet()
    assert not lost.calls


@pytest.mark.eager
def test_leaving_what_is_elsewhere_raises_but_tells_of_no_loss(refused, view, task, name, quiet):
    if refused:
        return
    taken = view()
    there = task.take(name, owner=ORDER)
    with pytest.raises(LockLost):
        taken.release()
    there.verify()
    quiet()


@pytest.mark.eager
def test_a_broken_hold_of_a_named_owner_is_a_loss(refused, view, task, name, sent_events):
    if refused:
        return
    lost = Once()
    taken = view(renew=True, on_lost=lost)
    token = taken.token
    assert task.lock(name).force_release(token)
    assert lost.wait()[0].token == token
    assert sent_events.wait_for("lost", name)[2] == token


@pytest.mark.slow
def test_a_lease_that_ends_after_the_hold_was_carried_away_is_no_loss(
    refused, actor, task, short, name, losses
):
    if refused:
        return

    def attempt(lease):
        each, lost = f"{name}:{lease}", Once()
        taken = actor("thread").take(each, owner=ORDER, lease=lease, renew=False, on_lost=lost)
        there = task.take(each, owner=ORDER, lease=LONG)
        taken.check()
        eventually(lambda: not taken.held)
        there.verify()
        if losses(each):  # right where the machine stood still until its end
            raise LockLost(each)
        assert not lost.calls

    steadily(attempt, *short.each(1, 4, 10))


def test_a_lease_that_ends_where_it_was_taken_is_told(refused, view, sent_events, short, name):
    if refused:
        return
    lost = Once()
    view(lease=short(0.5), on_lost=lost)
    token = sent_events.wait_for("acquired", name)[2]
    assert lost.wait()[0].token == token
    assert sent_events.wait_for("lost", name)[2] == token


@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_database_that_cannot_be_asked_never_says_yes(
    kind, refused, who, view, actor, proxied, name
):
    if refused or kind == "sqlite":  # whose database is a file
        return
    proxy = proxied(kind)
    taken = view()
    proxy.refuse()
    again = actor(who).lock(name, owner=ORDER)
    with pytest.raises(LockUnavailable):
        again.acquire(blocking=False)
    with pytest.raises(LockUnavailable):
        again.acquire(timeout=0.2)
    proxy.heal()
    assert again.acquire(timeout=PATIENCE)
    assert again.token == taken.token
