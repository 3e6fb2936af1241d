"""Whoever comes again when its lease has just ended does not wait for itself."""

import threading

import pytest

from distlock import Lock
from distlock.concurrency.clock import clock
from tests.contract.watch import eventually


@pytest.mark.parametrize("options", [{"on_busy": "raise"}, {}], ids=["once", "waiting"])
def test_while_the_end_is_being_told(backend, monkeypatch, options):
    forget, again = backend.discard_local, threading.Event()
    here = threading.current_thread()

    def forget_later(lease):
        if threading.current_thread() is not here:  # the renewer's
            assert again.wait(30)
        forget(lease)

    monkeypatch.setattr(backend, "discard_local", forget_later)
    lock = Lock("again", lease=0.2, renew=False)
    lock.acquire()
    ends = clock() + 0.2
    eventually(lambda: clock() > ends + 0.05)
    try:
        assert Lock("again", **options).acquire()
    finally:
        again.set()
    lock.release()
