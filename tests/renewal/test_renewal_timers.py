"""However long leases are renewed, and however many there are, one timer is set for them."""

import threading
import time

from distlock import Lock
from distlock.backends.local import LocalBackend
from distlock.runtime import renewal
from tests.contract.watch import eventually


def test_a_lease_that_is_renewed_again_and_again_has_one_timer(
    backend_settings, settings, monkeypatch
):
    settings.DISTLOCK = backend_settings("local", RENEW=0.05)
    timers, call_after, renew = {}, renewal.call_after, LocalBackend.renew

    def note(seconds, action):
        timer = call_after(seconds, action)
        timers[timer] = action
        return timer

    def renew_as_a_server_does(*args):
        time.sleep(0.02)  # until there is an answer, the end of the lease is what is due next
        return renew(*args)

    monkeypatch.setattr(renewal, "call_after", note)
    monkeypatch.setattr(LocalBackend, "renew", renew_as_a_server_does)
    with Lock("one"), Lock("other", lease=60):
        eventually(lambda: len(timers) > 30)
    waiting = [action for timer, action in timers.items() if timer.cancel()]
    for action in waiting:
        call_after(0, action)  # the next tests' leases rely on it
    # An earlier test may have left a renewer of its own behind, with leases in it.
    assert len(waiting) == len(set(waiting)), "so many were set"


def test_a_log_that_fails_keeps_no_lease_from_being_renewed(
    backend_settings, settings, monkeypatch, failing_log, capsys
):
    settings.DISTLOCK = backend_settings("local", LEASE=3, RENEW=0.05)
    renewed, renew = [], LocalBackend.renew

    def note(backend, leases, *args):
        renewed.extend(lease.name for lease in leases)
        return renew(backend, leases, *args)

    monkeypatch.setattr(LocalBackend, "renew", note)
    with Lock("kept") as lock:
        leaver = threading.Thread(target=Lock("left").acquire)
        leaver.start()
        leaver.join()
        # That it ended without releasing its lock is to be logged.
        eventually(lambda: failing_log in capsys.readouterr().err)
        renewed.clear()
        eventually(lambda: renewed.count("kept") > 5)
        lock.check()


def test_a_named_owners_hold_that_is_given_up_is_asked_for_once(
    backend_settings, settings, monkeypatch
):
    """Nobody renews it here any more, and it may go on in another process until it is given up."""
    settings.DISTLOCK = backend_settings("local", LEASE=6, RENEW=0.2)
    asked, lost, verify = [], threading.Event(), LocalBackend.verify

    def note(backend, lease, *args):
        asked.append(lease.name)
        return verify(backend, lease, *args)

    monkeypatch.setattr(LocalBackend, "verify", note)
    options = {"owner": "worker", "on_lost": lambda lease: lost.set()}
    taker = threading.Thread(target=Lock("given-up", at_most=0.6, **options).acquire)
    taker.start()
    taker.join()
    assert lost.wait(30)
    assert asked == ["given-up"]
