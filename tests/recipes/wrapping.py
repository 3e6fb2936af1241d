"""The store of one process, with a test between a recipe and the store."""

import asyncio
import threading
from functools import partial

import pytest

from distlock import locks
from distlock.backends.local_store import LocalStore
from distlock.backends.store import Put
from distlock.concurrency.steps import Nested
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
                # It may use recipes as others do, though it is in the middle of one.
                Nested(partial(self.before, store, *args), asyncio.Event).run()
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


def cancel_while_asking(apply, asks, ask, backend):
    """Cancel a task while its change is under way; that goes on once all has been cleaned up."""
    asked, go_on = threading.Event(), threading.Event()

    def hold_back(known, directory, changes, *_):
        if asks(changes):
            apply.before = lambda *_: None
            asked.set()
            go_on.wait(PATIENCE)

    async def cancelled():
        task = asyncio.create_task(ask())
        await asyncio.to_thread(asked.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while backend.shared.cleanup.pending:
            await asyncio.sleep(0.01)
        go_on.set()

    apply.before = hold_back
    asyncio.run(cancelled())


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
