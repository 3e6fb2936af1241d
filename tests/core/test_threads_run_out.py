"""A process that cannot start another thread for a while keeps its locks, and lets go of them."""

import pytest

from distlock import Lock, LockLost
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import Timers
from distlock.runtime import renewal
from distlock.runtime.manager import manager
from tests.contract.watch import Once, events, eventually


def take_and_leave(name):
    with Lock(name, timeout=10):
        return True


def test_a_renewal_that_could_not_start_is_tried_again(refuse, settings):
    entry = {"BACKEND": "distlock.backends.local.LocalBackend", "RENEW": 0.1}
    settings.DISTLOCK = {"default": entry}
    refuse("renewal")
    with Lock("run-out:renewal", lease=6) as lock:
        end = clock() + lock.remaining
        eventually(lambda: clock() + lock.remaining > end + 0.05)


def test_a_loss_is_told_all_the_same(refuse):
    told = Once()
    lock = Lock("run-out:loss", lease=0.2, renew=False, on_lost=told)
    refuse("lost")
    lock.acquire()
    told.wait()
    with pytest.raises(LockLost):
        lock.release()


def test_a_lock_whose_lease_cannot_be_watched_is_free(refuse, in_thread, monkeypatch):
    manager().__init__()  # no timer is set yet
    monkeypatch.setattr(renewal, "call_after", Timers().call_after)
    refuse("timers")
    refuse("cleanup")
    with pytest.raises(RuntimeError, match="thread"):
        Lock("run-out:timers").acquire()
    assert in_thread(take_and_leave, "run-out:timers")


def test_a_callback_that_exits_keeps_no_one_from_being_told():
    def leave(lease):
        raise SystemExit

    with events() as told:
        lock = Lock("run-out:exit", lease=0.2, renew=False, on_lost=leave)
        lock.acquire()
        told.wait_for("lost", "run-out:exit")
    with pytest.raises(LockLost):
        lock.release()
