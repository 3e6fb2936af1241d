"""A lock that has to stay taken, left while the database cannot be reached."""

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.types.owners import is_reserved
from tests.contract.watch import eventually


@pytest.fixture
def kind():
    return "postgresql"


def test_it_stays_taken_as_soon_as_the_database_can_be_told(
    kind, backend_settings, settings, proxied, name
):
    settings.DISTLOCK = backend_settings(kind)
    proxy = proxied(kind)
    lock = Lock(name, at_least=600)
    assert lock.acquire()
    proxy.refuse()
    with pytest.raises(LockUnavailable):
        lock.release()
    proxy.heal()
    eventually(lambda: is_reserved(locks["default"].inspect(name).owner))
    assert not lock.acquire(blocking=False)
