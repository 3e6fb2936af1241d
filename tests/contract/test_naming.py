"""Every name is a lock of its own, however it looks to a database, a path or a shell."""

import pytest

from distlock import Lock
from distlock.types.lease import State
from tests.contract.names import AWKWARD_NAMES, LOOKALIKES

#: One of the names has braces.
pytestmark = pytest.mark.filterwarnings("ignore::distlock.UnfilledTemplate")


def test_every_awkward_name_is_a_lock_like_any_other(using, backend, third):
    for name in AWKWARD_NAMES:
        with Lock(name, using=using) as lock:
            assert third.tries(name) is False
            info = lock.info()
            assert (info.name, info.state, info.token) == (name, State.HELD, lock.token)
            lock.verify()
        assert third.tries(name) is True


def test_every_awkward_name_is_listed_as_it_is(using, backend):
    for name in AWKWARD_NAMES:
        assert Lock(name, using=using).acquire(blocking=False)
    assert [info.name for info in backend.list()] == sorted(AWKWARD_NAMES)
    for name in AWKWARD_NAMES:
        Lock(name, using=using).release()
    assert list(backend.list()) == []


@pytest.mark.parametrize(("one", "other"), LOOKALIKES, ids=range(len(LOOKALIKES)))
def test_names_that_look_alike_are_different_locks(using, third, one, other):
    with Lock(one, using=using) as first:
        second = third.lock(other)
        assert second.acquire(blocking=False) is True
        assert first.info().name == one
        assert second.info().name == other
        second.release()
        first.verify()


@pytest.mark.parametrize(
    "text", ["", " ", "x" * 1024, "🔒" * 1024, "'; DROP TABLE database_lock; --", "<b>%s</b> \\ {}"]
)
def test_a_description_comes_back_as_it_was_given(using, name, text):
    with Lock(name, using=using, description=text) as lock:
        assert lock.info().description == text
