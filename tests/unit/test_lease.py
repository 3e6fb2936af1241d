"""Owners, claims and leases: the words that locks are spoken of with."""

import pytest

from distlock.concurrency.clock import clock, left
from distlock.types.lease import Claim, Holder, Lease, LockInfo, Owner

FIRST = Owner("nonce/1", "web1", 100, "MainThread")


def claim(**changes):
    return Claim(**{"name": "stock", "owner": FIRST, "duration": 30.0, **changes})


def test_owners_are_one_when_their_keys_are():
    assert Owner("k", "web1", 1, "a") == Owner("k", "web2", 2, "b")


def test_a_reused_process_and_thread_is_not_its_predecessor():
    assert Owner("nonce/1", "web1", 100, "t") != Owner("other/1", "web1", 100, "t")


def test_an_owner_is_shown_as_host_process_and_thread():
    assert str(FIRST) == "web1:100:MainThread"


def test_two_claims_of_one_owner_differ_by_their_nonces():
    assert claim() != claim()


def test_a_lease_is_relied_on_for_a_thousandth_less_than_its_duration_after_the_request():
    assert claim(duration=30.0).granted(7, sent_at=1000.0).deadline == pytest.approx(1029.97)


def test_a_claim_is_kept_for_the_longer_of_its_lease_and_the_least_time():
    assert claim(duration=30.0).reserved == 30.0
    assert claim(duration=30.0, at_least=10.0).reserved == 30.0
    assert claim(duration=30.0, at_least=60.0).reserved == 60.0
    assert claim(duration=30.0, at_least=60.0).relied_on < 30.0


def test_a_lease_speaks_for_its_claim():
    request = claim()
    lease = request.granted(7, sent_at=0.0)
    assert (lease.name, lease.owner, lease.duration, lease.nonce, lease.token) == (
        "stock",
        FIRST,
        30.0,
        request.nonce,
        7,
    )


def test_what_remains_of_a_lease_is_never_negative():
    assert claim().granted(7, sent_at=clock() - 1000).remaining == 0.0


def test_what_remains_of_a_lease_is_counted_on_the_local_clock():
    assert 2900 < claim(duration=3000.0).granted(7, sent_at=clock()).remaining <= 3000


def test_a_renewed_lease_differs_only_in_its_deadline():
    lease = claim().granted(7, sent_at=0.0)
    assert lease.until(99.0) == Lease(lease.claim, 7, 99.0)


def test_the_clock_does_not_run_backwards():
    readings = [clock() for _ in range(1000)]
    assert readings == sorted(readings)


def test_no_deadline_leaves_the_longest_time():
    assert left(None, at_most=5.0) == 5.0


def test_a_deadline_far_away_leaves_the_longest_time():
    assert left(clock() + 1000, at_most=5.0) == 5.0


def test_a_deadline_that_passed_leaves_nothing():
    assert left(clock() - 1, at_most=5.0) == 0.0


def test_a_lock_has_as_many_holders_as_there_are():
    first, second = Owner("a", "web-1", 1, "main"), Owner("b", "web-2", 2, "main")
    assert LockInfo("stock", "default").holders == ()
    assert LockInfo("stock", "default", owner=first, token=7).holders == (Holder(first, 7),)
    both = LockInfo(
        "stock", "default", owner=first, token=7, slots=2, other_holders=(Holder(second, 8),)
    )
    assert [holder.owner for holder in both.holders] == [first, second]
