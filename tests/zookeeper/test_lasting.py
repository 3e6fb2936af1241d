"""Holds that outlive their session: what is renewed in the last moment is not taken for ended."""

from dataclasses import replace

import pytest

from distlock import Lock, locks
from distlock.lease import Claim, Lease, Swept
from distlock.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed, waits

SHORT = 0.05


@pytest.fixture
def renewed(using, name, monkeypatch):
    """A hold that another client sees as ended, and that is renewed before that one can act."""
    holder, other = locks[using].lasting, locks["other"].lasting
    lease = holder.try_acquire(Claim(name, current_owner("holder"), SHORT))
    longer = Lease(replace(lease.claim, duration=60.0), lease.token, lease.deadline)
    read = other._held

    def read_before_it_is_renewed(*args):
        held = read(*args)
        assert holder.renew([longer]) == {lease.nonce: True}
        return held

    monkeypatch.setattr(other, "_held", read_before_it_is_renewed)
    passed(SHORT)
    return lambda: holder.verify(lease)


def test_it_is_not_taken_over(renewed, name):
    assert locks["other"].lasting.try_acquire(Claim(name, current_owner("other"), 1.0)) is None
    assert renewed()


def test_it_is_not_swept(renewed):
    assert locks["other"].lasting.sweep() == Swept()
    assert renewed()


def test_it_is_not_had_while_a_session_holds_the_lock_nor_the_other_way_round(using, tree, name):
    lasting, claim = locks["other"].lasting, Claim(name, current_owner("other"), 60.0)
    with Lock(name, using=using):
        assert lasting.try_acquire(claim) is None
        assert len(tree.line(name)) == 1
    lease = lasting.try_acquire(claim)
    assert Lock(name, using=using).acquire(blocking=False) is False
    assert lasting.verify(lease)
    assert lasting.release(lease)
    with Lock(name, using=using) as lock:
        assert lock.token > lease.token


@pytest.mark.parametrize("seconds", [SHORT, 60.0])
def test_nobody_passes_those_who_are_in_line_for_it(using, actor, tree, name, seconds):
    """Neither its owner nor, when its time is over, another: tokens would not grow any more."""
    lasting = locks["other"].lasting
    lease = lasting.try_acquire(Claim(name, current_owner("other"), seconds))
    waiting = actor("thread", using).lock(name).start("acquire")
    eventually(lambda: len(tree.line(name)) == 2)
    passed(SHORT)
    assert lasting.try_acquire(replace(lease.claim, nonce="f" * 32)) is None
    if seconds > SHORT:
        assert waits(waiting)
        assert lasting.release(lease)
    assert waiting.result(PATIENCE) is True
    assert tree.token(name) > lease.token
