"""However long leases are renewed, and however many there are, one timer is set for them."""

from distlock import Lock
from distlock.core import renewal
from tests.contract.watch import eventually


def test_a_lease_that_is_renewed_again_and_again_has_one_timer(
    backend_settings, settings, monkeypatch
):
    settings.DISTLOCK = backend_settings("local", RENEW=0.05)
    timers, call_after = [], renewal.call_after

    def note(seconds, action):
        timers.append(call_after(seconds, action))
        return timers[-1]

    monkeypatch.setattr(renewal, "call_after", note)
    with Lock("one"), Lock("other", lease=60):
        eventually(lambda: len(timers) > 30)  # each renewal sets one for its answer, at least
    assert sum(timer.cancel() for timer in timers) <= 1, "so many were set"
