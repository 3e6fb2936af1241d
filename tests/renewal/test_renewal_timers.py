"""However long leases are renewed, and however many there are, one timer is set for them."""

import time

from distlock import Lock
from distlock.backends.local import LocalBackend
from distlock.core import renewal
from tests.contract.watch import eventually


def test_a_lease_that_is_renewed_again_and_again_has_one_timer(
    backend_settings, settings, monkeypatch
):
    settings.DISTLOCK = backend_settings("local", RENEW=0.05)
    timers, call_after, renew = [], renewal.call_after, LocalBackend.renew

    def note(seconds, action):
        timers.append(call_after(seconds, action))
        return timers[-1]

    def renew_as_a_server_does(*args):
        time.sleep(0.02)  # until there is an answer, the end of the lease is what is due next
        return renew(*args)

    monkeypatch.setattr(renewal, "call_after", note)
    monkeypatch.setattr(LocalBackend, "renew", renew_as_a_server_does)
    with Lock("one"), Lock("other", lease=60):
        eventually(lambda: len(timers) > 30)
    assert sum(timer.cancel() for timer in timers) <= 1, "so many were set"
