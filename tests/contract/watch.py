"""Ways to look at what happens in other threads, without hoping that a pause was long enough."""

import threading
import time
from contextlib import contextmanager, suppress

import pytest

from distlock import LockError, locks
from distlock.concurrency.clock import clock
from distlock.runtime.manager import manager
from distlock.signals import lock_acquired, lock_broken, lock_lost, lock_released
from distlock.types.lease import Kind, LockKey
from tests.contract.actors import PATIENCE

SIGNALS = {
    "acquired": lock_acquired,
    "released": lock_released,
    "lost": lock_lost,
    "broken": lock_broken,
}


def waits(future, moment=0.05):
    """Fail if ``future`` ends within a moment; a slow machine cannot make this fail wrongly."""
    with pytest.raises(TimeoutError):
        future.result(moment)
    return True


def eventually(condition, limit=PATIENCE):
    """Return the first true value of ``condition()``; fail when none comes in so many seconds."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"never came true: {condition}"
        time.sleep(0.005)
    return value


def passed(seconds):
    """Let that many seconds pass on the clock that leases are counted on."""
    end = clock() + seconds
    eventually(lambda: clock() > end)


def steadily(attempt, *leases):
    """Let ``attempt(lease)`` succeed with one of the leases, of which the shorter come first.

    On a machine that stands still for a moment a short lease may end before its time has come, and
    only that is forgiven: an attempt has to ask its holder before it says that another one was let
    in, and to use a name of its own.
    """
    *shorter, last = leases
    for lease in shorter:
        with suppress(LockError):
            return attempt(lease)
    return attempt(last)


class Events(list):
    """What the signals told: (word, lock's name, token, alias, sender)."""

    def words(self, name):
        return [event[0] for event in self if event[1] == name]

    def wait_for(self, word, name):
        """Return the first event of this word about this lock, once it is there."""

        def found():
            return next((event for event in list(self) if event[:2] == (word, name)), None)

        return eventually(found)


@contextmanager
def events():
    """Record the signals of this process."""
    seen = Events()
    receivers = []
    for word, signal in SIGNALS.items():

        def receive(sender, *, lease, using, word=word, **kwargs):
            seen.append((word, lease.name, lease.token, using, sender))

        signal.connect(receive)
        receivers.append((signal, receive))
    try:
        yield seen
    finally:
        for signal, receive in receivers:
            signal.disconnect(receive)


class Once:
    """A callback that keeps what it was called with, and can be waited for."""

    def __init__(self):
        self.calls = []
        self._called = threading.Event()

    def __call__(self, *args):
        self.calls.append(args)
        self._called.set()

    def wait(self):
        assert self._called.wait(PATIENCE), "was never called"
        return self.calls[0]


def cleaned_up():
    """Return whether no backend of this process has anything left to take back."""
    return not any(backend.cleanup.pending for backend in locks.made())


def in_line(using, name, owner=""):
    """Return how many threads and tasks of this process stand in line, the holder included.

    ``owner`` is the key of a named one, whose line is apart.
    """
    key = LockKey(using, Kind.LOCK, name)
    return manager().queue.sizes().get((key, owner) if owner else key, 0)
