"""The store of one process, with a test between a recipe and the store."""

import threading

from distlock import locks
from distlock.backends.local_store import LocalStore
from distlock.backends.store import Put
from tests.contract.actors import PATIENCE


class Wrapped:
    """Calls of one method of the store; ``before(store, *args)`` is called first.

    Those of other stores do not count: what tests before have left is taken back meanwhile.
    """

    def __init__(self, monkeypatch, method):
        self.calls = []
        self.before = lambda *_: None
        original = getattr(LocalStore, method)

        def call(store, *args, **kwargs):
            if store is locks["default"].store:
                self.calls.append(args)
                self.before(store, *args)
            return original(store, *args, **kwargs)

        self.original = original
        monkeypatch.setattr(LocalStore, method, call)


def in_thread(function, *args, **kwargs):
    """Start a function on a thread; return what waits for its result."""
    results = []

    def run():
        try:
            results.append(function(*args, **kwargs))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result():
        thread.join(PATIENCE)
        assert results, "did not end"
        return results[0]

    return result


def grants(changes):
    """Return whether these changes let somebody have seats."""
    return any(isinstance(change, Put) and change.key.startswith("h/") for change in changes)


def joins(changes):
    """Return whether these changes let somebody stand in the queue."""
    return any(isinstance(change, Put) and change.key.startswith("w/") for change in changes)


def is_unused(lock):
    """Return whether nobody has seats or waits for them."""
    info = lock.info()
    return info.taken == 0 and info.waiters == ()
