"""A hold knows by itself whether it is lost: no thread has to have noticed, no server is asked."""

import pytest

from distlock import LockLost
from distlock.backends.local import LocalBackend
from distlock.concurrency.clock import clock
from distlock.runtime.hold import Entrant, Hold
from distlock.types.lease import Claim, Owner

FIRST = Owner("nonce/1", "web1", 100, "MainThread")


class Forgetful(LocalBackend):
    """Knows that what it granted was rolled back."""

    def loss_reason(self, lease):
        return "the transaction it was taken in was rolled back"


def hold(backend_class=LocalBackend, *, ends_in=30.0, duration=30.0, renews=True, **params):
    return Hold(
        backend_class("default", params),
        Claim("stock", FIRST, duration).granted(7, sent_at=clock() + ends_in - duration),
        Entrant(lambda: True, renews=renews),
    )


def test_a_hold_whose_lease_runs_is_not_lost():
    assert hold().loss_reason() is None
    assert hold().lost_error() is None


def test_a_hold_is_lost_the_moment_its_deadline_has_passed():
    assert hold(ends_in=-0.001).loss_reason() is not None


def test_a_hold_that_its_backend_knows_to_be_lost_is_lost():
    assert hold(Forgetful).loss_reason() is not None


def test_a_hold_that_was_lost_stays_lost_whatever_its_deadline_says():
    lost = hold()
    lost.lost = "it was broken"
    lost.extend(clock() + 1000)
    assert lost.loss_reason() == "it was broken"


def test_the_error_names_the_lock_the_token_and_the_reason():
    loss = hold(ends_in=-1).lost_error()
    assert isinstance(loss, LockLost)
    assert "'stock'" in str(loss)
    assert "7" in str(loss)


def test_a_renewal_moves_the_end():
    late = hold(ends_in=-1)
    late.extend(clock() + 30)
    assert late.loss_reason() is None


@pytest.mark.parametrize("renews", [True, False])
def test_a_hold_is_looked_at_when_it_is_to_be_renewed_or_ends(renews):
    one = hold(duration=30.0, renews=renews)
    assert one.lease.deadline - one.next_check == pytest.approx(19.97 if renews else 0)


def test_a_short_lease_is_renewed_within_a_third_of_it_whatever_the_settings_say():
    one = hold(ends_in=3.0, duration=3.0, LEASE=30, RENEW=10)
    assert one.lease.deadline - one.renew_at == pytest.approx(1.997)


def test_a_late_answer_is_renewed_the_sooner():
    """The time of the renewal counts from when the request was sent, like the deadline."""
    one = hold(ends_in=25.0, duration=30.0)
    assert one.lease.deadline - one.renew_at == pytest.approx(19.97)
