"""A loss is told, whatever else fails meanwhile."""

import pytest

from distlock import Lock, LockLost, LockNotHeld
from distlock.backends.local import LocalBackend
from tests.contract.watch import Once


def test_a_backend_that_fails_keeps_nobody_from_being_told(monkeypatch, in_thread):
    def fail(*args):
        raise MemoryError

    told = Once()
    lock = Lock("reports:backend", lease=0.2, renew=False, on_lost=told)
    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "discard_local", fail)
        lock.acquire()
        told.wait()
    assert in_thread(take_and_leave, "reports:backend")  # the next one in line had its turn
    with pytest.raises(LockLost):
        lock.release()


def take_and_leave(name):
    with Lock(name, timeout=10):
        return True


def test_a_reason_that_cannot_be_asked_for_keeps_nobody_from_being_told(
    monkeypatch, settings, caplog
):
    def fail(*args):
        raise OSError("no more files")

    def deny(backend, leases, deadline=None):
        return {lease.nonce: False for lease in leases}

    entry = {"BACKEND": "distlock.backends.local.LocalBackend", "RENEW": 0.1}
    settings.DISTLOCK = {"default": entry}
    told = Once()
    lock = Lock("reports:reason", owner="a name", on_lost=told)
    lock.acquire()
    monkeypatch.setattr(LocalBackend, "inspect", fail)
    monkeypatch.setattr(LocalBackend, "renew", deny)
    told.wait()
    assert "no more files" in caplog.text
    with pytest.raises(LockLost):
        lock.release()


def test_what_was_released_meanwhile_is_not_extended(backend, monkeypatch, in_thread):
    """Another thread of the owner's name may release it at any moment."""
    lock, renew = Lock("extended", owner="worker", renew=False), backend.renew

    def renew_late(leases, deadline=None):
        in_thread(lambda: Lock("extended", owner="worker").release() or True)
        return renew(leases, deadline)

    lock.acquire()
    monkeypatch.setattr(backend, "renew", renew_late)
    with pytest.raises(LockNotHeld):
        lock.extend(60)
