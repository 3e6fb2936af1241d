"""A local backend, and threads that run to their end."""

import threading

import pytest

from distlock import Lock, locks
from distlock.runtime.manager import manager
from tests.contract.watch import eventually


@pytest.fixture(autouse=True)
def backend(settings):
    settings.DISTLOCK = {"default": {"BACKEND": "distlock.backends.local.LocalBackend"}}
    yield locks["default"]
    locks.close_all()


@pytest.fixture(autouse=True)
def nobody_left_in_line():
    """Let the next test come first for any lock: threads of the package may still be leaving."""
    before = manager().queue.sizes().keys()
    yield
    eventually(lambda: manager().queue.sizes().keys() <= before)


@pytest.fixture
def often_renewed(settings, nobody_left_in_line):
    """Long leases that are renewed many times a second; what a test leaves behind is freed."""
    settings.DISTLOCK = {
        "default": {
            "BACKEND": "distlock.backends.local.LocalBackend",
            "LEASE": 30,
            "RENEW": 0.05,
        }
    }
    yield
    for hold in manager().all():
        manager().free(hold)


@pytest.fixture
def in_thread():
    """Run a function on another thread and return what it returns."""

    def run(function, *args, **kwargs):
        results = []
        thread = threading.Thread(
            target=lambda: results.append(function(*args, **kwargs)), daemon=True
        )
        thread.start()
        thread.join(30)
        assert results, "did not end"
        return results[0]

    return run


@pytest.fixture
def inside(backend, monkeypatch):
    """``inside(act)``: call a function in the middle of an operation of this thread."""
    release = backend.release

    def run(act):
        def interrupted_release(lease, deadline=None):
            monkeypatch.setattr(backend, "release", release)
            act()
            return release(lease, deadline)

        monkeypatch.setattr(backend, "release", interrupted_release)
        with Lock("interrupted"):
            pass
        assert not Lock("interrupted").locked()

    return run
