"""Backends whose leases have one length, and who learn by themselves that one is gone."""

import pytest

from distlock import Lock, LockLost, NotSupported, locks
from distlock.backends.base import Capabilities
from distlock.backends.local import LocalBackend
from tests.contract.watch import eventually


class OneLength(LocalBackend):
    """As if its locks were held by a session."""

    capabilities = Capabilities(lease_lengths=False)

    renewed = 0
    gone = False

    def renew(self, leases, deadline=None):
        self.renewed += len(leases)
        return super().renew(leases, deadline)

    def loss_reason(self, lease):
        return "its session ended" if self.gone else None


@pytest.fixture
def backend(settings):
    settings.DISTLOCK = {"default": {"BACKEND": OneLength, "LEASE": 30, "RENEW": 0.1}}
    yield locks["default"]
    locks.close_all()


def test_its_leases_are_kept_alive(backend):
    with Lock("a") as lock:
        eventually(lambda: backend.renewed >= 4)
        lock.verify()


def test_a_length_of_ones_own_is_refused(backend):
    with pytest.raises(NotSupported, match="lease=5"):
        Lock("a", lease=5).acquire()


def test_why_it_is_gone_is_told_in_its_own_words(backend):
    lock = Lock("a")
    lock.acquire()
    backend.gone = True
    assert not lock.held
    with pytest.raises(LockLost, match="its session ended"):
        lock.check()
    with pytest.raises(LockLost, match="its session ended"):
        lock.release()
