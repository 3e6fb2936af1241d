"""Holds that outlive their session: what is renewed in the last moment is not taken for ended."""

from dataclasses import replace

import pytest

from distlock import locks
from distlock.lease import Claim, Lease, Swept
from distlock.owners import current_owner
from tests.contract.watch import passed

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
