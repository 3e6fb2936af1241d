"""The store of one process, with a test between a recipe and the store."""

import threading

from distlock.backends.local_store import LocalStore
from tests.contract.actors import PATIENCE


class Wrapped:
    """Calls of one method of the store; ``before(store, *args)`` is called first."""

    def __init__(self, monkeypatch, method):
        self.calls = []
        self.before = lambda *_: None
        original = getattr(LocalStore, method)

        def call(store, *args, **kwargs):
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
